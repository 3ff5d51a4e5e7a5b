"""Attempts at a sweep on a cluster: packed, sent, stopped, and the status of their sweep.

Equal contents give equal archives, byte for byte, so that Ray uploads them once. An archive has `meltpoint/` at its
top: unpacked, it is a folder on Python's path. Wheels are also sent in archives, since Ray treats two wheels of the
same name as equal.
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
"""Files that are built or kept next to the code in a checkout."""

LEFT_OUT = {"__pycache__", "node_modules"}

LARGEST_FILE, LARGEST_ARCHIVE = 10 * 10**6, 200 * 10**6
"""Bytes. Ray keeps archives in the memory of the cluster's head, and refuses one above 500 MB."""


def find_wheel(environment: str, folder: Path) -> Path | None:
    """The wheel of `--environment`: the named file, or for `wheel` the only one in `dist/`; None otherwise.

    Args:
        environment: a word of `ENVIRONMENTS`, or a path that ends with `.whl`.
        folder: the folder that contains `dist/`.

    Raises:
        ValueError: an unknown word, no wheel or several, or a wheel that cannot be used.
    """
    if environment in (IMAGE, TREE):
        return None
    if environment == WHEEL:
        found = sorted((folder / "dist").glob("meltpoint-*.whl"))
        if len(found) != 1:
            raise ValueError(
                f"--environment wheel: {folder / 'dist'} has {some(len(found), 'wheel')} of meltpoint; build one with "
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
        raise ValueError(f"--environment {wheel}: no such file; name a wheel of meltpoint.") from None
    except (OSError, zipfile.BadZipFile):
        raise ValueError(f"--environment {wheel} is not a readable wheel; build it again.") from None
    if "meltpoint/launch.py" not in names:
        raise ValueError(f"--environment {wheel} does not contain meltpoint; name a wheel of it.")
    return wheel


def package_root() -> Path:
    """The folder of the imported package: a checkout, or an installed one."""
    return Path(meltpoint.__path__[0])


def tree_files(root: Path) -> Iterator[Path]:
    """The files of a package's folder that belong to a job.

    Leaves out hidden files, links, files that are built or kept next to the code, and Python environments.
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
    """Write the archive to send with a job.

    Args:
        target: the archive to write.
        tree: a package's folder to include, without its large files, or None.
        wheel: a wheel to include, or None.
        files: path in the archive → file to include.

    Raises:
        ValueError: the archive is too large, or a file's name is not valid text.
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
            f"{size / 10**6:.0f} MB are too much to send; move data out of the package's folder, or use "
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
        raise ValueError(f"{name!r} cannot be sent: its name is not valid text; rename it.") from None
    info = zipfile.ZipInfo(name)
    info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
    archive.writestr(info, content)


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
        kind: a word of `ENVIRONMENTS`.
        wheel: the wheel to include, if any.
        files: path below the command's working folder → file to include.
        variables: environment variables. Everyone with access to the dashboard or its API can read them.
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
        """The package's folder to include, if any."""
        return package_root() if self.kind == TREE else None


def submit(
    client: JobClient, sweep: str, command: str, storage: str, environment: JobEnvironment, code: str, cpus: float
) -> tuple[str, int]:
    """Send an attempt at a sweep.

    Args:
        command: a line for the cluster's shell.
        storage: the folder of all sweeps there.
        code: the version of the code here, shown with the job.
        cpus: CPUs reserved for the driver.

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
    """Stop a job, and wait until it has ended: its driver saves its state first.

    Returns:
        the job, which has not ended if that takes longer than Ray waits.
    """
    client.stop(job.name)
    return client.wait(job.name, STOP_WAIT_SECONDS + 30)


@dataclass(frozen=True)
class Answer:
    """The answer of a command that ran on the cluster.

    Attributes:
        ok: true if it ended with status 0.
        text: its output.
    """

    ok: bool
    text: str


def ask(client: JobClient, sweep: str, words: list[str], environment: JobEnvironment) -> Answer:
    """Run a short command on the cluster as a separate job.

    The job stays on the cluster's list until the next call: Ray relists a job that is removed soon after its end.

    Raises:
        ValueError: it did not end in time, or could not start.
    """
    _forget_answers(client, sweep)
    token = secrets.token_hex(8)
    name = f"{sweep}{ASKING}{token}"
    # Ray's own first line may appear in the log at any time before the command ends: print the output at the end.
    line = f'said=$({shlex.join(words)} 2>&1); status=$?; echo {token}; printf "%s\\n" "$said"; exit $status'
    with environment.packed() as runtime_env:
        client.submit(name, line, runtime_env, {"job_name": name})
    job = client.wait(name, ASK_SECONDS)
    if not job.is_over:
        client.stop(name)
        raise ValueError(f"{client.url}: the job {name} has not ended after {ASK_SECONDS:.0f} s; is the cluster full?")
    _, began, text = client.log(name).partition(f"{token}\n")
    if not began:
        raise ValueError(f"{client.url}: the job {name} did not start ({' '.join(job.message.split())[:300]}).")
    return Answer(job.status == "SUCCEEDED", text)


def _forget_answers(client: JobClient, sweep: str) -> None:
    """Remove the short jobs of earlier calls from the cluster's list."""
    for job in client.jobs():
        if job.name.startswith(f"{sweep}{ASKING}") and job.is_over:
            client.forget(job.name)


def environment_of(job: Job) -> JobEnvironment:
    """An environment that can read the status of a job's sweep: the cluster's, or this machine's package."""
    return JobEnvironment(IMAGE if job.metadata.get(ENVIRONMENT, IMAGE) == IMAGE else TREE)
