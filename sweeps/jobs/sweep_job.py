"""Attempts at a sweep on a cluster: sent with its environment, stopped, and asked for the sweep's status."""

from __future__ import annotations

import secrets
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meltpoint.sweeps.jobs.client import (
    CODE,
    ENVIRONMENT,
    STORAGE,
    SWEEP,
    Job,
    JobClient,
    attempts,
    job_name,
    next_number,
)
from meltpoint.sweeps.jobs.packaging import IMAGE, TREE, package_root, write_archive

STOP_WAIT_SECONDS = 60
"""How long Ray waits after SIGTERM before SIGKILL. Its default, 3 s, is less than a sweep needs to keep its state."""

STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
ASKING = ".status."
"""Between the sweep's name and a random number in the name of a short job; no attempt is called so."""

ASK_SECONDS = 120.0
"""Longest wait for a short job; Ray starts one in two to five seconds, later where an archive has to be unpacked."""


@dataclass(frozen=True)
class JobEnvironment:
    """The environment of a job.

    Attributes:
        kind: a word of `packaging.ENVIRONMENTS`.
        wheel: the wheel to take along, if any.
        files: path below the folder in which the command runs → file to take along.
        variables: environment variables. Whoever sees the dashboard's pages or asks its API may read them.
    """

    kind: str = IMAGE
    wheel: Path | None = None
    files: Mapping[str, Path] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    @contextmanager
    def packed(self) -> Iterator[dict[str, Any]]:
        """Ray's `runtime_env`, with an archive that exists inside the context."""
        variables = {**self.variables, STOP_WAIT: str(STOP_WAIT_SECONDS)}
        if self.kind == IMAGE and not self.files:
            yield {"env_vars": variables}
            return
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder) / "meltpoint.zip"
            write_archive(archive, self.tree, self.wheel, self.files)
            yield {"env_vars": variables, "working_dir": str(archive)}

    @property
    def tree(self) -> Path | None:
        """The folder of the package to take along, if any."""
        return package_root() if self.kind == TREE else None


def submit(
    client: JobClient, sweep: str, command: str, storage: str, environment: JobEnvironment, code: str, cpus: float
) -> tuple[str, int]:
    """Send an attempt at a sweep.

    Args:
        command: a line for the cluster's shell.
        storage: the folder of all sweeps there.
        code: the version of the code here, for people who look at the job.
        cpus: CPUs that are reserved for the driver.

    Returns:
        the job's name and the attempt's number.

    Raises:
        ValueError: the last attempt has not ended, or the cluster refuses the job.
    """
    jobs = client.jobs()
    running = [job for job in attempts(sweep, jobs) if not job.is_over]
    if running:
        raise ValueError(
            f"'{sweep}' is under way as {running[-1].name} ({running[-1].status}); `meltpoint logs {sweep} -f` shows "
            f"it, `meltpoint stop {sweep}` ends it."
        )
    number = next_number(sweep, jobs)
    name = job_name(sweep, number)
    facts = {SWEEP: sweep, STORAGE: storage, ENVIRONMENT: environment.kind, CODE: code, "job_name": name}
    with environment.packed() as runtime_env:
        client.submit(name, command, runtime_env, facts, cpus)
    return name, number


def stop(client: JobClient, job: Job) -> Job:
    """Stop a job, and wait until it has ended: its driver keeps its state first.

    Returns:
        the job, which has not ended where that takes longer than Ray waits.
    """
    client.stop(job.name)
    return client.wait(job.name, STOP_WAIT_SECONDS + 30)


@dataclass(frozen=True)
class Answer:
    """What a command said on the cluster.

    Attributes:
        ok: true if it ended with status 0.
        text: all that it printed.
    """

    ok: bool
    text: str


def ask(client: JobClient, sweep: str, words: list[str], environment: JobEnvironment) -> Answer:
    """Run a short command on the cluster as a job of its own.

    It stays on the cluster's list until a later one: Ray enters a job again that is taken off soon after its end.

    Raises:
        ValueError: it has not ended in time, or could not start.
    """
    _forget_answers(client, sweep)
    token = secrets.token_hex(8)
    name = f"{sweep}{ASKING}{token}"
    # Ray's own first line comes into the log at any moment before the command's: so all that is said comes at the end.
    line = f'said=$({shlex.join(words)} 2>&1); status=$?; echo {token}; printf "%s\\n" "$said"; exit $status'
    with environment.packed() as runtime_env:
        client.submit(name, line, runtime_env, {"job_name": name})
    job = client.wait(name, ASK_SECONDS)
    if not job.is_over:
        client.stop(name)
        raise ValueError(f"{client.server.url}: the job {name} has not ended after {ASK_SECONDS:.0f} s; is it full?")
    _, began, text = client.log(name).partition(f"{token}\n")
    if not began:
        raise ValueError(f"{client.server.url}: the job {name} did not start ({' '.join(job.message.split())[:300]}).")
    return Answer(job.status == "SUCCEEDED", text)


def _forget_answers(client: JobClient, sweep: str) -> None:
    """Take the short jobs of earlier questions off the cluster's list."""
    for job in client.jobs():
        if job.name.startswith(f"{sweep}{ASKING}") and job.is_over:
            client.forget(job.name)


def environment_of(job: Job) -> JobEnvironment:
    """An environment in which the status of a job's sweep can be read: the cluster's, or this machine's package."""
    return JobEnvironment(IMAGE if job.metadata.get(ENVIRONMENT, IMAGE) == IMAGE else TREE)
