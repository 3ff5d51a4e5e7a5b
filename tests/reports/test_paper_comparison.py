"""Comparison with a paper: the place of its rows, their marks, and the notes on them."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console

from meltpoint.reports.papers import paper_table_of, with_paper_numbers
from meltpoint.reports.results import results_of, searches_note
from meltpoint.reports.screen import show_summary
from meltpoint.reports.statistics.comparison import Comparer
from meltpoint.reports.table_values import Matrix
from meltpoint.sweeps.results.kept_results import Ensemble
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.specification.sweep_spec import Block, SweepSpec
from meltpoint.tests.fixed_comparer import FixedComparer
from meltpoint.tests.reports.stored_sweeps import render
from meltpoint.tests.reports.test_ensembles import made, member

FROZEN, TUNED, STACKED = "feature_extraction", "fine_tuning", "stack_and_finetune"


def compared(
    sweep: SweepSummary, name: str | None = None, comparer: Comparer | None = None
) -> tuple[Matrix, tuple[str, ...]]:
    comparer = comparer or Comparer(sweep.folder, cells=sweep.cells)
    return with_paper_numbers(sweep, paper_table_of(sweep.spec, name), comparer)


@pytest.fixture
def table_2(make_cell, make_sweep) -> SweepSummary:
    """BERT on two tasks, both modes, as its specification would have named the sweep."""
    cells = [
        make_cell(mode, task, encoder="bert-base", finals=[(score, score)])
        for mode, score in ((FROZEN, 0.80), (TUNED, 0.85)) for task in ("mrpc", "sick_e")
    ]  # fmt: skip
    return make_sweep(*cells, seeds=1, origin="to_tune_or_not")


def test_the_papers_row_stands_below_ours_with_its_difference_and_what_it_quotes_is_marked(table_2):
    table = compared(table_2)[0].blocks[0]
    assert [row.title for row in table.modes] == ["❄ feature_extraction", "↳ paper", "🔥 fine_tuning", "↳ paper"]
    assert [row.is_paper for row in table.modes] == [False, True, False, True]
    assert [[shown.label for shown in row.entries] for row in table.modes] == [
        ["80.0", "80.0"], ["78.1", "84.8"], ["85.0", "85.0"], ["84.8 quoted", "85.8"],
    ]  # fmt: skip
    assert [(row.title, [shown.label for shown in row.entries]) for row in table.differences] == [
        ("Δ 🔥 − ❄", ["+5.0", "+5.0"]), ("↳ paper", ["+6.7", "+1.0"]),
    ]  # fmt: skip


def test_the_papers_numbers_are_never_recommended(make_cell, make_sweep):
    cells = [make_cell(mode, "mrpc", encoder="bert-base", finals=[(0.1, 0.1)]) for mode in (FROZEN, TUNED)]
    cells[1] = make_cell(TUNED, "mrpc", encoder="bert-base", finals=[(0.1, 0.2)])
    table = results_of(make_sweep(*cells, seeds=1), "to_tune_or_not", FixedComparer()).table
    (recommended,) = [row for row in table.blocks[0].modes if any(shown.is_recommended for shown in row.entries)]
    assert not recommended.is_paper


def test_ours_is_of_dev_where_the_papers_table_is_with_the_difference_of_two_variants(make_cell, make_sweep):
    cells = [
        make_cell(FROZEN, "mrpc", encoder="bert-base", variant=word, finals=[(dev, 0.5), (dev, 0.6)], seeds=2)
        for word, dev in (("joint", 0.81), ("separate", 0.79))
    ]
    table = compared(make_sweep(*cells, origin="table_4"), comparer=FixedComparer())[0]
    modes = table.blocks[0].modes
    labels = [shown.label for row in modes for shown in row.entries]
    assert labels == ["dev 81.0 ± 0.0", "dev 83.3", "dev 79.0 ± 0.0", "dev 81.4"]
    assert not any(shown.notes for row in modes for shown in row.entries), "dev was asked for, so it needs no note"
    ours, paper = table.blocks[0].differences
    assert (ours.title, ours.entries[0].split) == ("Δ ❄ joint − ❄ separate", "dev")
    assert "[" in ours.entries[0].text
    assert [paper.title, paper.entries[0].label] == ["↳ paper", "dev +1.9"]
    assert [delta.title for delta in table.deltas if delta.in_family] == ["Δ ❄ joint − ❄ separate"]


@pytest.mark.parametrize(("split", "opened"), [("dev", []), ("test", ["0", "1"])])
def test_a_sweep_of_dev_scores_its_finals_and_opens_no_test_split(split, opened, tiny_bert, train_sweep, tmp_path):
    spec = SweepSpec(
        name="closed", encoders=(f"hf:{tiny_bert}",), modes=(FROZEN,), tasks=("demo_sentiment",), trials=1, seeds=2,
        head="linear", split=split, max_train_examples=16,
    )  # fmt: skip
    folder = train_sweep(tmp_path, spec, {"learning_rate": 2e-3, "epochs": 1, "batch_size": 8}) / "closed"
    log = folder / "test_openings.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    assert [str(json.loads(line)["seed"]) for line in lines] == opened
    assert len(list(folder.glob("predictions/*.dev.jsonl"))) == 2
    assert len(list(folder.glob("predictions/*.test.jsonl"))) == len(opened)


def test_a_table_of_several_modes_says_whether_their_searches_are_equal(make_cell, make_sweep):
    cells = [make_cell(mode, "mrpc", finals=[(0.8, 0.8)]) for mode in (FROZEN, TUNED)]
    assert searches_note(make_sweep(*cells)) == ["The modes have equal searches: 4 settings by gp in a cell."]
    assert searches_note(make_sweep(cells[0])) == []
    blocks = tuple(
        Block(encoders=("minilm",), modes=(mode,), tasks=("mrpc",), trials=trials, searcher=searcher)
        for mode, trials, searcher in ((FROZEN, 65, "random"), (TUNED, 16, None))
    )
    (line,) = searches_note(make_sweep(*cells, blocks=blocks))
    assert line.startswith("The modes have unequal searches: ❄ 65 settings by random, 🔥 16 settings by gp in a cell.")


def test_a_papers_gain_stands_beside_the_difference_of_the_same_two_rows_by_the_same_metric(make_cell, make_sweep):
    made = {"encoder": "bert-base", "metric": "span_f1", "seeds": 2}
    tuned = make_cell(TUNED, "conll2003", variant="mlp", finals=[(0.9, 0.9), (0.9, 0.92)],
                      beside={"word_accuracy": 0.97}, **made)  # fmt: skip
    stacked = make_cell(STACKED, "conll2003", variant="bilstm", finals=[(0.93, 0.93), (0.93, 0.95)],
                        beside={"word_accuracy": 0.98}, **made)  # fmt: skip
    table = compared(make_sweep(tuned, stacked, origin="best_of_both_worlds"))[0].blocks[0]
    texts = [(row.title, row.entries[0].text) for row in table.differences]
    assert texts == [
        ("Δ ❄🔥 bilstm − 🔥 mlp (word_accuracy)", "+1.0 ± 0.0"), ("↳ paper", "+0.99"),
        ("Δ ❄🔥 bilstm − 🔥 mlp (span_f1)", "+3.0 ± 1.4"), ("↳ paper", "+6.8"),
    ]  # fmt: skip


def test_variants_that_the_paper_compares_in_words_have_a_delta_of_ours_alone(make_cell, make_sweep):
    cells = [
        make_cell(FROZEN, "qqp", encoder="bert-base", variant=word, finals=[(0.8, dev), (0.8, dev)])
        for word, dev in (("bimpm", 0.84), ("sim-transformer", 0.80))
    ]
    block = compared(make_sweep(*cells, origin="best_of_both_worlds"))[0].blocks[0]
    (ours,) = [row for row in block.differences if not row.is_paper]
    assert (ours.title, ours.entries[0].text) == ("Δ ❄ sim-transformer − ❄ bimpm", "−4.0 ± 0.0")


YAHOO = "yahoo:society_culture+science_mathematics"
THREE = ((TUNED, "mlp"), (STACKED, "densenet"), (STACKED, "highway-lstm"))


def ensemble_of(cells: Sequence[CellSummary], is_stale: bool) -> Ensemble:
    members = [
        member(cell.header.mode, encoder=cell.header.encoder, variant=cell.header.variant,
               trials=("x",) if is_stale else tuple(final.id for final in cell.finals))
        for cell in cells
    ]  # fmt: skip
    scores = ({"accuracy": 0.86, "f1": 0.85}, {"accuracy": 0.88, "f1": 0.87})
    return made(*members, task=YAHOO, dev=scores, test=scores)


@pytest.mark.parametrize(
    ("count", "is_stale", "shown"),
    [(3, False, ["+2.0 ± 1.4", "+0.72", "+6.0 ± 1.0", "+0.5"]), (2, False, []), (0, False, []), (3, True, [])],
    ids=["the paper's three", "two of them", "none", "three with other finalists now"],
)
def test_experiment_bs_gain_stands_beside_that_of_the_ensemble_of_the_papers_three_models_alone(
    count, is_stale, shown, make_cell, make_sweep
):
    cells = [
        make_cell(mode, YAHOO, encoder="bert-base", variant=variant, finals=[(0.8, 0.84), (0.8, 0.86)],
                  beside={"f1": 0.8}, columns=("f1",))
        for mode, variant in THREE
    ]  # fmt: skip
    sweep = make_sweep(*cells, origin="best_of_both_worlds")
    sweep = replace(sweep, ensembles=[ensemble_of(cells[:count], is_stale)] if count else [])
    block = compared(sweep)[0].blocks[0]
    gains = [(row.title, row.entries[0].text) for row in block.differences if "ensemble" in row.title or row.is_paper]
    assert [text for _, text in gains] == shown
    assert all(row.entries[1].text == "–" for row in block.differences if row.is_paper), "F1 has no paper's accuracy"
    if shown:
        assert gains[0][0] == "Δ ensemble − 🔥 mlp (accuracy)"
        assert [entry.text for entry in block.ensembles[0].entries] == ["87.0 ± 1.4", "86.0 ± 1.4"]


def test_another_encoder_in_the_place_of_the_papers_is_said_to_be_another(make_cell, make_sweep):
    cell = make_cell(TUNED, "mrpc", encoder="minilm", finals=[(0.8, 0.8)])
    block = Block(encoders=("minilm",), modes=(TUNED,), tasks=("mrpc",), seeds=1)
    sweep = make_sweep(cell, seeds=1, origin="to_tune_or_not", replaced=("bert-base=minilm",), blocks=(block,))
    table, notes = compared(sweep)
    assert [row.entries[0].label for row in table.blocks[0].modes if row.is_paper] == ["84.8 quoted"]
    assert [note for note in notes if "minilm stands for bert-base" in note]
    assert not [note for note in compared(make_sweep(cell), "to_tune_or_not")[1] if "stands for" in note]


def test_the_papers_rows_stand_apart_from_a_toy_of_its_encoder(make_cell, make_sweep):
    cell = make_cell(TUNED, "mrpc", encoder="elmo:/models/elmo", finals=[(0.7, 0.7)])
    for size, is_theirs in ((1024, True), (0, True), (14, False)):
        sized = replace(cell, header=cell.header.model_copy(update={"encoder_size": size}))
        sweep = make_sweep(sized, seeds=1, origin="to_tune_or_not", replaced=("elmo=elmo:/models/elmo",))
        table, notes = compared(sweep)
        assert not [note for note in notes if "stands for" in note], "it is the paper's own"
        assert any(row.is_paper for row in table.blocks[0].modes) == is_theirs
        assert any("its states have 14 numbers, not 1024" in note for note in notes) != is_theirs


def test_every_table_marks_the_papers_rows_and_names_the_source(table_2, make_cell, make_sweep):
    text = render(table_2)["report.md"]
    assert "| ↳ paper |  | 84.8 quoted¹ | 85.8 |" in text
    assert "¹ Peters, Ruder & Smith 2019 quotes it from Devlin et al. 2018." in text
    assert "Rows marked ↳ paper are not measured here: Peters, Ruder & Smith 2019, table 2" in text
    console = Console(width=80, record=True, force_terminal=False, file=io.StringIO())
    show_summary(table_2, console)
    shown = console.export_text()
    assert (shown.count("↳ paper"), "quoted" in shown) == (2, True)
    assert max(len(line) for line in shown.splitlines()) <= 80
    without = make_sweep(make_cell(TUNED, "cola", finals=[(0.8, None)]), split="dev")
    assert "the specification leaves test closed; dev is shown" in compared(without)[0].footnotes
    assert compared(without)[1] == ()
    assert "paper" not in render(without)["report.md"]
    with pytest.raises(ValueError, match=r"'to_tune_or_no'.*Did you mean to_tune_or_not"):
        render(without, "to_tune_or_no")
