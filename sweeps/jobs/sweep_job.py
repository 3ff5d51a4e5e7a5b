"""Attempts at a sweep on a cluster: packed, sent, stopped, and the status of their sweep.

Equal contents give an equal archive, byte for byte, so that Ray sends it once. An archive has `meltpoint/` at its top:
unpacked, it is a folder on Python's path. Wheels go the same way, since Ray takes two wheels of one name for the same.
"""

from __future__ import annotations

import os
import secrets
import shlex
import tempfile
import zipfile
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
from meltpoint.tasks.core.wording import some

IMAGE, WHEEL, TREE = "image", "wheel", "tree"
ENVIRONMENTS = (IMAGE, WHEEL, TREE)

LEFT_OUT_AT_THE_TOP = {"build", "dist", "runs", "mlruns", "mlflow.db", "shared"}
"""Files that a checkout makes or keeps next to the code."""

LEFT_OUT = {"__pycache__", "node_modules"}

LARGEST_FILE, LARGEST_ARCHIVE = 10 * 10**6, 200 * 10**6
"""Bytes. Ray keeps archives in the memory of the cluster's head, and refuses one above 500 MB."""


def find_wheel(environment: str, folder: Path) -> Path | None:
    """The wheel of `--environment`: a file that it names, or for `wheel` the only one in `dist/`; None otherwise.

    Args:
        environment: a word of `ENVIRONMENTS`, or a path that ends with `.whl`.
        folder: where `dist/` is looked for.

    Raises:
        ValueError: another word, no wheel or several, or one that cannot run from a folder.
    """
    if environment in (IMAGE, TREE):
        return None
    if environment == WHEEL:
        found = sorted((folder / "dist").glob("meltpoint-*.whl"))
        if len(found) != 1:
            raise ValueError(
                f"--environment wheel: {folder / 'dist'} has {some(len(found), 'wheel')} of meltpoint; make one with "
                "`python -m build --wheel`, or name it: --environment FILE.whl."
            )
        return _checked(found[0])
    if environment.endswith(".whl"):
        return _checked(Path(environment))
    raise ValueError(f"--environment {environment}: write {', '.join(ENVIRONMENTS)}, or the path of a wheel.")


def _checked(wheel: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
    except FileNotFoundError:
        raise ValueError(f"--environment {wheel}: there is no such file.") from None
    except (OSError, zipfile.BadZipFile):
        raise ValueError(f"--environment {wheel} is no wheel that can be read; build it again.") from None
    if "meltpoint/launch.py" not in names:
        raise ValueError(f"--environment {wheel}: holds no meltpoint; name a wheel of it.")
    return wheel


def package_root() -> Path:
    """The folder of the package as it is imported here: a checkout, or an installed one."""
    return Path(meltpoint.__path__[0])


def tree_files(root: Path) -> Iterator[Path]:
    """The files of a package's folder that belong to a job.

    Left out are hidden files, links, files that are built or kept next to the code, and Python environments.
    """
    for here, folders, files in os.walk(root):
        folder = Path(here)
        left_out = LEFT_OUT | LEFT_OUT_AT_THE_TOP if folder == root else LEFT_OUT
        if folder != root and "pyvenv.cfg" in files:
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if _is_kept(folder / name, left_out))
        yield from (folder / name for name in sorted(files) if _is_kept(folder / name, left_out))


def _is_kept(path: Path, left_out: set[str]) -> bool:
    is_made = path.name in left_out or path.name.endswith((".egg-info", ".pyc"))
    is_plain = not path.is_symlink() and (path.is_file() or path.is_dir())  # a pipe would never end
    return is_plain and not is_made and not path.name.startswith(".")


def large_files(root: Path) -> list[str]:
    """One line for each file of a tree that is left out because of its size."""
    sizes = ((path, path.stat().st_size) for path in tree_files(root))
    return [f"{path} is left out: {size / 10**6:.0f} MB" for path, size in sizes if size > LARGEST_FILE]


def write_archive(target: Path, tree: Path | None, wheel: Path | None, files: Mapping[str, Path]) -> None:
    """Write the archive that a job takes along.

    Args:
        target: the archive to write.
        tree: a package's folder to take along, without its large files, or None.
        wheel: a wheel to take along, or None.
        files: path in the archive → file to take along.

    Raises:
        ValueError: the archive is too large, or a file's name is no text.
    """
    with zipfile.ZipFile(target, "w") as archive:
        for path in tree_files(tree) if tree is not None else ():
            if path.stat().st_size <= LARGEST_FILE:
                _add(archive, f"meltpoint/{path.relative_to(tree or path).as_posix()}", path.read_bytes())
        for name, content in _unpacked(wheel) if wheel is not None else ():
            _add(archive, name, content)
        for name, path in sorted(files.items()):
            _add(archive, name, path.read_bytes())
    size = target.stat().st_size
    if size > LARGEST_ARCHIVE:
        raise ValueError(
            f"{size / 10**6:.0f} MB are too much to send along; move data out of the folder of the package, or use "
            "--environment image."
        )


def _unpacked(wheel: Path) -> Iterator[tuple[str, bytes]]:
    """(name, content) of each file in a wheel, by name."""
    with zipfile.ZipFile(wheel) as source:
        for name in sorted(source.namelist()):
            if not name.endswith("/"):
                yield name, source.read(name)


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    """Add a file with a fixed time and mode, so that equal contents give equal archives."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name!r} cannot be sent along: its name is no valid text; rename it.") from None
    info = zipfile.ZipInfo(name)
    info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
    archive.writestr(info, content)


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
    """The answer of a command that ran on the cluster.

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
        raise ValueError(f"{client.url}: the job {name} has not ended after {ASK_SECONDS:.0f} s; is it full?")
    _, began, text = client.log(name).partition(f"{token}\n")
    if not began:
        raise ValueError(f"{client.url}: the job {name} did not start ({' '.join(job.message.split())[:300]}).")
    return Answer(job.status == "SUCCEEDED", text)


def _forget_answers(client: JobClient, sweep: str) -> None:
    """Take the short jobs of earlier questions off the cluster's list."""
    for job in client.jobs():
        if job.name.startswith(f"{sweep}{ASKING}") and job.is_over:
            client.forget(job.name)


def environment_of(job: Job) -> JobEnvironment:
    """An environment in which the status of a job's sweep can be read: the cluster's, or this machine's package."""
    return JobEnvironment(IMAGE if job.metadata.get(ENVIRONMENT, IMAGE) == IMAGE else TREE)
