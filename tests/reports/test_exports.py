"""Model cards: the hub reads them, and they name no path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard

from meltpoint.reports.exports import cell_card, usage
from meltpoint.reports.report import markdown
from meltpoint.reports.results import results_of
from meltpoint.sweeps.results.summary import SweepSummary, summarise
from meltpoint.tasks.core import kinds
from meltpoint.tests.reports.stored_sweeps import store_sweep


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> SweepSummary:
    """A finished sweep of one cell with four seeds."""
    return summarise(store_sweep(tmp_path_factory.mktemp("cards"), "first", ["accuracy"], [0.8]))


def text_of(summary: SweepSummary, form: str = "transformers") -> str:
    text = cell_card(summary, summary.cells[0], form)  # type: ignore[arg-type]
    assert text is not None
    return text


def test_the_hubs_own_reader_finds_licence_base_model_and_the_scores_of_this_model(summary, minilm):
    (cell,) = summary.cells
    assert cell.kept is not None
    data = ModelCard(text_of(summary)).data
    assert (data.license, data.base_model) == ("apache-2.0", "sentence-transformers/all-MiniLM-L6-v2")
    assert (data.library_name, data.pipeline_tag) == ("transformers", "text-classification")
    assert {"meltpoint", cell.header.mode, cell.header.head} == set(data.tags)
    assert data.metrics == ["accuracy"]
    assert data.model_name == "minilm.feature_extraction.mrpc"
    scores = {one.dataset_split: one.metric_value for one in data.eval_results}
    assert scores == {"validation": cell.kept.dev, "test": (cell.kept.test or {})["accuracy"]}
    assert data.language is None, "the texts' language is not known"


@pytest.mark.parametrize("form", ["model", "transformers", "onnx"])
def test_a_card_has_every_section_and_no_path_of_this_machine(summary: SweepSummary, form: str) -> None:
    text = text_of(summary, form)
    titles = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert titles == ["Use", "Scores", "Data", "Setting", "Limits", "Licence", "Provenance"]
    assert str(summary.folder) not in text
    assert str(Path.home()) not in text
    assert summary.cells[0].header.data_fingerprint in text


def test_the_setting_is_there_exactly(make_cell: Any, make_sweep: Any) -> None:
    cell = make_cell(finals=[(0.8, 0.79)], notes=("test was carved from dev",), input_notes=("dev: 3 inputs were cut",))
    summary = make_sweep(cell)
    text = cell_card(summary, cell, "model")
    assert text is not None
    assert yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0]) == cell.best.setting
    limits = text.partition("## Limits")[2].partition("## Licence")[0]
    assert "3 inputs were cut" in limits
    assert "Warning: the best setting tuned the encoder for 30 steps" in limits
    assert "- test was carved from dev." in text
    assert "| test | 79.0 | 79.0 |" in text


def test_a_card_says_what_else_was_scored_and_what_was_not(make_cell: Any, make_sweep: Any) -> None:
    def card(cell: Any) -> str:
        return cell_card(make_sweep(cell), cell, "model") or ""

    far = make_cell(finals=[(0.8, 0.79)], beside={"far/accuracy": 0.61})
    text = card(replace(far, header=far.header.model_copy(update={"also_test": ("far/accuracy",)})))
    assert "Other metrics of this model on test: far/accuracy 61.0." in text
    assert "Texts of another kind were scored: far/accuracy" in text
    assert "no such split was scored" not in text
    probe = make_cell("lp_ft", finals=[(0.8, 0.79)])
    first, best, _ = probe.kept.epochs
    first.dev["calibration_error"], best.dev["calibration_error"] = 0.041, 0.0734
    assert "calibration error on dev: 0.041 after the probe, 0.073 at the kept one." in card(probe)
    hidden = card(make_cell(finals=[(0.8, "hidden")]))
    assert "It has no score on test" in hidden
    assert [one.dataset_split for one in ModelCard(hidden).data.eval_results] == ["validation"]
    assert card(make_cell()) == "", "without a finalist"


def test_a_card_does_not_say_that_test_was_opened_once_where_it_was_opened_before(make_cell, make_sweep) -> None:
    cell = make_cell(finals=[(0.8, 0.79)])
    tested = cell.finals[0].model_copy(update={"test_fingerprint": "f"})
    cell = replace(cell, finals=[tested])
    assert "Test was opened after that, once." in (cell_card(make_sweep(cell), cell, "model") or "")
    again = replace(cell, test_round=2)
    text = cell_card(make_sweep(again), again, "model") or ""
    assert "once" not in text
    assert "(test round 2): test is no longer unseen data." in text


@pytest.mark.parametrize(
    "name", ["x\n## Licence\nnone", "# Licence: none", "<script>alert(1)</script>", "e\x1b]0;t\x07"]
)
def test_no_name_or_note_forges_a_section_or_html(make_cell: Any, make_sweep: Any, name: str) -> None:
    cell = make_cell(encoder=f"hf:/gone/{name}", finals=[(0.8, 0.79)], notes=(name,), input_notes=(name,))
    card, report = cell_card(make_sweep(cell), cell, "model"), markdown(results_of(make_sweep(cell)))
    assert card is not None
    for text in (card.partition("\n---\n")[2], report):
        assert "<script" not in text
        assert "\x1b" not in text
        assert sum(line.startswith("## Licence") for line in text.splitlines()) == (0 if text is report else 1)
        assert not any(line.startswith("# Licence") for line in text.splitlines())


def test_an_encoder_whose_files_state_no_licence_is_said_to_have_none(make_cell, make_sweep, tiny_encoder):
    cell = make_cell(encoder=tiny_encoder, finals=[(0.8, 0.79)])
    text = cell_card(make_sweep(cell), cell, "transformers")
    assert text is not None
    data = ModelCard(text).data
    assert (data.license, getattr(data, "base_model", None)) == ("unknown", None)
    assert "not stated by the encoder's files" in text
    assert tiny_encoder.removeprefix("hf:") not in text, "where a folder lies on this machine is nobody's business"


@pytest.mark.parametrize("kind", kinds.names())
@pytest.mark.parametrize("form", ["model", "transformers", "onnx"])
def test_the_code_of_each_card_is_python(kind: str, form: str) -> None:
    block = usage(form, kind, "query: ")  # type: ignore[arg-type]
    compile(block.removeprefix("```python\n").removesuffix("```"), "card", "exec")
    assert ("query: the soup" in block) == (form != "model" and kinds.get(kind).input == "sentence")
