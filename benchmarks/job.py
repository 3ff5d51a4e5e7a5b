"""The job that both sides of a comparison run: the same data, settings and epochs.

The data is a task without a test split, so both sides do the same work."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec, Example, Split, Task

RATES = {
    "feature_extraction": (1e-4, 1e-2), "fine_tuning": (2e-5, 3e-4), "stack_and_finetune": (2e-5, 3e-4),
    "lora": (1e-4, 5e-3),
}  # fmt: skip
"""Lowest and highest learning rate of each mode: the ranges of the shipped spaces for minilm."""


class Job(BaseModel):
    """A whole search: a grid over learning rates with everything else fixed.

    Attributes:
        encoder, mode, task, data_dir, max_train_examples: as on Meltpoint's command line.
        learning_rates: the settings; in `stack_and_finetune`, the second phase's.
        lora_rank, lora_alpha: of the matrices in `lora`.
        stack_epochs, stack_learning_rate: the first phase of `stack_and_finetune`, the same in every setting.
        slots: concurrent trials, with one CPU each.
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

    def space(self) -> str:
        """The grid as a space file (JSON, which is YAML)."""
        return json.dumps({"parameters": {**self.parameters(), "learning_rate": {"choice": list(self.learning_rates)}}})


def learning_rates(mode: str, count: int) -> tuple[float, ...]:
    """Learning rates, log-uniformly spaced over the mode's range and rounded to four digits."""
    low, high = (math.log(bound) for bound in RATES[mode])
    steps = max(1, count - 1)
    return tuple(float(f"{math.exp(low + (high - low) * index / steps):.4g}") for index in range(count))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that all comparisons share."""
    parser.add_argument("--mode", choices=sorted(RATES), default="feature_extraction")
    parser.add_argument("--trials", type=int, default=16, help="number of settings, the same for both sides")
    parser.add_argument("--repeats", type=int, default=5, help="alternating runs of each side")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--max-pieces", type=int, default=128)
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--task", default="sst2")
    parser.add_argument("--data-dir", type=Path, help="as for `meltpoint sweep`; default: the hub's data")
    parser.add_argument("--max-train-examples", type=int, default=1000)
    parser.add_argument("--group-by-length", action="store_true", help="the Trainer groups its batches by length")
    parser.add_argument("--slots", type=int, default=os.cpu_count() or 1, help="concurrent trials, with one CPU each")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output, nothing else")


def job_of(options: argparse.Namespace) -> Job:
    """Build the job from the options."""
    return Job(
        encoder=options.encoder, mode=options.mode, task=options.task, max_train_examples=options.max_train_examples,
        data_dir=str(options.data_dir.absolute()) if options.data_dir else None, epochs=options.epochs,
        slots=options.slots, learning_rates=learning_rates(options.mode, options.trials),
        group_by_length=options.group_by_length, max_pieces=options.max_pieces,
    )  # fmt: skip


class Answer(BaseModel):
    """The result of one side of a comparison.

    Attributes:
        dev: learning rate → the best epoch's dev score, in the job's order.
        first_began, last_ended: start of the first and end of the last trial, in seconds since 1970.
    """

    model_config = ConfigDict(frozen=True)

    dev: dict[float, float]
    first_began: float
    last_ended: float


def answer(search: Callable[[Job], Answer]) -> None:
    """The main function of a rival: `python -m RIVAL JOB.json ANSWER.json`; it prints a table like a search."""
    job_file, answer_file = (Path(argument) for argument in sys.argv[1:3])
    result = search(Job.model_validate_json(job_file.read_text(encoding="utf-8")))
    for rate, score in result.dev.items():
        print(f"{rate:10.4g}  {score:.4f}")
    answer_file.write_text(json.dumps(result.model_dump()), encoding="utf-8")


def dev_only(job: Job, folder: Path) -> Job:
    """The same job on copies of its train and dev splits, so that its sweep has no test split to score."""
    data = load_training_data(DataSpec(job.task, job.data_dir, job.max_train_examples))
    path = write_task(folder, data.task, {"train": data.train, "dev": data.dev}, f"{data.task.name}_without_test")
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
