"""How a rival takes its job and hands its results back."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from meltpoint.benchmarks.job import Job


class Answer(BaseModel):
    """What one side of a comparison found.

    Attributes:
        dev: learning rate → the best epoch's dev score, in the job's order.
        first_began, last_ended: of its trials, in seconds since 1970.
    """

    model_config = ConfigDict(frozen=True)

    dev: dict[float, float]
    first_began: float
    last_ended: float


def answer(search: Callable[[Job], Answer]) -> None:
    """The rival's whole program: `python -m RIVAL JOB.json ANSWER.json`; it ends with its table, as a search does."""
    job_file, answer_file = (Path(word) for word in sys.argv[1:3])
    found = search(Job.model_validate_json(job_file.read_text(encoding="utf-8")))
    for rate, score in found.dev.items():
        print(f"{rate:10.4g}  {score:.4f}")
    answer_file.write_text(json.dumps(found.model_dump()), encoding="utf-8")
