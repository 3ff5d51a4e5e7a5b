"""A job's data as a task without a test split, so that both sides of a comparison do the same work."""

from __future__ import annotations

import json
from pathlib import Path

from meltpoint.benchmarks.job import Job
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec, Example, Task


def dev_only(job: Job, folder: Path) -> Job:
    """The same job on copies of its train and dev split; so a sweep of it has no test split to score."""
    data = load_training_data(DataSpec(job.task, job.data_dir, job.max_train_examples))
    for name, examples in (("train", data.train), ("dev", data.dev)):
        lines = [json.dumps(row(data.task, example), ensure_ascii=False) for example in examples]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    task = {
        "name": f"{data.task.name}_without_test", "kind": data.task.kind, "metric": data.task.metric,
        "files": {"train": "train.jsonl", "dev": "dev.jsonl"}, "format": "jsonl",
        "columns": {"text": "text", "label": "label"}, "labels": list(data.task.labels),
    }  # fmt: skip
    path = folder / "task.yaml"
    path.write_text(json.dumps(task), encoding="utf-8")  # JSON is YAML
    return job.model_copy(update={"task": str(path), "data_dir": None, "max_train_examples": None})


def row(task: Task, example: Example) -> dict[str, str]:
    """A sentence and the name of its label, as a jsonl row."""
    assert isinstance(example.label, int), "a task of single sentences with classes"
    return {"text": example.texts[0], "label": task.labels[example.label]}
