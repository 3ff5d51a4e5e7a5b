"""Attempts at a sweep on a cluster: packed, sent, stopped, and the status of their sweep.

A job's working folder gets this machine's package as `meltpoint/`, if it is sent: Python finds it there first.
"""

from __future__ import annotations

import secrets
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import meltpoint
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

IMAGE, TREE = "image", "tree"

LEFT_OUT = {"build", "dist", "runs", "mlruns", "mlflow.db", "shared"}
"""Files that are built or kept next to the code in a checkout."""


def copy_tree(root: Path, target: Path) -> None:
    """Copy the files of a package's folder that belong to a job.

    Leaves out hidden files, links, files that are built or kept next to the code, and Python environments.
    """

    def left_out(folder: str, names: list[str]) -> set[str]:
        is_top = Path(folder) == root
        if not is_top and "pyvenv.cfg" in names:
            return set(names)
        made = {"__pycache__", "node_modules"} | (LEFT_OUT if is_top else set())
        paths = [Path(folder, name) for name in names]
        return {
            path.name for path in paths
            if path.name.startswith(".") or path.name in made or path.suffix in (".egg-info", ".pyc")
            or path.is_symlink() or not (path.is_file() or path.is_dir())  # a pipe would never end
        }  # fmt: skip

    shutil.copytree(root, target, ignore=left_out)


STOP_WAIT_SECONDS = 60
"""Time between Ray's SIGTERM and SIGKILL. Its default, 3 s, is less than a sweep needs to save its state."""

STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
ASKING = ".status."
"""The infix between the sweep's name and a random number in the name of a short job; no attempt has it."""

ASK_SECONDS = 120.0
"""Longest wait for a short job; Ray starts one in two to five seconds, or later if it must unpack an archive."""


@dataclass(frozen=True)
class JobEnvironment:
    """The environment of a job.

    Attributes:
        kind: `IMAGE` for the cluster's Meltpoint, or `TREE` for this one.
        files: path below the command's working folder → file to include.
        variables: environment variables. Everyone with access to the dashboard or its API can read them.
    """

    kind: str = IMAGE
    files: Mapping[str, Path] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    @contextmanager
    def packed(self) -> Iterator[dict[str, Any]]:
        """Ray's `runtime_env`, with a folder that exists inside the context; Ray uploads equal contents once."""
        variables = {**self.variables, STOP_WAIT: str(STOP_WAIT_SECONDS)}
        if self.kind == IMAGE and not self.files:
            yield {"env_vars": variables}
            return
        with tempfile.TemporaryDirectory() as folder:
            if self.kind == TREE:
                copy_tree(Path(meltpoint.__path__[0]), Path(folder) / "meltpoint")
            for name, path in self.files.items():
                target = Path(folder) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
            yield {"env_vars": variables, "working_dir": folder}


def submit(
    client: JobClient, sweep: str, command: str, storage: str, environment: JobEnvironment, code: str
) -> tuple[str, int]:
    """Send an attempt at a sweep.

    Args:
        command: a line for the cluster's shell.
        storage: the folder of all sweeps there.
        code: the version of the code here, shown with the job.

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
        client.submit(name, command, runtime_env, facts)
    return name, number


def stop(client: JobClient, job: Job) -> Job:
    """Stop a job, and wait until it has ended: its driver saves its state first.

    Returns:
        the job, which has not ended if that takes longer than Ray waits.
    """
    client.stop(job.name)
    return client.wait(job.name, STOP_WAIT_SECONDS + 30)


def ask(client: JobClient, sweep: str, words: list[str], kind: str, variables: Mapping[str, str]) -> tuple[bool, str]:
    """Run a short command on the cluster as a separate job.

    The job stays on the cluster's list until the next call: Ray relists a job that is removed soon after its end.

    Args:
        kind: the kind of the sweep's `JobEnvironment`.
        variables: environment variables.

    Returns:
        Whether it ended with status 0, and its output.

    Raises:
        ValueError: it did not end in time, or could not start.
    """
    for job in client.jobs():
        if job.name.startswith(f"{sweep}{ASKING}") and job.is_over:
            client.forget(job.name)
    token = secrets.token_hex(8)
    name = f"{sweep}{ASKING}{token}"
    # Ray's own first line may appear in the log at any time before the command ends: print the output at the end.
    line = f'said=$({shlex.join(words)} 2>&1); status=$?; echo {token}; printf "%s\\n" "$said"; exit $status'
    with JobEnvironment(kind, variables=variables).packed() as runtime_env:
        client.submit(name, line, runtime_env, {"job_name": name})
    job = client.wait(name, ASK_SECONDS)
    if not job.is_over:
        client.stop(name)
        raise ValueError(f"{client.url}: the job {name} has not ended after {ASK_SECONDS:.0f} s; is the cluster full?")
    _, began, text = client.log(name).partition(f"{token}\n")
    if not began:
        raise ValueError(f"{client.url}: the job {name} did not start ({' '.join(job.message.split())[:300]}).")
    return job.status == "SUCCEEDED", text
