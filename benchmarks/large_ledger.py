"""A ledger of very many trials: seconds of `status`, `report` and `plan` (what going on does before a trial).

The records are written by the ledger itself, of settings that the space draws; nothing is trained.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from meltpoint.adapters.settings import complete
from meltpoint.sweeps.driver.opening import settle_specification
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import EpochRecord, HardwareRecord, TrialRecord
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import OpenCell, open_cells
from meltpoint.sweeps.specification.code_version import code_version
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.storage.files import storage_folder

NAME, EPOCHS, CELLS = "large", 3, ("demo_sentiment", "demo_entailment")


@dataclass(frozen=True)
class Timings:
    """Seconds of the commands on one ledger.

    Attributes:
        trials: the number of records.
        first_status: `status` where no other command has read the ledger before.
        status, report: a second time.
        plan: what `plan`, and going on with the sweep, do before the first trial.
    """

    trials: int
    first_status: float
    status: float
    report: float
    plan: float


def specification(trials: int) -> SweepSpec:
    """A sweep of two cells."""
    return SweepSpec(
        name=NAME, encoders=("minilm",), modes=("fine_tuning",), tasks=CELLS, trials=trials // len(CELLS) + 1, seeds=2,
        searcher="random",
    )  # fmt: skip


def make(storage: Path, trials: int) -> None:
    """Write a ledger of a number of ended trials, one in fifty of them failed, one in ten stopped."""
    spec = specification(trials)
    cells, ledger = open_cells(spec), Ledger(storage_folder(str(storage)) / NAME)
    settle_specification(ledger, spec, cells)
    planner, draw = Planner(spec, cells, []), np.random.default_rng(0)
    for number in range(trials):
        cell = cells[number % len(cells)]
        setting = complete(cell.space.sample(draw), cell.mode, cell.head)
        trial = planner.trial_id(cell, setting, spec.seed, "search")
        ledger.write(record_of(trial, number, cell, dict(setting), float(draw.random())))


def record_of(
    trial: str, number: int, cell: OpenCell, setting: dict[str, bool | int | float | str], dev: float
) -> TrialRecord:
    """The record of a trial that was never run."""
    failed, stopped = number % 50 == 7, number % 10 == 3
    scores = [] if failed else [dev * (epoch + 1) / EPOCHS for epoch in range(1 if stopped else EPOCHS)]
    epochs = [
        EpochRecord(
            epoch=epoch, phase="finetune", step=100 * epoch, train_loss=1.0 / epoch,
            dev={cell.metric: score, "loss": 1.0}, train_seconds=11.25, dev_seconds=1.5, learning_rate=1e-5,
            finished_at=1.7e9 + number,
        )
        for epoch, score in enumerate(scores, 1)
    ]  # fmt: skip
    return TrialRecord(
        id=trial, number=number // len(CELLS), encoder=cell.encoder, mode=cell.mode, task=cell.task_name,
        head=cell.head, role="search", seed=0, setting=setting, metric=cell.metric,
        status="failed" if failed else "stopped" if stopped else "finished",
        dev=scores[-1] if scores else None, dev_metrics=epochs[-1].dev if epochs else {}, epochs=epochs,
        best_epoch=len(epochs) or None, error="the loss is not finite" if failed else None,
        cause="setting" if failed else None, mlflow_run_id=f"{number:032x}",
        hardware=HardwareRecord(device="cpu", name="AVX2", threads=1, gpu_share=0.0, precision="fp32", host="here"),
        data_fingerprint=cell.data_fingerprint, documents_fingerprint=cell.documents_fingerprint,
        encoder_fingerprint=cell.encoder_fingerprint, code_version=code_version(), task_parameters=770,
        started_at=1.7e9 + 40 * (number // 16), seconds=39.0,
    )  # fmt: skip


def seconds_of(*words: str) -> float:
    """Wall seconds of a command of Meltpoint's, its start included."""
    began = time.perf_counter()
    command = [sys.executable, "-c", "from meltpoint.launch import main; main()", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def measure(storage: Path, trials: int) -> Timings:
    """Time the commands."""
    where = (NAME, "--storage", str(storage))
    spec = specification(trials)
    plan = (
        "plan", "--name", NAME, "--encoder", "minilm", "--mode", "fine_tuning", "--task", ",".join(CELLS), "--trials",
        str(spec.trials), "--seeds", "2", "--searcher", "random", "--storage", str(storage),
    )  # fmt: skip
    first, again = seconds_of("status", *where), seconds_of("status", *where)
    return Timings(trials, first, again, seconds_of("report", *where), seconds_of(*plan))


def main() -> None:
    """Make the ledger, time the commands, print the figures."""
    parser = argparse.ArgumentParser(prog="large_ledger", description=__doc__)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--storage", type=Path, help="a folder to keep the ledger in, and to use again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as scratch:
        storage = options.storage or Path(scratch)
        if not (storage / NAME).is_dir():
            make(storage, options.trials)
        print(json.dumps(asdict(measure(storage, options.trials)), indent=1))


if __name__ == "__main__":
    main()
