"""A sweep for a cluster as a job: checked here as far as possible, packed, sent, stopped, and asked for its status.

A job's working folder gets this machine's package as `meltpoint/`, if it is sent: Python finds it there first.
"""

from __future__ import annotations

import secrets
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import meltpoint
from meltpoint.adapters.families import encoder_word
from meltpoint.sweeps.command_line.spec_from_options import asked_spec, check_spec, split_at_commas
from meltpoint.sweeps.command_line.typer_options import as_words
from meltpoint.sweeps.on_ray.jobs import (
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
from meltpoint.sweeps.specification.sweep_options import SweepOptions
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.specification.tracking_uri import default_uri, redacted, sqlite_file
from meltpoint.sweeps.storage.files import storage_path
from meltpoint.sweeps.tracking import loggers
from meltpoint.tasks.core.files import expanded, is_folder
from meltpoint.tasks.core.registry import is_task_file, unknown

SENT = "submitted"
"""The folder of the files sent with a job, below the job's working folder."""

PYTHON = ("python", "-m", "meltpoint.launch")
"""Meltpoint on a cluster node. The console script would not find a package that was sent with the job."""


@dataclass(frozen=True)
class Submission:
    """A sweep to send to a cluster.

    Attributes:
        spec: the specification.
        words: the options of `sweep` on the cluster.
        files: path below the job's working folder → local file.
    """

    spec: SweepSpec
    words: tuple[str, ...]
    files: Mapping[str, Path]

    @property
    def command(self) -> str:
        """The shell command on the cluster. `exec` lets signals reach Python instead of the shell."""
        return shlex.join(["exec", *PYTHON, "sweep", *self.words])


def submission(options: SweepOptions) -> Submission:
    """Build the sweep to submit from its options; on the cluster, it joins the running Ray.

    The files of `--spec` and `--space` are sent with the job. Folders, data and task files must be on the cluster.

    Raises:
        ValueError: any fault that `sweep` would report, a path that is not on the cluster, or a password, which
            everyone who can see the job could read; one line with the remedy.
    """
    _check_secrets(options)
    check_storage(options.storage)
    place = storage_path(options.storage)
    file = sqlite_file(options.tracking_uri or default_uri(place))
    if file is not None and not is_absolute(str(file)):
        raise _not_there("--tracking-uri", str(file))
    _check_places(options)
    spec = asked_spec(options)
    _check_task_files(spec.task_words())
    check_spec(spec, is_elsewhere)
    changed, files = _taken_along(options)
    return Submission(spec, tuple(as_words(replace(changed, address="auto"))), files)


def _taken_along(options: SweepOptions) -> tuple[SweepOptions, dict[str, Path]]:
    """The options with the paths of `--spec` and `--space` on the cluster, and those files."""
    files: dict[str, Path] = {}
    if options.space is not None:
        name = f"{SENT}/space/{options.space.name}"
        files[name] = options.space
        options = replace(options, space=Path(name))
    if options.spec is not None and is_task_file(options.spec):
        name = f"{SENT}/spec/{Path(options.spec).name}"
        files[name] = Path(options.spec)
        options = replace(options, spec=name)
    return options, files


def check_storage(storage: str) -> None:
    """Check that a storage is a URI or an absolute path on the cluster.

    Raises:
        ValueError: it is neither; one line with the remedy.
    """
    if not is_absolute(storage) and "://" not in storage:
        raise ValueError(
            f"--storage {storage}: name a folder that every node of the cluster sees by its absolute path, for example "
            "--storage /mnt/sweeps."
        )


def is_absolute(path: str) -> bool:
    """True if a path is absolute on a cluster, which runs Linux, even if this machine does not."""
    return PurePosixPath(path.replace("\\", "/")).is_absolute()


def is_elsewhere(word: str) -> bool:
    """True for an encoder's folder, a task file or a data folder on the cluster."""
    return is_task_file(word) or is_absolute(word) or is_absolute(encoder_word(word).partition(":")[2])


def _check_secrets(options: SweepOptions) -> None:
    """Check that no option contains a password: everyone who sees the dashboard can read a job's command."""
    for word in as_words(options):
        if redacted(word) != word:
            raise ValueError(
                f"{word.partition('=')[0]} contains a password, which everyone who sees the cluster's dashboard could "
                "read in the job's command; set it in the environment of the cluster's nodes "
                "(MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD)."
            )


def _check_places(options: SweepOptions) -> None:
    """Check for folders on this machine, which have relative paths."""
    if options.data_dir is not None and not is_absolute(options.data_dir.as_posix()):
        raise _not_there("--data-dir", str(options.data_dir))
    if options.cache_dir is not None and not (is_absolute(options.cache_dir) or options.cache_dir.startswith("~")):
        raise ValueError(f"--cache-dir {options.cache_dir}: name a folder on each node by a path from / or ~.")
    _check_task_files(split_at_commas(options.task or ()))
    for logger in split_at_commas(options.log_to or ()):
        if logger.endswith(".py") and not is_absolute(logger):
            raise _not_there("--log-to", logger)
        if not logger.endswith(".py") and logger not in loggers.SHIPPED:
            raise unknown(logger, "logger", [*loggers.SHIPPED, "a FILE.py of your own"])
    replacements = [text.partition("=")[2] for text in split_at_commas(options.replacing or ())]
    for option, words in (("--encoder", split_at_commas(options.encoder or ())), ("--with", replacements)):
        for word in words:
            _, colon, source = encoder_word(word).partition(":")
            folder = source.partition("#")[0] if colon else word if option == "--with" else ""
            if folder and not is_elsewhere(word) and is_folder(expanded(folder)):
                raise _not_there(option, word)


def _check_task_files(words: Sequence[str]) -> None:
    for word in words:
        if is_task_file(word) and not is_absolute(word):
            raise _not_there("--task", word)


def _not_there(option: str, path: str) -> ValueError:
    return ValueError(
        f"{option} {path}: the job runs on the cluster; put it where every node sees it, and give its absolute path."
    )


# The job.

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
            f"'{sweep}' is under way as {running[-1].name} ({running[-1].status}); `meltpoint logs {sweep} -f "
            f"--address {client.url}` shows it, `meltpoint stop {sweep} --address {client.url}` ends it."
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
