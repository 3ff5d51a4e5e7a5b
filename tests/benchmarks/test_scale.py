"""Many trials, many simulated workers, a large ledger: the arithmetic of these benchmarks, and each at a tiny size."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from meltpoint.benchmarks import large_ledger
from meltpoint.benchmarks.driver_overhead import Sample
from meltpoint.benchmarks.many_trials import Mark, Scale, against_tune, change, growth, marks_of
from meltpoint.benchmarks.many_workers import Load, Rate, Reading, rate, simulate, verdict
from meltpoint.sweeps.ledger import record_index
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.summary import summarise
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import open_cells
from meltpoint.tests.reports.rendered import render


def sample(ended: int, resident: int = 1_000_000, files: int = 50) -> Sample:
    """A process that needs 2 ms of processor time a trial."""
    return Sample(ended, wall=float(ended), processor=0.002 * ended, own=0.0, resident=resident, files=files)


def test_a_change_is_the_farthest_from_the_first_value() -> None:
    assert change([100.0, 105.0, 92.0, 101.0]) == pytest.approx(0.08)
    assert change([100.0]) == 0
    assert growth([50, 40, 54]) == pytest.approx(0.08)
    assert growth([50, 40]) == 0


def test_marks_are_at_each_tenth_of_the_trials() -> None:
    samples = [sample(ended, resident=1_000_000 + 1000 * ended) for ended in range(1, 32)]
    marks = marks_of(samples, 30)
    assert [mark.trials for mark in marks] == [3, 6, 9, 12, 15, 18, 21, 24, 27, 30]
    assert marks[-1].resident_mb == pytest.approx(1.03)
    assert all(mark.processor_ms == pytest.approx(2.0) for mark in marks)


def test_each_missed_goal_has_its_line() -> None:
    def missed(times: float, memory: float, files: int) -> list[str]:
        marks = [Mark(1, 500.0, 50, 1.0), Mark(2, memory, files, 1.0)]
        return Scale(2, 1, 1.0, 2.0, 2.0 * times, times, times, marks).missed()

    assert missed(1.28, 549.0, 54) == []
    assert [line.split()[0] for line in missed(1.3, 551.0, 56)] == ["1.30", "the", "its"]


def test_the_cost_of_workers_is_the_difference_of_two_readings() -> None:
    first = Reading(simulated=100.0, own=1.0, process=3.0, events=50, trials=5)
    last = Reading(simulated=200.0, own=11.0, process=43.0, events=150, trials=15)
    found = rate(1000, first, last)
    assert (found.events, found.trials, found.driver_ms, found.mlflow_ms) == (100, 10, 100.0, 300.0)
    assert (found.driver_load, found.mlflow_load, found.keeps_up) == (0.1, 0.3, True)


def test_a_verdict_names_what_was_tried_and_where_it_stops() -> None:
    def loaded(workers: int, load: float) -> Rate:
        return Rate(workers, 1, 1, 1.0, 1.0, 1.0, load / 2, load / 2)

    assert verdict([loaded(1000, 0.5)]) == (
        "The driver keeps up with 1000 workers; at the cost of 1000 it stops to at some 2000."
    )
    assert "keeps up with 1000 workers and not with 3000" in verdict([loaded(1000, 0.5), loaded(3000, 2.0)])
    assert "with none" in verdict([loaded(10, 2.0)])


def test_simulated_workers_run_a_sweep_of_real_records(toy_encoder, tmp_path) -> None:
    load = Load(workers=2, trials=12, epochs=2)
    found = simulate(load, "random", toy_encoder, tmp_path)
    assert found.workers == 2
    assert 0 < found.trials < 12 + 4  # a final of each cell
    assert found.events >= 3 * (found.trials - 2), "a start and at least two epochs each, but for those under way"
    records = list((tmp_path / "simulated" / "trials").glob("*.json"))
    assert found.trials <= len(records) <= 12 + 4
    assert found.driver_ms > 0
    assert found.mlflow_ms > 0


@pytest.mark.slow
def test_plain_tune_runs_as_many_trials_of_the_same_length_on_as_many_workers() -> None:
    ours = Scale(
        trials=20, workers=2, seconds=0.2, ideal_seconds=2.0, wall_seconds=3.0, times_ideal=1.5,
        steady_times_ideal=1.2, marks=[],
    )  # fmt: skip
    found = against_tune(ours)
    assert found.rival is not None
    assert min(found.rival) >= 1, "no search of trials that only wait is faster than they are"
    assert replace(found, rival=None) == ours


def test_too_few_trials_are_refused_in_one_line(toy_encoder, tmp_path) -> None:
    with pytest.raises(ValueError, match="4 trials are too few for 40 workers"):
        simulate(Load(workers=40, trials=4, epochs=2), "random", toy_encoder, tmp_path)


def test_a_made_ledger_answers_all_commands_as_it_was_left_again_and_without_its_index(toy_encoder, tmp_path) -> None:
    large_ledger.make(tmp_path, 12, toy_encoder)
    found = large_ledger.measure(tmp_path, 12, toy_encoder, commands=("status",))
    (costs,) = found.commands
    assert costs.command == "status"
    assert min(costs.left.processor, costs.again.processor, costs.unindexed.processor) > 0


def test_a_summary_and_a_planner_of_an_index_open_no_record_and_tables_the_best_alone(
    toy_encoder, tmp_path, monkeypatch
) -> None:
    opened: list[str] = []
    read = Ledger._read

    def counted(ledger: Ledger, path: Path) -> TrialRecord:
        opened.append(path.stem)
        return read(ledger, path)

    monkeypatch.setattr(Ledger, "_read", counted)
    monkeypatch.setattr(record_index, "SETTLED_NS", -(10**15))
    large_ledger.make(tmp_path, 60, toy_encoder)
    ledger = Ledger(tmp_path / large_ledger.NAME)
    assert ledger.index is not None
    ledger.index.few = 0
    files = summarise(ledger)
    assert len(opened) == 60
    opened.clear()
    summary = summarise(ledger)
    spec = large_ledger.specification(60, toy_encoder)
    planner = Planner(spec, open_cells(spec), ledger.records())
    assert [cell.counts for cell in summary.cells] == [cell.counts for cell in files.cells]
    assert [len(progress.search) for progress in planner.cells.values()] == [30, 30]
    assert opened == []
    assert render(summary) == render(files)
    assert set(opened) == {cell.best.id for cell in summary.cells if cell.best is not None}


@pytest.mark.slow
def test_waiting_trials_on_real_workers_give_their_ratio(toy_encoder) -> None:
    words = ["--trials", "20", "--seconds", "0.2", "--workers", "2", "--encoder", toy_encoder, "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "meltpoint.benchmarks.many_trials", *words], capture_output=True, encoding="utf-8",
        timeout=300, check=False,
    )  # fmt: skip
    result = json.loads(done.stdout)
    assert done.returncode == bool(result["missed"]), done.stderr
    assert (result["trials"], result["workers"]) == (21, 2)  # and one final
    assert result["times_ideal"] > 1
    assert [mark["trials"] for mark in result["marks"]] == list(range(2, 21, 2))
