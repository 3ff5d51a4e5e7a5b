"""Timing of commands on a ledger of 100 000 trials: `status`, `report` and `plan`, the first step of resuming.

The ledger itself writes the records, with settings drawn from the space; nothing is trained. The goals bound CPU time:
30 s for `status`, 60 s for `report` and `plan`. The exit status is 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from meltpoint.adapters.settings import complete
from meltpoint.adapters.training.epochs import EpochResult
from meltpoint.sweeps.driver.start import settle_specification
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import HardwareRecord, TrialRecord
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import OpenCell, open_cells
from meltpoint.sweeps.specification.provenance import code_version
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.storage.files import storage_folder

NAME, EPOCHS, CELLS = "large", 3, ("demo_sentiment", "demo_entailment")


GOALS = {"status": 30.0, "report": 60.0, "plan": 60.0}
"""Command → its limit in CPU seconds, on 100 000 trials."""


def missed(seconds: Mapping[str, float]) -> list[str]:
    """The commands that miss their goal."""
    return [command for command, taken in seconds.items() if taken > GOALS[command]]


def specification(trials: int, encoder: str) -> SweepSpec:
    """A sweep of two cells."""
    return SweepSpec(
        name=NAME, encoders=(encoder,), modes=("fine_tuning",), tasks=CELLS, trials=trials // len(CELLS) + 1, seeds=2,
        searcher="random",
    )  # fmt: skip


def make(storage: Path, trials: int, encoder: str) -> None:
    """Write a ledger of `trials` ended trials: one in fifty failed, one in ten stopped."""
    spec = specification(trials, encoder)
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
        EpochResult(
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


def cost_of(words: Sequence[str]) -> float:
    """The CPU seconds of one of Meltpoint's commands, user and system time with start-up."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", "from meltpoint.launch import main; main()", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def words_of(command: str, storage: Path, trials: int, encoder: str) -> list[str]:
    """The arguments of a command, as a user types them."""
    if command != "plan":
        return [command, NAME, "--storage", str(storage)]
    return [
        "plan", "--name", NAME, "--encoder", encoder, "--mode", "fine_tuning", "--task", ",".join(CELLS), "--trials",
        str(specification(trials, encoder).trials), "--seeds", "2", "--searcher", "random", "--storage", str(storage),
        "--no-default-finals",
    ]  # fmt: skip


def main() -> None:
    """Make the ledger, time the commands, print the figures."""
    parser = argparse.ArgumentParser(prog="large_ledger", description=__doc__)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--storage", type=Path, help="folder that keeps the ledger for reuse")
    parser.add_argument("--encoder", default="minilm", help="not loaded; its files are only hashed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as scratch:
        storage = options.storage or Path(scratch)
        if not (storage / NAME).is_dir():
            make(storage, options.trials, options.encoder)
        seconds = {name: cost_of(words_of(name, storage, options.trials, options.encoder)) for name in GOALS}
    print(json.dumps({"trials": options.trials, "cpu_seconds": seconds}, indent=1))
    sys.exit(1 if missed(seconds) else 0)


if __name__ == "__main__":
    main()
