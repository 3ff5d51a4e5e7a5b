"""Analyses: tables and figures as files, and every analysis on trained sweeps of all three modes."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from typer.testing import CliRunner

from meltpoint.launch import app
from meltpoint.reports.analyses import analyse, names
from meltpoint.reports.analyses.core.analysis import AnalysisOptions
from meltpoint.reports.analyses.core.output import AnalysisTable, Column, Line, Panel, Score, draw, figures, points
from meltpoint.reports.analyses.core.states import STAGES, split_states, stages
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.summary import summarise
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.worker import worker
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec
from meltpoint.tests.reports.stored_sweeps import read_csv

TABLE = AnalysisTable(
    "made_up", "50 % of a_b & c",
    (Column("task"), points("dev"), points("Δ", "+.1f"), figures("layer", "d"), Column("advice")),
    (("a|b_c", 0.8125, -0.011, 3, "use ❄"), ("x\ny", None, 0.0625, None, "❄ ≈ 🔥")),
    ("A note\nof two lines, 10 %.",),
)  # fmt: skip
LINES = (
    Line("pretrained", (1.0, 2.0, 4.0)), Line("fine-tuned", (2.0, 3.0, 9.0), (0.1, 0.2, 0.3)),
    Line("chance", (1.0,) * 3, is_reference=True),
)  # fmt: skip
ONE = [[Panel("one", "score", LINES)]]


def test_markdown_and_latex_have_whole_rows_of_figures_and_the_csv_the_values_themselves():
    title, table, notes = TABLE.markdown().split("\n\n")
    lines = table.split("\n")
    assert (title, notes) == ("# 50 % of a_b & c", "- A note of two lines, 10 %.\n")
    assert lines[1:] == [
        "| --- | ---: | ---: | ---: | --- |", "| a\\|b_c | 81.2 | −1.1 | 3 | use ❄ |",
        "| x y | – | +6.2 | – | ❄ ≈ 🔥 |",
    ]  # fmt: skip
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {6}
    assert list(csv.reader(io.StringIO(TABLE.comma_separated(), newline=""))) == [
        ["task", "dev", "Δ", "layer", "advice"], ["a|b_c", "0.8125", "-0.011", "3", "use ❄"],
        ["x\ny", "", "0.0625", "", "❄ ≈ 🔥"],
    ]  # fmt: skip
    text = TABLE.latex()
    body = text.partition(r"\midrule")[2].partition(r"\bottomrule")[0].strip().split("\n")
    assert body[0] == r"a|b\_c & 81.2 & $-$1.1 & 3 & use frozen \\"
    assert body[1] == r"x y & -- & +6.2 & -- & frozen $\approx$ tuned \\"
    for part in (r"\begin{tabular}{lrrrl}", r"\caption{50 \% of a\_b \& c}", r"\label{tab:made_up}"):
        assert part in text
    assert text.rstrip().split("\n")[-1] == "% A note of two lines, 10 %."
    assert text.count(r"\begin") == text.count(r"\end") == 2


def test_an_error_is_shown_in_its_own_unit_beside_fractions_in_points():
    rows = tuple(Score.each((score, difference), metric) for metric, score, difference in (
        ("mse", 0.4126, -0.021), ("pearson", 0.4126, -0.021), ("mae", None, 0.5),
    ))  # fmt: skip
    table = AnalysisTable("t", "t", (points("dev"), points("Δ", "+.1f")), rows)
    assert table.texts() == [["0.413", "−0.021"], ["41.3", "−2.1"], ["–", "+0.500"]]
    assert table.comma_separated().splitlines()[1:] == ["0.4126,-0.021", "0.4126,-0.021", ",0.5"]


def test_the_same_numbers_give_the_same_bytes(tmp_path):
    drawn = draw(ONE, "svg")
    assert draw(ONE, "svg") == drawn
    assert draw([[Panel("one", "score", (Line("pretrained", (1.0, 2.0, 4.5)), *LINES[1:]))]], "svg") != drawn
    result = CliRunner().invoke(app, ["analyse", "-", "", "--storage", str(tmp_path)])
    assert (result.exit_code, "Name an analysis: diagnostic_classifiers, " in result.stderr) == (2, True)


MODES = ("feature_extraction", "fine_tuning", "stack_and_finetune")
DATA = DataSpec("demo_entailment", max_train_examples=24)
SETTING = {"learning_rate": 2e-3, "epochs": 2, "batch_size": 8, "dropout": 0.0, "max_pieces": 16}


@pytest.fixture(scope="module", params=["auto", "bf16"])
def storage(request, tiny_bert, train_sweep, tmp_path_factory) -> Path:
    """A sweep with one cell per mode on pairs, each with its default head and two finals."""
    spec = SweepSpec(
        name="every", encoders=(f"hf:{tiny_bert}",), modes=MODES, tasks=(DATA.task,), trials=1, seeds=2,
        max_train_examples=DATA.max_train_examples,
    )  # fmt: skip
    precision = {} if request.param == "auto" else {"precision": request.param}
    return train_sweep(tmp_path_factory.mktemp("storage"), spec, SETTING | precision)


def read(out: Path, name: str) -> list[dict[str, str]]:
    return read_csv(out / f"{name}.csv")


def test_every_analysis_is_made_of_a_sweep_of_all_modes(storage, tmp_path):
    others = {"genres", "sizes"}  # they need cells of genres, or of several sizes of train
    analyse("every", [name for name in names() if name not in others], storage, out=tmp_path, formats=["csv", "svg"])
    for name in ("diagnostic_classifiers", "mutual_information"):
        layers = [(row["stage"], row["layer"]) for row in read(tmp_path, name)]
        for stage in ("pretrained", "fine-tuned", "stacked, then fine-tuned"):
            assert [layer for one, layer in layers if one == stage] == ["0", "1", "2"]
    (guideline,) = read(tmp_path, "guidelines")
    assert guideline["task"] == DATA.task
    words = ["analyse", "every", "guidelines", "--format", "csv", "--out", str(tmp_path), "--storage", str(storage)]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert json.loads(done.stdout) == {"written": [str(tmp_path / "guidelines.csv")]}, done.output


def by_transformers(weights: Path, tiny_bert: Path) -> np.ndarray:
    """The mean dev states by transformers from a checkpoint's file, one input at a time: (layers, examples, dim)."""
    encoder = {name: tensor for name, tensor in load_file(weights).items() if name.startswith("encoder.")}
    assert {tensor.dtype for tensor in encoder.values()} == {torch.float32}
    model = transformers.BertModel.from_pretrained(tiny_bert, add_pooling_layer=False).eval()
    model.load_state_dict({name.removeprefix("encoder.model."): tensor for name, tensor in encoder.items()})
    tokenizer, rows = transformers.AutoTokenizer.from_pretrained(tiny_bert), []
    for example in load_training_data(DATA).dev:
        with torch.no_grad():
            output = model(**tokenizer(*example.texts, return_tensors="pt"), output_hidden_states=True)
        rows.append(np.stack([states[0].mean(dim=0).numpy() for states in output.hidden_states]))
    return np.stack(rows, axis=1)


def test_a_finalists_states_are_those_of_its_checkpoints_float32_weights(storage, tiny_bert):
    ledger, loaded = Ledger(storage / "every"), load_training_data(DATA)
    summary = summarise(ledger)
    kept = {STAGES[cell.header.mode]: cell.kept for cell in summary.cells if cell.header.mode in STAGES}
    _, *tuned = stages(AnalysisOptions(summary, ledger, storage), summary.spec.encoders[0], loaded)
    assert [stage.name for stage in tuned] == list(kept)
    for stage in tuned:
        expected = by_transformers(ledger.checkpoint(kept[stage.name].id) / worker.WEIGHTS, tiny_bert)
        states = split_states(stage.encoder, loaded.task, loaded.dev)
        np.testing.assert_allclose(states, expected, atol=5e-6)
