"""Jobs of a cluster: the way to its dashboard, the attempts at a sweep, and Ray's client of jobs in one-line errors.

Imports Ray with the first client alone: an address where nothing listens is refused before.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from meltpoint.sweeps.jobs import ADDRESS
from meltpoint.sweeps.machine.services import connection_fault

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient


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


REMEDY = "name the dashboard of the cluster's head, http://HOST:8265 (ray start --head --include-dashboard=true)"
POLL_SECONDS = 0.5
RECONNECT_SECONDS = 60.0
"""How long a cluster may be out of reach before following a log ends."""

AGENT_SECONDS = 30.0
"""How long a head that has just begun may refuse jobs."""

QUIET_SECONDS = 60.0
"""Seconds of silence after which a log is requested again, since its connection may be gone."""

Write = Callable[[str], None]


# The way to a cluster.


def url_of(address: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """The URL of a cluster's dashboard, by the option or the environment.

    Raises:
        ValueError: neither names one, or it is another kind of address; the message contains no password.
    """
    ray_address = environment.get("RAY_ADDRESS", "")
    text = address or environment.get(ADDRESS) or (ray_address if ray_address.startswith("http") else "")
    if not text:
        raise ValueError(f"--address is missing: write http://HOST:8265, the cluster's dashboard, or set {ADDRESS}.")
    if "@" in text:
        raise ValueError("--address: write it without user and password; Ray's own token is RAY_AUTH_TOKEN.")
    url = (text if "://" in text else f"http://{text}").rstrip("/")
    if not re.fullmatch(r"https?://([\w.-]+|\[[0-9a-fA-F:]+\])(:\d+)?(/[^?#]*)?", url):
        raise ValueError(f"--address {text}: write http://HOST:8265, the cluster's dashboard, which takes jobs.")
    return url


def token_of(environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """The place of Ray's token here, and the token: from where Ray itself reads it; ("", "") if there is none.

    Raises:
        ValueError: the file cannot be read; the token is not in the message.
    """
    if environment.get("RAY_AUTH_TOKEN"):
        return "RAY_AUTH_TOKEN", environment["RAY_AUTH_TOKEN"].strip()
    named = environment.get("RAY_AUTH_TOKEN_PATH")
    path = Path(named).expanduser() if named else Path.home() / ".ray" / "auth_token"
    if not named and not path.is_file():
        return "", ""
    try:
        return str(path), path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"RAY_AUTH_TOKEN_PATH {path}: cannot be read ({type(error).__name__}).") from None


def _client_of(url: str) -> JobSubmissionClient:
    """Ray's client of a cluster's jobs. A token is sent only to a cluster that asks for it.

    Raises:
        ValueError: nothing listens there, or the cluster refuses the token; one line with the remedy.
    """
    parts = urlsplit(url)
    if parts.scheme not in getproxies():
        fault = connection_fault(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
        if fault:
            raise ValueError(f"{url} does not answer ({fault}); {REMEDY}.")
    from ray.exceptions import AuthenticationError

    try:
        return _opened(url, {"Authorization": ""})  # left out, Ray would send its own token unasked in token mode
    except AuthenticationError:
        where, token = token_of()
    if not token:
        raise ValueError(
            f"{url} asks for a token, and there is none here: set RAY_AUTH_TOKEN to the cluster's, or "
            f"RAY_AUTH_TOKEN_PATH to a file with it."
        )
    try:
        return _opened(url, {"Authorization": f"Bearer {token}"})
    except AuthenticationError:
        raise ValueError(f"{url} refuses the token of {where}; put the cluster's own there.") from None


def _opened(url: str, headers: dict[str, str]) -> JobSubmissionClient:
    """Ray's client, which asks the dashboard for its version first."""
    from ray.job_submission import JobSubmissionClient

    for name in ("dashboard_sdk", "job.sdk"):  # they report every upload and every closed connection
        logging.getLogger(f"ray.dashboard.modules.{name}").setLevel(logging.ERROR)
    try:
        with _address(url):
            return JobSubmissionClient(url, headers=headers)
    except (ValueError, LookupError, TypeError):  # the answer is no JSON, or another one
        raise ValueError(f"{url} answers, but is no Ray dashboard; {REMEDY}.") from None


@contextmanager
def _address(url: str) -> Iterator[None]:
    """Let the environment name the address: where it names another, Ray's client prefers that to its argument."""
    before = os.environ.get(ADDRESS)
    os.environ[ADDRESS] = url
    try:
        yield
    finally:
        if before is None:
            del os.environ[ADDRESS]
        else:
            os.environ[ADDRESS] = before


class JobClient:
    """The jobs of one cluster.

    Args:
        url: the address of the cluster's dashboard, as from `url_of`.

    Raises:
        ValueError: it does not answer or refuses, or the parts of Ray that talk to it are not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        with self._in_one_line():
            self._client = _client_of(url)

    def jobs(self) -> list[Job]:
        """All jobs that were submitted, those that ended too."""
        with self._in_one_line():
            return [_job(details) for details in self._client.list_jobs() if details.submission_id]

    def job(self, name: str) -> Job:
        """A job as it is now."""
        with self._in_one_line():
            return _job(self._client.get_job_info(name))

    def submit(
        self, name: str, command: str, environment: Mapping[str, Any], metadata: Mapping[str, str], cpus: float = 0.0
    ) -> None:
        """Send a job.

        Args:
            name: a name that no job of this cluster had.
            command: a line for the shell of the node that it runs on.
            environment: Ray's `runtime_env`; a local archive in it is sent along.
            metadata: texts that everybody who sees the dashboard sees.
            cpus: CPUs that are reserved for the command; 0 runs it on the head without any.

        Raises:
            ValueError: the cluster refuses it.
        """
        with self._in_one_line():
            send = functools.partial(
                self._client.submit_job, entrypoint=command, submission_id=name, runtime_env=dict(environment),
                metadata=dict(metadata), entrypoint_num_cpus=cpus or None,
            )  # fmt: skip
            deadline = time.monotonic() + AGENT_SECONDS
            while not _sent(send, time.monotonic() > deadline):
                time.sleep(POLL_SECONDS)

    def log(self, name: str) -> str:
        """All that a job has printed so far."""
        with self._in_one_line():
            return self._client.get_job_logs(name)

    def follow(self, name: str, write: Write) -> Job:
        """Write what a job prints as it comes, until it has ended; each character once, also where a connection broke.

        Returns:
            the job, which has ended.

        Raises:
            ValueError: the cluster is out of reach for `RECONNECT_SECONDS`.
        """
        seen = 0
        while True:
            seen = self._follow_once(name, seen, write)
            job = self._patiently(lambda: self.job(name))
            with suppress(ValueError):  # the node that ran it may be gone, and its log with it
                text = self.log(name)  # whole if the job is over, and all there is where a proxy lets no stream pass
                write(text[seen:])
                seen = max(seen, len(text))
            if job.is_over:
                return job
            time.sleep(POLL_SECONDS)

    def _follow_once(self, name: str, seen: int, write: Write) -> int:
        """Write what a job prints after its first `seen` characters until the connection ends; how many are seen."""
        from aiohttp import ClientError

        count = 0

        async def read() -> None:
            nonlocal count
            lines = self._client.tail_job_logs(name)
            while (text := await asyncio.wait_for(anext(lines, None), QUIET_SECONDS)) is not None:
                write(text[max(0, seen - count) :])
                count += len(text)

        with suppress(RuntimeError, ClientError, OSError):  # the caller asks how the job is
            asyncio.run(read())
        return max(seen, count)

    def _patiently(self, ask: Callable[[], Job]) -> Job:
        """The answer to a question, which is asked again while the cluster is out of reach."""
        deadline = time.monotonic() + RECONNECT_SECONDS
        while True:
            try:
                return ask()
            except ValueError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(POLL_SECONDS)

    def stop(self, name: str) -> None:
        """Ask a job to end: SIGTERM to its processes, and SIGKILL after the time that its environment sets."""
        with self._in_one_line():
            self._client.stop_job(name)

    def wait(self, name: str, seconds: float) -> Job:
        """A job once it has ended, or as it is after so long."""
        deadline = time.monotonic() + seconds
        while not (job := self.job(name)).is_over and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return job

    def forget(self, name: str) -> None:
        """Take a job that has ended off the cluster's list; no harm where it is still there afterwards."""
        with suppress(ValueError), self._in_one_line():
            self._client.delete_job(name)

    @contextmanager
    def _in_one_line(self) -> Iterator[None]:
        """Turn what Ray's client raises into a `ValueError` of one line."""
        try:
            yield
        except ValueError as error:  # Ray's own check of an argument
            raise ValueError(_first_line(error)) from None
        except Exception as error:  # noqa: BLE001 - plain RuntimeErrors, errors of requests, and Ray's own
            if "ray[default]" in str(error):
                raise ValueError('Ray\'s job client is not installed here: pip install "meltpoint[cluster]".') from None
            raise ValueError(f"{self.url}: {_first_line(error)}") from None


def _sent(send: Callable[[], str], is_last: bool) -> bool:
    """True if a job was sent; False where the head has just begun, and the part that takes jobs is not up."""
    try:
        send()
    except RuntimeError as error:
        if is_last or "No available agent" not in str(error):
            raise
        return False
    return True


def _first_line(error: Exception) -> str:
    """The cause in an error of Ray's client; where it holds a traceback of the cluster, that is its last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(". \t")] or [type(error).__name__]
    return (lines[-1] if "Traceback (most recent call last)" in str(error) else lines[0])[:500]


def _job(details: JobDetails) -> Job:
    """A job from Ray's description of it."""
    return Job(
        name=details.submission_id or "", status=str(details.status.value), message=details.message or "",
        metadata=details.metadata or {}, exit_code=details.driver_exit_code,
        started=_seconds(details.start_time), ended=_seconds(details.end_time),
    )  # fmt: skip


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
