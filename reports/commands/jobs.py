"""Commands for sweeps that run as jobs on a cluster: `submit`, `logs`, `stop`, and their part of `status`."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from meltpoint.sweeps.command_line.typer_options import AsJson, JobAddress, NameArgument, with_sweep_options
from meltpoint.sweeps.machine.terminal import DONE, FAILED, Screen, complain, exit_on_error, print_json, show, tell
from meltpoint.sweeps.specification.sweep_options import SweepOptions

if TYPE_CHECKING:
    from meltpoint.sweeps.on_ray.jobs import Job, JobClient
    from meltpoint.sweeps.results.summary import SweepSummary

Environment = Annotated[
    Literal["image", "tree"],
    typer.Option(
        help="image: Meltpoint is on the cluster; tree: upload this Meltpoint.", rich_help_panel="Where it runs"
    ),
]
Variables = Annotated[
    list[str] | None,
    typer.Option(
        "--env", help="An environment variable to pass on, by name; the cluster's dashboard shows its value.",
        rich_help_panel="Where it runs",
    ),
]  # fmt: skip


@exit_on_error()
@with_sweep_options(without=("address",))
def submit(
    options: SweepOptions, address: JobAddress = None, environment: Environment = "image",
    env: Variables = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Submit a sweep to a Ray cluster as a job and return at once. The same command again resumes it.

    Folders, data and task files are on the cluster; the files of --spec and --space are uploaded.

    Example: meltpoint submit --address http://head:8265 --storage /mnt/sweeps --name first --encoder bert-base
    --mode fine_tuning --task sst2
    """
    from meltpoint.sweeps.command_line.submission import JobEnvironment, submission
    from meltpoint.sweeps.command_line.submission import submit as send
    from meltpoint.sweeps.specification.provenance import code_version

    asked = submission(options)
    variables = _variables(env or [])
    client = _client(address)
    there = JobEnvironment(environment, asked.files, variables)
    for line in asked.spec.missing():
        tell(line, err=True)
    job, attempt = send(client, asked.spec.name, asked.command, options.storage, there, code_version())
    url = client.url
    if as_json:
        print_json({"job": job, "sweep": asked.spec.name, "attempt": attempt, "address": url})
        return
    tell(f"{job} is submitted to {url}; it no longer needs this machine.")
    for command in ("logs -f", "status", "stop"):
        tell(f"  meltpoint {command} {asked.spec.name} --address {url}")


@exit_on_error()
def logs(
    name: NameArgument, address: JobAddress = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the output until the job ends.")] = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Print the output of a submitted sweep. With -f, exit with status 1 if the job failed or was stopped."""
    from meltpoint.sweeps.on_ray.jobs import last_attempt

    client = _client(address)
    job = last_attempt(name, client.jobs())
    if follow:
        try:
            job = client.follow(job.name, (lambda text: None) if as_json else show)
        except KeyboardInterrupt:
            complain(f"{job.name} is still running; `meltpoint stop {name} --address {client.url}` ends it.")
            raise typer.Exit(DONE) from None
    elif not as_json:
        show(client.log(job.name))
    if as_json:
        print_json({"job": _as_json(job, client), "log": client.log(job.name)})
    elif job.is_over:
        tell(in_words(job), err=True)
    if follow and job.status != "SUCCEEDED":
        raise typer.Exit(FAILED)


@exit_on_error()
def stop(name: NameArgument, address: JobAddress = None) -> None:
    """Stop a submitted sweep's job and wait for its end. Finished trials are kept; `submit` again resumes it."""
    from meltpoint.sweeps.command_line.submission import STOP_WAIT_SECONDS
    from meltpoint.sweeps.command_line.submission import stop as end
    from meltpoint.sweeps.on_ray.jobs import last_attempt

    client = _client(address)
    job = last_attempt(name, client.jobs())
    if job.is_over:
        tell(f"The job had already ended: {in_words(job)}")
        return
    began = time.monotonic()
    job = end(client, job)
    seconds = time.monotonic() - began
    if not job.is_over:
        pending = "Ray gives up a job that finds no room in 15 minutes" if job.status == "PENDING" else "check again"
        complain(f"{job.name} is still {job.status} after {seconds:.0f} s; {pending}: {client.url}.")
        raise typer.Exit(FAILED)
    killed = ", killed, since it did not end by itself" if seconds > STOP_WAIT_SECONDS else ""
    tell(f"{in_words(job)} It took {seconds:.0f} s{killed}.")
    tell("Finished trials are kept; the same `meltpoint submit` resumes it.")


def _client(address: str | None) -> JobClient:
    from meltpoint.sweeps.on_ray.jobs import JobClient, url_of

    return JobClient(url_of(address))


def _variables(names: list[str]) -> dict[str, str]:
    """The variables of `--env`, given by name only, so that no value lands in a shell's history.

    Raises:
        ValueError: a variable is not set here, or is given with its value; the message holds no value.
    """
    for name in names:
        if "=" in name:
            raise ValueError(f"--env {name.partition('=')[0]}=…: give the name only; its value is read from here.")
        if name not in os.environ:
            raise ValueError(f"--env {name} is not set here; export it first.")
    return {name: os.environ[name] for name in names}


def in_words(job: Job) -> str:
    """A job on one line: its status in Ray, and its start."""
    when = "" if job.started is None else time.strftime(", begun %Y-%m-%d %H:%M", time.localtime(job.started))
    code = f" (exit status {job.exit_code})" if job.exit_code else ""
    why = f" {' '.join(job.message.split())[:300]}" if job.status == "FAILED" and job.exit_code is None else ""
    return f"{job.name}: {job.status}{code}{when}.{why}"


def status_of_job(
    name: str, storage: str, address: str | None, as_json: bool, summarise: Callable[[str, str], SweepSummary]
) -> None:
    """Show the status of a sweep's last job in Ray, and the sweep's status.

    The status is read here if the storage is visible, otherwise by a short job on the cluster.

    Args:
        summarise: the summary of a sweep, by its name and storage.

    Raises:
        ValueError: neither the storage nor the cluster knows the sweep.
    """
    from meltpoint.sweeps.on_ray.jobs import STORAGE, attempts, last_attempt

    client = _client(address)
    jobs = client.jobs()
    mine = attempts(name, jobs)
    # `runs`, the default, is never the cluster's: `submit` takes absolute paths alone.
    places = [job.metadata[STORAGE] for job in mine[-1:] if STORAGE in job.metadata]
    places += [storage] if not mine or storage != "runs" else []
    visible = next((place for place in places if is_here(name, place)), None)
    if visible is None:
        _ask_for_status(client, name, last_attempt(name, jobs), as_json)
    elif as_json:
        print_json({**summarise(name, visible).as_json(), "job": _as_json(mine[-1] if mine else None, client)})
    else:
        from meltpoint.reports.status_view import show_status

        tell(in_words(mine[-1]) if mine else f"{client.url} has no job of this sweep.")
        show_status(summarise(name, visible), Screen())
        _say_which_counts(mine[-1:])


def is_here(name: str, storage: str) -> bool:
    """True if this machine sees a sweep in a storage; an object store may admit only the cluster."""
    from meltpoint.sweeps.storage.files import readable_storage

    try:
        return (readable_storage(storage) / name / "sweep.json").is_file()
    except (ValueError, OSError):
        return False


def _ask_for_status(client: JobClient, name: str, job: Job, as_json: bool) -> None:
    """Show the status of a sweep whose storage only the cluster sees."""
    from meltpoint.sweeps.command_line.submission import IMAGE, PYTHON, TREE, ask
    from meltpoint.sweeps.on_ray.jobs import ENVIRONMENT, STORAGE

    words = [*PYTHON, "status", name, f"--storage={job.metadata.get(STORAGE, '')}", *(["--json"] if as_json else [])]
    width = {"COLUMNS": str(shutil.get_terminal_size().columns)}
    kind = IMAGE if job.metadata.get(ENVIRONMENT, IMAGE) == IMAGE else TREE
    is_answered, text = ask(client, name, words, kind, width)
    if as_json:
        found = json.loads(text) if is_answered else {"name": name, "state": None, "cells": []}
        print_json({**found, "job": _as_json(job, client)})
    else:
        tell(in_words(job))
        show(text if is_answered else f"No table: {text}")
        _say_which_counts([job] if is_answered else [])
    if not is_answered and job.is_over:
        raise typer.Exit(FAILED)


def _say_which_counts(jobs: list[Job]) -> None:
    """Note that the ledger is right if Ray reports a failed job, as it does for a job that outlived the head node."""
    if any(job.status == "FAILED" for job in jobs):
        tell("If Ray and the table differ, the table is right: it is read from the sweep's files.")


def _as_json(job: Job | None, client: JobClient) -> dict[str, Any] | None:
    """The job in the document of `status --json`."""
    if job is None:
        return None
    facts = {"name": job.name, "status": job.status, "exit_code": job.exit_code, "message": job.message}
    return {**facts, "started": job.started, "ended": job.ended, "address": client.url}
