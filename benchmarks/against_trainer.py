"""Comparison with Hugging Face's `Trainer.hyperparameter_search` on Ray: the same settings, from command to table."""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from meltpoint.benchmarks.job import Answer, Job, add_arguments, dev_only, job_of


@dataclass(frozen=True)
class Measurement:
    """One run of one side.

    Attributes:
        seconds: wall time.
        details: further figures of the run, by name.
    """

    seconds: float
    details: dict[str, float]


@dataclass(frozen=True)
class Comparison:
    """The results of alternating runs.

    Attributes:
        claim: a description of the comparison.
        rival: the other side's name.
        ours, theirs: the runs in order; run i of one side is next to run i of the other.
        ratio: of neighbouring runs, `spread`; above 1 means that Meltpoint is faster.
    """

    claim: str
    rival: str
    ours: list[Measurement]
    theirs: list[Measurement]
    ratio: dict[str, float]


def spread(values: list[float]) -> dict[str, float]:
    """Median, lowest and highest of a figure over several runs."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def alternate(
    claim: str, rival: str, ours: Callable[[], Measurement], theirs: Callable[[], Measurement], repeats: int
) -> Comparison:
    """Run both sides alternately; the first side changes each round, so that a slowing machine favours neither."""
    runs: dict[str, list[Measurement]] = {"ours": [], "theirs": []}
    sides = [("ours", ours), ("theirs", theirs)]
    for number in range(repeats):
        for name, side in sides if number % 2 == 0 else reversed(sides):
            runs[name].append(side())
            label = "meltpoint" if name == "ours" else rival
            print(f"{number + 1}/{repeats}  {label}: {runs[name][-1].seconds:.1f} s", file=sys.stderr)
    ratios = [b.seconds / a.seconds for a, b in zip(runs["ours"], runs["theirs"], strict=True)]
    return Comparison(claim, rival, runs["ours"], runs["theirs"], spread(ratios))


def show(comparison: Comparison, as_json: bool) -> None:
    """Print a comparison: one JSON document, or a few lines."""
    if as_json:
        print(json.dumps(asdict(comparison), indent=1, ensure_ascii=False))
        return
    text = "{median:.3g} ({low:.3g} – {high:.3g})"
    print(f"{comparison.claim}; median of {len(comparison.ours)} alternating runs (lowest – highest)")
    print(f"  ratio  {text.format(**comparison.ratio)}")
    for side, runs in (("meltpoint", comparison.ours), (comparison.rival, comparison.theirs)):
        print(f"  {side}  {text.format(**spread([run.seconds for run in runs]))} s")
        for name in runs[0].details:
            print(f"    {name}: {text.format(**spread([run.details[name] for run in runs]))}")


def run_timed(command: Sequence[str]) -> tuple[float, float]:
    """Run a command and wait for its end: its start in seconds since 1970, and its wall time in seconds.

    Raises:
        RuntimeError: it failed; the message has the end of its standard error.
    """
    began, started = time.time(), time.perf_counter()
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} … ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return began, seconds


def compare(job: Job, repeats: int) -> Comparison:
    """Run both sides alternately."""
    size = "all" if job.max_train_examples is None else str(job.max_train_examples)
    claim = f"{len(job.learning_rates)} trials, {job.mode}, {job.task} ({size} training examples), {job.epochs} epochs"
    rival = "Trainer with length grouping" if job.group_by_length else "Trainer"
    with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as folder:
        same = dev_only(job, Path(folder))
        return alternate(claim, rival, lambda: meltpoint_side(same), lambda: rival_side(same), repeats)


def meltpoint_side(job: Job) -> Measurement:
    """Run `meltpoint sweep` as a user would, in a new storage folder: with ledger, MLflow, test scores and exports."""
    with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as folder:
        space = Path(folder) / "space.yaml"
        space.write_text(job.space(), encoding="utf-8")
        times = run_timed(sweep_command(job, space, Path(folder) / "runs"))
        return measurement(*times, ledger_answer(job, Path(folder) / "runs" / "benchmark" / "trials"))


def sweep_command(job: Job, space: Path, storage: Path) -> list[str]:
    """The command line of a job."""
    data = ["--data-dir", job.data_dir] if job.data_dir else []
    size = ["--max-train-examples", str(job.max_train_examples)] if job.max_train_examples else []
    return [
        sys.executable, "-m", "meltpoint.launch", "sweep", "--name", "benchmark", "--encoder", job.encoder,
        "--mode", job.mode, "--task", job.task, "--head", "linear", "--trials", str(len(job.learning_rates)),
        "--searcher", "grid", "--seeds", "1", "--seed", str(job.seed), "--space", str(space),
        "--no-default-finals", "--storage", str(storage), "--gpus-per-trial", "0", "--max-dev-examples", "all", *data,
        *size,
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


def rival_side(job: Job) -> Measurement:
    """Run the Trainer's program."""
    with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as folder:
        job_file, answer_file = Path(folder) / "job.json", Path(folder) / "answer.json"
        job_file.write_text(job.model_dump_json(), encoding="utf-8")
        times = run_timed(
            [sys.executable, "-m", "meltpoint.benchmarks.trainer_search", str(job_file), str(answer_file)]
        )
        return measurement(*times, Answer.model_validate_json(answer_file.read_text(encoding="utf-8")))


def measurement(began: float, seconds: float, answer: Answer) -> Measurement:
    """The figures of one run: its phases, and the mean of its dev scores with the standard error."""
    scores = list(answer.dev.values())
    error = statistics.stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else 0.0
    return Measurement(seconds, {
        "start-up, s": answer.first_began - began,
        "trials, s": answer.last_ended - answer.first_began,
        "after the last trial, s": began + seconds - answer.last_ended,
        "dev, mean over the settings": statistics.mean(scores), "dev, standard error": error, "dev, best": max(scores),
    })  # fmt: skip


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(prog="against_trainer", description=__doc__)
    add_arguments(parser)
    options = parser.parse_args()
    if find_spec("accelerate") is None:
        parser.error("the Trainer needs the package accelerate; install it with pip install -e '.[dev]'.")
    show(compare(job_of(options), options.repeats), options.json)


if __name__ == "__main__":
    main()
