"""Attempts at a sweep: one Ray job each, named by the sweep and a number, since Ray refuses a name that was used."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

SWEEP, STORAGE, ENVIRONMENT, CODE = "meltpoint_sweep", "meltpoint_storage", "meltpoint_environment", "meltpoint_code"
"""Keys of the metadata of a job; whoever sees the dashboard sees them, so nothing secret is among them."""

OVER = ("SUCCEEDED", "FAILED", "STOPPED")
"""States of Ray in which a job has ended."""


@dataclass(frozen=True)
class Job:
    """A job, as Ray has it.

    Attributes:
        name: Ray's submission id.
        status: PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED.
        message: Ray's words about the status.
        metadata: what it was submitted with.
        exit_code: of its command; None before it ended, and where Ray does not know it.
        started, ended: seconds since 1970, or None.
    """

    name: str
    status: str
    message: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    exit_code: int | None = None
    started: float | None = None
    ended: float | None = None

    @property
    def is_over(self) -> bool:
        """True if it has ended, however."""
        return self.status in OVER


def job_name(sweep: str, number: int) -> str:
    """The name of the job of an attempt."""
    return f"{sweep}-{number}"


def number_of(sweep: str, job: str) -> int | None:
    """The attempt's number in a job's name; None if the name is no attempt's at this sweep."""
    found = re.fullmatch(re.escape(sweep) + r"-([1-9][0-9]{0,8})", job)
    return int(found[1]) if found else None


def next_number(sweep: str, jobs: Iterable[Job]) -> int:
    """The number of the next attempt: above every name that is taken, also by jobs that are no sweeps."""
    return 1 + max((number_of(sweep, job.name) or 0 for job in jobs), default=0)


def attempts(sweep: str, jobs: Iterable[Job]) -> list[Job]:
    """The attempts at a sweep among jobs, the first one first."""
    mine = [job for job in jobs if job.metadata.get(SWEEP) == sweep and number_of(sweep, job.name)]
    return sorted(mine, key=lambda job: number_of(sweep, job.name) or 0)


def last_attempt(sweep: str, jobs: Iterable[Job], number: int | None = None) -> Job:
    """The last attempt at a sweep, or that of a number.

    Raises:
        ValueError: there is none; the message names the sweeps or the numbers that there are.
    """
    jobs = list(jobs)
    mine = attempts(sweep, jobs)
    if not mine:
        known = sorted({job.metadata[SWEEP] for job in jobs if SWEEP in job.metadata})
        hint = f"It has: {', '.join(known)}." if known else "It has none; send one with `meltpoint submit`."
        raise ValueError(f"That cluster has no job of a sweep '{sweep}'. {hint}")
    if number is None:
        return mine[-1]
    chosen = [job for job in mine if number_of(sweep, job.name) == number]
    if not chosen:
        numbers = ", ".join(str(number_of(sweep, job.name)) for job in mine)
        raise ValueError(f"--attempt {number}: the attempts at '{sweep}' are {numbers}.")
    return chosen[0]
