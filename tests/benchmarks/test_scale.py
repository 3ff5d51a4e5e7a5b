"""Many trials, many simulated workers, a large ledger: the arithmetic of these benchmarks, and each at a tiny size."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from meltpoint.benchmarks import large_ledger
from meltpoint.benchmarks.many_trials import Mark, Sample, Scale, change, growth, marks_of
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import open_cells


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


def test_a_made_ledger_answers_the_commands_and_is_planned_on(toy_encoder, tmp_path) -> None:
    large_ledger.make(tmp_path, 60, toy_encoder)
    found = large_ledger.measure(tmp_path, 60, toy_encoder, commands=("status",))
    assert found.commands["status"].processor > 0
    costs = {"status": large_ledger.Cost(1.0, 10.5), "report": large_ledger.Cost(90.0, 59.0)}
    assert large_ledger.Timings(1, costs).missed() == ["status"], "processor time counts, and not the clock"
    spec = large_ledger.specification(60, toy_encoder)
    planner = Planner(spec, open_cells(spec), Ledger(tmp_path / large_ledger.NAME).records())
    assert [len(progress.search) for progress in planner.cells.values()] == [30, 30]


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
