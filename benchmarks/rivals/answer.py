"""Input and output of a rival's program: a job file and an answer file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from meltpoint.benchmarks.job import Job


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
