"""Comparison of whole searches: Meltpoint's command against a rival's program, from process start to exit."""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from meltpoint.benchmarks.alternation import Comparison, Measurement, alternate, show
from meltpoint.benchmarks.dev_only import dev_only
from meltpoint.benchmarks.job import Job, add_arguments, job_of
from meltpoint.benchmarks.processes import Finished, run_timed
from meltpoint.benchmarks.rivals.answer import Answer

MIB = 2**20


def compare(job: Job, module: str, rival: str, repeats: int, with_test: bool = False) -> Comparison:
    """Run both sides alternately.

    Args:
        module: the rival's module in `meltpoint.benchmarks.rivals`.
        rival: its name in the output.
        with_test: True if Meltpoint also scores the task's test split, which no rival does.
    """
    size = "all" if job.max_train_examples is None else str(job.max_train_examples)
    claim = f"{len(job.learning_rates)} trials, {job.mode}, {job.task} ({size} training examples), {job.epochs} epochs"
    grouping = " with length grouping" if job.group_by_length else ""
    if with_test:
        return alternate(claim, rival + grouping, lambda: meltpoint_side(job), lambda: rival_side(job, module), repeats)
    with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as folder:
        same = dev_only(job, Path(folder))
        return alternate(
            claim, rival + grouping, lambda: meltpoint_side(same), lambda: rival_side(same, module), repeats
        )  # fmt: skip


def meltpoint_side(job: Job, environment: Mapping[str, str] | None = None) -> Measurement:
    """Run `meltpoint sweep` as a user would, in a new storage folder: with ledger, MLflow, test scores and exports.

    Args:
        environment: variables that are set for it, beside this process's.
    """
    with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as folder:
        space = Path(folder) / "space.yaml"
        space.write_text(job.space(), encoding="utf-8")
        finished = run_timed(sweep_command(job, space, Path(folder) / "runs"), environment)
        return measurement(finished, ledger_answer(job, Path(folder) / "runs" / "benchmark" / "trials"))


def sweep_command(job: Job, space: Path, storage: Path) -> list[str]:
    """The command line of a job."""
    data = ["--data-dir", job.data_dir] if job.data_dir else []
    size = ["--max-train-examples", str(job.max_train_examples)] if job.max_train_examples else []
    return [
        sys.executable, "-m", "meltpoint.launch", "sweep", "--name", "benchmark", "--encoder", job.encoder,
        "--mode", job.mode, "--task", job.task, "--head", "linear", "--trials", str(len(job.learning_rates)),
        "--searcher", "grid", "--seeds", "1", "--seed", str(job.seed), "--space", str(space),
        "--no-default-finals", "--storage", str(storage), "--gpus-per-trial", "0", *data, *size,
    ]  # fmt: skip


def ledger_answer(job: Job, trials: Path) -> Answer:
    """Read the search's results from the ledger.

    Raises:
        RuntimeError: a trial failed or is missing, so that the measurement is invalid.
    """
    every = [json.loads(path.read_text(encoding="utf-8")) for path in trials.glob("*.json")]
    records = [record for record in every if record["role"] == "search"]
    unfinished = [record for record in records if record["status"] != "finished"]
    if unfinished or len(records) != len(job.learning_rates):
        errors = "; ".join(str(record["error"]) for record in unfinished) or "some are missing"
        raise RuntimeError(f"{len(records) - len(unfinished)} of {len(job.learning_rates)} trials finished: {errors}")
    dev = {record["setting"]["learning_rate"]: record["dev"] for record in records}
    return Answer(
        dev={rate: dev[rate] for rate in job.learning_rates},
        first_began=min(record["started_at"] for record in records),
        last_ended=max(record["started_at"] + record["seconds"] for record in records),
    )


def rival_side(job: Job, module: str) -> Measurement:
    """Run the rival's program."""
    with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as folder:
        job_file, answer_file = Path(folder) / "job.json", Path(folder) / "answer.json"
        job_file.write_text(job.model_dump_json(), encoding="utf-8")
        program = f"meltpoint.benchmarks.rivals.{module}"
        finished = run_timed([sys.executable, "-m", program, str(job_file), str(answer_file)])
        return measurement(finished, Answer.model_validate_json(answer_file.read_text(encoding="utf-8")))


def measurement(finished: Finished, answer: Answer) -> Measurement:
    """The figures of one run: its phases, its memory, and the mean of its dev scores with the standard error."""
    scores = list(answer.dev.values())
    error = statistics.stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else 0.0
    return Measurement(
        finished.seconds,
        {
            "start-up, s": answer.first_began - finished.began,
            "trials, s": answer.last_ended - answer.first_began,
            "after the last trial, s": finished.began + finished.seconds - answer.last_ended,
            "processor time, s": finished.cpu_seconds,
            "peak memory, MiB": finished.peak_bytes / MIB,
            "dev, mean over the settings": statistics.mean(scores),
            "dev, standard error": error,
            "dev, best": max(scores),
        },
    )


def command(prog: str, description: str | None, module: str, rival: str) -> None:
    """The command line of a comparison, with the options that all comparisons share."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    add_arguments(parser)
    options = parser.parse_args()
    show(compare(job_of(options), module, rival, options.repeats), options.json)
