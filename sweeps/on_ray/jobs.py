"""Jobs of a cluster: its dashboard's address, the attempts at a sweep, and Ray's job client with one-line errors.

Imports Ray only with the first client; an address where nothing listens is refused before that.
"""

from __future__ import annotations

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

from meltpoint.sweeps.machine.services import connection_fault

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient


ADDRESS = "RAY_API_SERVER_ADDRESS"
"""Ray's environment variable for a cluster's job server."""

SWEEP, STORAGE, ENVIRONMENT, CODE = "meltpoint_sweep", "meltpoint_storage", "meltpoint_environment", "meltpoint_code"
"""Keys of a job's metadata. Everyone with access to the dashboard sees it, so it holds no secrets."""

OVER = ("SUCCEEDED", "FAILED", "STOPPED")
"""Ray's states of a job that has ended."""


@dataclass(frozen=True)
class Job:
    """A job, as Ray describes it.

    Attributes:
        name: Ray's submission id.
        status: PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED.
        message: Ray's message about the status.
        metadata: the metadata of its submission.
        exit_code: of its command; None before its end, or if Ray does not know it.
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
        """True if it has ended, in any state."""
        return self.status in OVER


def job_name(sweep: str, number: int) -> str:
    """The name of an attempt's job."""
    return f"{sweep}-{number}"


def number_of(sweep: str, job: str) -> int | None:
    """The attempt's number in a job's name; None if the job is no attempt at this sweep."""
    found = re.fullmatch(re.escape(sweep) + r"-([1-9][0-9]{0,8})", job)
    return int(found[1]) if found else None


def next_number(sweep: str, jobs: Iterable[Job]) -> int:
    """The number of the next attempt: above every taken name, including those of other jobs."""
    return 1 + max((number_of(sweep, job.name) or 0 for job in jobs), default=0)


def attempts(sweep: str, jobs: Iterable[Job]) -> list[Job]:
    """The attempts at a sweep among jobs, in order."""
    mine = [job for job in jobs if job.metadata.get(SWEEP) == sweep and number_of(sweep, job.name)]
    return sorted(mine, key=lambda job: number_of(sweep, job.name) or 0)


def last_attempt(sweep: str, jobs: Iterable[Job]) -> Job:
    """The last attempt at a sweep.

    Raises:
        ValueError: there is none; the message names the existing sweeps.
    """
    jobs = list(jobs)
    mine = attempts(sweep, jobs)
    if not mine:
        known = sorted({job.metadata[SWEEP] for job in jobs if SWEEP in job.metadata})
        hint = f"It has: {', '.join(known)}." if known else "It has none; send one with `meltpoint submit`."
        raise ValueError(f"That cluster has no job of the sweep '{sweep}'. {hint}")
    return mine[-1]


REMEDY = "name the dashboard of the cluster's head, http://HOST:8265 (ray start --head --include-dashboard=true)"
POLL_SECONDS = 0.5
RECONNECT_SECONDS = 60.0
"""Time that a cluster may be unreachable before `follow` gives up."""

FOLLOW_SECONDS = 2.0
"""The pause between two requests for a followed log."""

Write = Callable[[str], None]


# Address, token and connection.


def url_of(address: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """The URL of a cluster's dashboard, from the option or the environment.

    Raises:
        ValueError: neither names one, or the address is of another kind; the message contains no password.
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


def token_of(environment: Mapping[str, str] = os.environ) -> str:
    """Ray's token, looked up where Ray itself does; "" if there is none.

    Raises:
        ValueError: its file cannot be read; the token is not in the message.
    """
    path = Path(environment.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()
    try:
        return (environment.get("RAY_AUTH_TOKEN") or path.read_text(encoding="utf-8")).strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"RAY_AUTH_TOKEN_PATH {path}: cannot be read ({type(error).__name__}).") from None


def _client_of(url: str) -> JobSubmissionClient:
    """Ray's client for a cluster's jobs. A token is sent only to a cluster that asks for it.

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
        return _opened(url, {"Authorization": ""})  # without it, Ray in token mode sends its own token unasked
    except AuthenticationError:
        token = token_of()
    try:
        return _opened(url, {"Authorization": f"Bearer {token}"})
    except AuthenticationError:
        said = "refuses the token that is set here" if token else "asks for a token, but none is set here"
        raise ValueError(f"{url} {said}: set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the cluster's.") from None


def _opened(url: str, headers: dict[str, str]) -> JobSubmissionClient:
    """Ray's client, which first requests the dashboard's version."""
    from ray.job_submission import JobSubmissionClient

    logging.getLogger("ray").setLevel(logging.ERROR)  # it reports every upload and every closed connection
    try:
        with _address(url):
            return JobSubmissionClient(url, headers=headers)
    except (ValueError, LookupError, TypeError):  # the answer is not JSON, or of another form
        raise ValueError(f"{url} answers, but is not a Ray dashboard; {REMEDY}.") from None


@contextmanager
def _address(url: str) -> Iterator[None]:
    """Set the environment variable to the address: Ray's client prefers it to its own argument."""
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
        url: the address of the cluster's dashboard, from `url_of`.

    Raises:
        ValueError: it does not answer or refuses, or Ray's job client is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        with self._in_one_line():
            self._client = _client_of(url)

    def jobs(self) -> list[Job]:
        """All submitted jobs, including ended ones."""
        with self._in_one_line():
            return [_job(details) for details in self._client.list_jobs() if details.submission_id]

    def job(self, name: str) -> Job:
        """The current state of a job."""
        with self._in_one_line():
            return _job(self._client.get_job_info(name))

    def submit(self, name: str, command: str, environment: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
        """Send a job.

        Args:
            name: a name that no job of this cluster had.
            command: a line for the shell of the node that it runs on.
            environment: Ray's `runtime_env`; a local archive in it is uploaded.
            metadata: texts that everyone with access to the dashboard sees.

        Raises:
            ValueError: the cluster refuses the job.
        """
        with self._in_one_line():
            self._client.submit_job(
                entrypoint=command, submission_id=name, runtime_env=dict(environment), metadata=dict(metadata)
            )

    def log(self, name: str) -> str:
        """A job's output so far."""
        with self._in_one_line():
            return self._client.get_job_logs(name)

    def follow(self, name: str, write: Write) -> Job:
        """Write a job's output as it comes, until it has ended.

        Returns:
            the ended job.

        Raises:
            ValueError: the cluster is unreachable for `RECONNECT_SECONDS`.
        """
        seen, deadline = 0, time.monotonic() + RECONNECT_SECONDS
        while True:
            try:
                job = self.job(name)
            except ValueError:
                if time.monotonic() > deadline:
                    raise
            else:
                deadline = time.monotonic() + RECONNECT_SECONDS
                with suppress(ValueError):  # the node that ran it may be gone, and its log with it
                    text = self.log(name)
                    write(text[seen:])
                    seen = max(seen, len(text))
                if job.is_over:
                    return job
            time.sleep(FOLLOW_SECONDS)

    def stop(self, name: str) -> None:
        """Ask a job to end: SIGTERM to its processes, and SIGKILL after the time that its environment sets."""
        with self._in_one_line():
            self._client.stop_job(name)

    def wait(self, name: str, seconds: float) -> Job:
        """A job once it has ended, or its state after `seconds`."""
        deadline = time.monotonic() + seconds
        while not (job := self.job(name)).is_over and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return job

    def forget(self, name: str) -> None:
        """Remove an ended job from the cluster's list; a failure is ignored."""
        with suppress(ValueError), self._in_one_line():
            self._client.delete_job(name)

    @contextmanager
    def _in_one_line(self) -> Iterator[None]:
        """Turn any error of Ray's client into a one-line `ValueError`."""
        try:
            yield
        except ValueError as error:  # Ray's own check of an argument
            raise ValueError(_first_line(error)) from None
        except Exception as error:  # noqa: BLE001 - plain RuntimeErrors, errors from requests, and Ray's own
            if "ray[default]" in str(error):
                raise ValueError('Ray\'s job client is not installed here: pip install "meltpoint[cluster]".') from None
            raise ValueError(f"{self.url}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    """The cause in an error of Ray's client; the last line if it contains a traceback from the cluster."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(". \t")] or [type(error).__name__]
    return (lines[-1] if "Traceback (most recent call last)" in str(error) else lines[0])[:500]


def _job(details: JobDetails) -> Job:
    """A job, from Ray's description."""
    return Job(
        name=details.submission_id or "", status=str(details.status.value), message=details.message or "",
        metadata=details.metadata or {}, exit_code=details.driver_exit_code,
        started=_seconds(details.start_time), ended=_seconds(details.end_time),
    )  # fmt: skip


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
