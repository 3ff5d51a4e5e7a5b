"""Ensembles in the tables: a row below the modes, the members in a note, a line in the CSV file."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from meltpoint.reports.matrix import SEVERAL, STALE, matrix
from meltpoint.reports.screen import show_ensemble
from meltpoint.sweeps.results.kept_results import Ensemble, EnsembleMember
from meltpoint.sweeps.results.summary import SweepSummary
from meltpoint.tests.reports.stored_sweeps import read_csv, render

MODES = ("feature_extraction", "fine_tuning")


def member(
    mode: str = MODES[0], *, sweep: str = "first", encoder: str = "minilm", variant: str = "",
    trials: tuple[str, ...] = (),
) -> EnsembleMember:  # fmt: skip
    return EnsembleMember(
        sweep=sweep, encoder=encoder, mode=mode, head="linear", cell=f"{encoder}.{mode}.sst2", seeds=(0, 1),
        variant=variant,
        trials=trials or tuple(f"{mode}.sst2.{100 + seed}" for seed in (0, 1)),
    )  # fmt: skip


def made(*members: EnsembleMember, **fields: Any) -> Ensemble:
    values: dict[str, Any] = {
        "id": "e" * 16, "task": "sst2", "kind": "sentence_classification", "metric": "accuracy",
        "members": members or tuple(member(mode) for mode in MODES), "dev": ({"accuracy": 0.9}, {"accuracy": 0.9}),
        "test": ({"accuracy": 0.84}, {"accuracy": 0.86}), "data_fingerprint": "d" * 16, "made_at": 1.0,
    }  # fmt: skip
    return Ensemble.model_validate(values | fields)


@pytest.fixture
def summary(make_cell, make_sweep) -> SweepSummary:
    """Two modes × two tasks, without an ensemble."""
    tasks = ("sst2", "mrpc")
    return make_sweep(*(make_cell(mode, task, finals=[(0.8, 0.79), (0.8, 0.81)]) for mode in MODES for task in tasks))


def markdown(summary: SweepSummary, *ensembles: Ensemble) -> str:
    return render(replace(summary, ensembles=list(ensembles)))["report.md"]


def test_the_row_stands_under_the_modes_and_its_members_in_a_note(summary: SweepSummary) -> None:
    files = render(summary)
    assert "ensemble" not in files["report.md"] + files["report.csv"], "where there is none"
    text = markdown(summary, made())
    lines = text.partition("## Cells")[0].splitlines()
    titles = [line.split(" |")[0] for line in lines if line.startswith("| ") and "±" in line]
    assert titles == ["| ❄ feature_extraction", "| 🔥 fine_tuning", "| ensemble", "| Δ 🔥 − ❄"]
    assert "| ensemble |  | 85.0 ± 1.4¹ | – |" in lines
    assert "¹ ensemble of minilm ❄ (linear), minilm 🔥 (linear)." in text
    assert "none was chosen by test" in text
    assert STALE not in text
    text = markdown(summary, made(test=(), notes=("no test score: nothing stored to score",)))
    assert "| ensemble |  | dev 90.0 ± 0.0¹,² | – |" in text
    assert "² no test score: nothing stored to score." in text


@pytest.mark.parametrize(("sweep", "is_said"), [("first", True), ("other", False)])
def test_members_with_other_finalists_by_now_are_said_and_those_of_other_sweeps_named(sweep, is_said, summary):
    gone = member(MODES[1], sweep=sweep, trials=("fine_tuning.sst2.100", "fine_tuning.sst2.177"))
    text = markdown(summary, made(member(), gone))
    assert (STALE in text) == is_said
    assert ("ensemble of minilm ❄ (linear), other/minilm 🔥 (linear)" in text) != is_said


def test_ensembles_of_several_encoders_have_a_table_of_their_own_and_a_second_one_a_second_row(summary):
    both = made(member(), member(sweep="other", encoder="bert-base"))
    text = markdown(summary, made(), made(member(), member(sweep="other")), both)
    single, _, several = text.partition("## What the table shows")[0].partition(f"## {SEVERAL}")
    assert [single.count("| ensemble |"), single.count("| ensemble 2 |"), several.count("| ensemble |")] == [1, 1, 1]
    assert "| mode | head | sst2 (accuracy) |\n" in several
    assert "mrpc" not in several
    others = (member(mode, sweep="other", encoder="bert-base") for mode in MODES)
    blocks = matrix(replace(summary, ensembles=[made(*others)])).blocks
    assert [(block.encoder, len(block.modes), len(block.ensembles)) for block in blocks] == [
        ("minilm", 2, 0), ("bert-base", 0, 1),
    ]  # fmt: skip


def test_the_csv_has_a_line_an_ensemble_behind_the_cells(summary: SweepSummary) -> None:
    text = render(replace(summary, ensembles=[made(notes=("a note",))]))["report.csv"]
    rows = read_csv(text)
    assert [row["mode"] for row in rows] == [MODES[0], MODES[0], MODES[1], MODES[1], "ensemble"]
    row = rows[-1]
    assert (row["sweep"], row["encoder"], row["task"], row["head"]) == ("first", "minilm", "sst2", "linear")
    assert (row["seeds"], row["trials_planned"], row["best_dev"], row["setting"]) == ("0 1", "", "", "")
    assert [float(row[key]) for key in ("dev_mean", "dev_std", "test_mean")] == [0.9, 0.0, 0.85]
    assert row["notes"] == "ensemble of minilm ❄ (linear), minilm 🔥 (linear); a note"


def test_the_command_tells_members_scores_and_notes() -> None:
    show_ensemble(
        made(notes=("left out, not finished: [x]",)), "first", Console(file=(file := io.StringIO()), width=80)
    )
    assert file.getvalue().splitlines() == [
        "sst2: ensemble of minilm ❄ (linear), minilm 🔥 (linear)", "test accuracy 85.0 ± 1.4 over 2 seeds",
        "dev accuracy 90.0 ± 0.0 over 2 seeds", "left out, not finished: [x]",
    ]  # fmt: skip
