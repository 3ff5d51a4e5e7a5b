"""Comparison with Hugging Face's `Trainer.hyperparameter_search` on Ray: the same settings, from command to table.

Both sides run the same job: the same data, settings and epochs. The data is a task without a test split."""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec, Example, Split, Task

RATES = {
    "feature_extraction": (1e-4, 1e-2), "fine_tuning": (2e-5, 3e-4), "stack_and_finetune": (2e-5, 3e-4),
    "lora": (1e-4, 2.5e-3),
}  # fmt: skip
"""Lowest and highest learning rate of each mode: the ranges of the shipped spaces for minilm."""


class Job(BaseModel):
    """The search of one cell: a grid over learning rates with everything else fixed.

    Attributes:
        encoder, mode, task, data_dir, max_train_examples: as on Meltpoint's command line.
        learning_rates: the settings; in `stack_and_finetune`, the second phase's.
        lora_rank, lora_alpha: of the matrices in `lora`.
        stack_epochs, stack_learning_rate: the first phase of `stack_and_finetune`, the same in every setting.
        slots: concurrent trials, with one CPU each.
        gpus_per_trial: as on Meltpoint's command line.
        trainer_gpus: the share of a GPU of each of the rival's trials, where there is a GPU.
        group_by_length: True if the rival groups batches by length, as Meltpoint always does.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    encoder: str
    mode: str
    task: str
    data_dir: str | None
    max_train_examples: int | None
    learning_rates: tuple[float, ...]
    epochs: int = 2
    stack_epochs: int = 2  # half of the shipped space's first choice, to save time
    stack_learning_rate: float = 1e-3  # the best of five in arXiv 1907.05338
    lora_rank: int = 16
    lora_alpha: int = 32
    batch_size: int = 32
    dropout: float = 0.1
    weight_decay: float = 0.01
    gradient_clip: float = 1.0  # the Trainer's default max_grad_norm
    max_pieces: int = 128
    seed: int = 0
    slots: int = 2
    gpus_per_trial: str = "auto"
    trainer_gpus: float = 0.125  # eight trials at once
    group_by_length: bool = False

    def parameters(self) -> dict[str, Any]:
        """Meltpoint's fixed hyperparameters, without `learning_rate`."""
        fixed: dict[str, Any] = {
            "dropout": self.dropout, "weight_decay": self.weight_decay, "gradient_clip": self.gradient_clip,
            "epochs": self.epochs, "batch_size": self.batch_size, "max_pieces": self.max_pieces,
            # The Trainer's default schedule: linear to zero, no warm-up.
            "schedule": "linear_warmup_decay", "linear_warmup_decay.warmup_fraction": 0.0,
        }  # fmt: skip
        if self.mode == "feature_extraction":
            fixed["feature_extraction.layers"] = "top"  # the layer of the rival's head
        else:
            fixed["encoder_dropout"] = self.dropout
        if self.mode == "lora":
            fixed |= {"lora.rank": self.lora_rank, "lora.alpha": self.lora_alpha}
        if self.mode == "stack_and_finetune":
            fixed["stack_and_finetune.stack_epochs"] = self.stack_epochs
            fixed["stack_and_finetune.stack_learning_rate"] = self.stack_learning_rate
        return fixed

    def setting(self, learning_rate: float) -> dict[str, Any]:
        """The setting of one learning rate."""
        return {**self.parameters(), "learning_rate": learning_rate}

    def space(self) -> dict[str, Any]:
        """The grid as a section of a space file."""
        return {"parameters": {**self.parameters(), "learning_rate": {"choice": list(self.learning_rates)}}}


Jobs = Mapping[str, Job]
"""Cell, as `mode, task` → its search. All have the same settings but for mode, task and learning rates."""


def learning_rates(mode: str, count: int) -> tuple[float, ...]:
    """Learning rates, log-uniformly spaced over the mode's range and rounded to four digits."""
    low, high = (math.log(bound) for bound in RATES[mode])
    steps = max(1, count - 1)
    return tuple(float(f"{math.exp(low + (high - low) * index / steps):.4g}") for index in range(count))


class Answer(BaseModel):
    """One side's result of a cell.

    Attributes:
        dev: learning rate → the best epoch's dev score, in the job's order.
        first_began, last_ended: start of the first and end of the last trial, in seconds since 1970.
    """

    model_config = ConfigDict(frozen=True)

    dev: dict[float, float]
    first_began: float
    last_ended: float


def dev_only(job: Job, folder: Path) -> Job:
    """The same job on copies of its train and dev splits, so that its sweep has no test split to score."""
    data = load_training_data(DataSpec(job.task, job.data_dir, job.max_train_examples))
    name = f"{data.task.name}_without_test"
    path = write_task(folder / name, data.task, {"train": data.train, "dev": data.dev}, name)
    return job.model_copy(update={"task": str(path), "data_dir": None, "max_train_examples": None})


def write_task(folder: Path, task: Task, splits: Mapping[Split, Sequence[Example]], name: str) -> Path:
    """Write examples as jsonl with the task file that reads them; return the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, examples in splits.items():
        lines = [json.dumps(row(task, example), ensure_ascii=False) for example in examples]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    labels = {"labels": list(task.labels)} if task.labels else {"range": task.label_range}
    keys = {
        "name": name, "kind": task.kind, "metric": task.metric, "format": "jsonl", **labels,
        "files": {split: f"{split}.jsonl" for split in splits},
        "columns": {column: column for column in kinds.get(task.kind).columns},
    }  # fmt: skip
    path = folder / "task.yaml"
    path.write_text(json.dumps(keys), encoding="utf-8")  # JSON is YAML
    return path


def row(task: Task, example: Example) -> dict[str, object]:
    """An example as a jsonl row: its texts or words, and its label, tags or score."""
    *columns, target = kinds.get(task.kind).columns
    label: object = example.label
    if isinstance(label, tuple) and kinds.get(task.kind).has_labels:
        label = [name for name, has in zip(task.labels, label, strict=True) if has]
    elif isinstance(label, tuple):
        label = [task.labels[one] for one in label]
    elif isinstance(label, int) and task.labels:
        label = task.labels[label]
    read = (list(example.words),) if example.words else example.texts
    return {**dict(zip(columns, read, strict=True)), target: label}


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
    claim: str, rival: str, ours: Callable[[int], Measurement], theirs: Callable[[int], Measurement], repeats: int
) -> Comparison:
    """Run both sides alternately, each round with its number as the seed.

    The first side changes each round, so that a slowing machine favours neither.
    """
    runs: dict[str, list[Measurement]] = {"ours": [], "theirs": []}
    sides = [("ours", ours), ("theirs", theirs)]
    for number in range(repeats):
        for name, side in sides if number % 2 == 0 else reversed(sides):
            runs[name].append(side(number))
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


def compare(jobs: Jobs, repeats: int) -> Comparison:
    """Run both sides alternately."""
    job = next(iter(jobs.values()))
    size = job.max_train_examples or "all"
    claim = f"{len(job.learning_rates)} trials of {'; '.join(jobs)} ({size} training examples), {job.epochs} epochs"
    rival = "Trainer with length grouping" if job.group_by_length else "Trainer"
    with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as folder:
        same = {cell: dev_only(job, Path(folder)) for cell, job in jobs.items()}
        seeded = [{cell: job.model_copy(update={"seed": n}) for cell, job in same.items()} for n in range(repeats)]
        return alternate(
            claim, rival, lambda seed: meltpoint_side(seeded[seed]), lambda seed: rival_side(seeded[seed]), repeats
        )


def meltpoint_side(jobs: Jobs) -> Measurement:
    """Run `meltpoint sweep` as a user would, in a new storage folder: with ledger, MLflow, test scores and exports."""
    with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as folder:
        space, trials = Path(folder) / "space.yaml", Path(folder) / "runs" / "benchmark" / "trials"
        space.write_text(json.dumps({"modes": {job.mode: job.space() for job in jobs.values()}}), encoding="utf-8")
        times = run_timed(sweep_command(list(jobs.values()), space, Path(folder) / "runs"))
        return measurement(*times, {cell: ledger_answer(job, trials) for cell, job in jobs.items()})


def sweep_command(jobs: Sequence[Job], space: Path, storage: Path) -> list[str]:
    """The command line of one sweep over jobs on copies of their splits (`dev_only`)."""
    modes, tasks = dict.fromkeys(job.mode for job in jobs), dict.fromkeys(job.task for job in jobs)
    job = jobs[0]
    return [
        sys.executable, "-m", "meltpoint.launch", "sweep", "--name", "benchmark", "--encoder", job.encoder,
        "--mode", ",".join(modes), "--task", ",".join(tasks), "--head", "linear", "--searcher", "grid",
        "--trials", str(len(job.learning_rates)), "--seeds", "1", "--seed", str(job.seed), "--space", str(space),
        "--no-default-finals", "--storage", str(storage), "--gpus-per-trial", job.gpus_per_trial,
        "--max-dev-examples", "all",
    ]  # fmt: skip


def ledger_answer(job: Job, trials: Path) -> Answer:
    """Read a cell's results from the ledger.

    Raises:
        RuntimeError: a trial failed or is missing, so that the measurement is invalid.
    """
    every = [json.loads(path.read_text(encoding="utf-8")) for path in trials.glob("*.json")]
    cell = ("search", job.mode, Path(job.task).parent.name)
    records = [record for record in every if (record["role"], record["mode"], record["task"]) == cell]
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


def rival_side(jobs: Jobs) -> Measurement:
    """Run the Trainer's program."""
    with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as folder:
        job_file, answer_file = Path(folder) / "job.json", Path(folder) / "answer.json"
        job_file.write_text(json.dumps({cell: job.model_dump() for cell, job in jobs.items()}), encoding="utf-8")
        times = run_timed(
            [sys.executable, "-m", "meltpoint.benchmarks.trainer_search", str(job_file), str(answer_file)]
        )
        answers = json.loads(answer_file.read_text(encoding="utf-8"))
        return measurement(*times, {cell: Answer.model_validate(answer) for cell, answer in answers.items()})


def measurement(began: float, seconds: float, answers: Mapping[str, Answer]) -> Measurement:
    """The figures of one run: its phases, and those of each cell."""
    first = min(answer.first_began for answer in answers.values())
    last = max(answer.last_ended for answer in answers.values())
    return Measurement(seconds, {
        "start-up, s": first - began, "trials, s": last - first, "after the last trial, s": began + seconds - last,
        **{f"{cell}: {name}": one for cell, answer in answers.items() for name, one in figures(answer).items()},
    })  # fmt: skip


def figures(answer: Answer) -> dict[str, float]:
    """A cell's time, and the mean of its dev scores with the standard error."""
    scores = list(answer.dev.values())
    error = statistics.stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else 0.0
    return {
        "trials, s": answer.last_ended - answer.first_began,
        "dev, mean over the settings": statistics.mean(scores), "dev, standard error": error, "dev, best": max(scores),
        **{f"dev, rate {rate:g}": score for rate, score in answer.dev.items() if len(scores) <= 4},
    }  # fmt: skip


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(prog="against_trainer", description=__doc__)
    parser.add_argument("--mode", nargs="+", choices=sorted(RATES), default=["feature_extraction"])
    parser.add_argument("--trials", type=int, default=16, help="settings of each mode and task, the same on both sides")
    parser.add_argument("--learning-rates", type=lambda text: tuple(map(float, text.split(","))),
                        help="the settings, instead of --trials over the mode's range")  # fmt: skip
    parser.add_argument("--repeats", type=int, default=5, help="alternating runs of each side, each with its own seed")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--max-pieces", type=int, default=128)
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--task", nargs="+", default=["sst2"])
    parser.add_argument("--data-dir", type=Path, help="as for `meltpoint sweep`; default: the hub's data")
    parser.add_argument("--max-train-examples", type=int, default=1000)
    parser.add_argument("--group-by-length", action="store_true", help="the Trainer groups its batches by length")
    parser.add_argument("--slots", type=int, default=os.cpu_count() or 1, help="concurrent trials, with one CPU each")
    parser.add_argument("--gpus-per-trial", default="auto", help="Meltpoint's, as for `meltpoint sweep`")
    parser.add_argument("--trainer-gpus", type=float, default=0.125, help="GPUs, if any, of each trial of the Trainer")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output, nothing else")
    options = parser.parse_args()
    if find_spec("accelerate") is None:
        parser.error("the Trainer needs the package accelerate; install it with pip install -e '.[dev]'.")
    jobs = {f"{mode}, {task}": Job(
        encoder=options.encoder, mode=mode, task=task, max_train_examples=options.max_train_examples,
        data_dir=str(options.data_dir.absolute()) if options.data_dir else None, epochs=options.epochs,
        slots=options.slots, learning_rates=options.learning_rates or learning_rates(mode, options.trials),
        group_by_length=options.group_by_length, max_pieces=options.max_pieces, gpus_per_trial=options.gpus_per_trial,
        trainer_gpus=options.trainer_gpus,
    ) for mode in options.mode for task in options.task}  # fmt: skip
    show(compare(jobs, options.repeats), options.json)


if __name__ == "__main__":
    main()
