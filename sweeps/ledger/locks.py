"""The driver of a sweep: its process, its claim on the sweep, and a file lock.

The file lock shows at once that a driver in another container under the same kernel has ended, since its process id
cannot be looked up. Nothing else depends on it, so a file system without locks works too.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, ValidationError

from meltpoint.adapters.files import acquire, append_line, make_folders
from meltpoint.sweeps.storage.files import StoragePath
from meltpoint.sweeps.storage.object_store import ObjectPath

PROC = Path("/proc")
DEAD, HALTED = "ZX", "Tt"
"""States in `/proc/PID/stat` of an ended process, and of a stopped one (SIGSTOP, a debugger)."""


class Owner(BaseModel):
    """A process, described so that another one can tell whether it still runs.

    Attributes:
        boot: the id of the machine's boot, which also tells machines apart; "" if the system has none.
        namespace: the namespace of the process id; each container has its own.
        started: the start time as the kernel reports it; tells the process from one with a reused id.
        since: the local time of this description, for display.
        token: unique.
        has_file_lock: whether it holds the sweep's file lock.
        heartbeat_seconds: the interval at which it renews its lease.
    """

    model_config = ConfigDict(frozen=True)

    host: str
    boot: str
    namespace: str
    process: int
    started: str
    since: str
    token: str
    has_file_lock: bool = False
    heartbeat_seconds: float = 5.0

    def __str__(self) -> str:
        return f"process {self.process} on {self.host} since {self.since}"

    def is_of_this_boot(self) -> bool:
        """True if it runs or ran under this boot of this machine."""
        return bool(self.boot) and self.boot == boot()

    def is_gone(self, file_lock_is_free: bool) -> bool:
        """True if the process has provably ended; False proves nothing.

        Args:
            file_lock_is_free: whether this process could take the sweep's file lock. Under one kernel, only the end of
                the process frees its lock. This decides for another container, whose process ids cannot be looked up.
        """
        if not self.is_of_this_boot():
            return False
        if self.namespace == namespace():
            found = look_up(self.process)
            return found is None or found.started != self.started or found.state[0] in DEAD
        return self.has_file_lock and file_lock_is_free

    def runs_here(self) -> bool:
        """True if it provably runs on this machine, and is not halted."""
        if not self.is_of_this_boot() or self.namespace != namespace():
            return False
        found = look_up(self.process)
        return found is not None and found.started == self.started and found.state[0] not in DEAD + HALTED


class Found(NamedTuple):
    """A process as the system lists it: its state (a letter, possibly followed by flags) and start."""

    state: str
    started: str


def this_process(token: str, has_file_lock: bool, heartbeat_seconds: float) -> Owner:
    """The description of this process."""
    found = look_up(os.getpid())
    return Owner(
        host=socket.gethostname(), boot=boot(), namespace=namespace(), process=os.getpid(),
        started=found.started if found else "", since=time.strftime("%Y-%m-%d %H:%M:%S"), token=token,
        has_file_lock=has_file_lock, heartbeat_seconds=heartbeat_seconds,
    )  # fmt: skip


def look_up(process: int) -> Found | None:
    """A process of this machine and namespace; None if it does not exist."""
    if not (PROC / "self" / "stat").exists():
        return _listed(process)
    try:
        stat = (PROC / str(process) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may contain anything
    return Found(fields[0], fields[19])  # clock ticks since boot, which no clock change affects


def _listed(process: int) -> Found | None:
    """A process on a system without /proc (macOS)."""
    said = _output("ps", "-o", "stat=,lstart=", "-p", str(process)).split(maxsplit=1)
    return Found(*said) if len(said) == 2 else None


def boot() -> str:
    """The id of this boot of this machine; "" if the system has none."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return _output("sysctl", "-n", "kern.bootsessionuuid") if sys.platform == "darwin" else ""


def namespace() -> str:
    """The namespace of this process's id; "" if the system has none."""
    try:
        return str((PROC / "self/ns/pid").readlink())
    except OSError:
        return ""


def _output(*command: str) -> str:
    """The output of a command; "" if it fails."""
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


LOCK = "driver.lock"


@contextmanager
def file_lock(folder: StoragePath) -> Iterator[Callable[[], bool]]:
    """Yield a function that tries to take a sweep's file lock and returns whether it did; free it after the block.

    Raises:
        ValueError: the folder is not writable.
    """
    if isinstance(folder, ObjectPath):
        yield lambda: False
        return
    try:
        make_folders(folder)
        file = (folder / LOCK).open("a+")
    except OSError as error:
        raise ValueError(
            f"{error.filename or folder} is not writable ({error.strerror}); let its owner run the sweep, "
            "or use a folder of your own with --storage DIR."
        ) from None

    def take() -> bool:
        try:
            return acquire(file, shared=False, wait=False)
        except ValueError:  # a file system without locks
            return False

    with file:
        yield take


RELEASED = b"released    \n"
"""The last heartbeat of a driver that shut down cleanly."""
STAGING, GONE = ".staging", ".gone"


def beat_text(count: int) -> bytes:
    """A heartbeat: a counter of fixed width."""
    return b"%012d\n" % count


class Claim:
    """The files of one driver's number.

    Args:
        folder: `drivers/` of a sweep.
    """

    def __init__(self, folder: StoragePath, number: int) -> None:
        self.folder, self.number = folder, number
        self.path = folder / f"{number:06d}.json"
        self.beat_path = folder / f"{number:06d}.beat"
        self.staging = folder / f"{number:06d}{STAGING}"

    def owner(self) -> Owner | None:
        """The process that made it; None if the file is missing, or incomplete after a crash."""
        try:
            return Owner.model_validate_json(self.path.read_bytes())
        except (ValidationError, FileNotFoundError):
            return None

    def beat(self) -> bytes:
        """The owner's latest heartbeat; b"" before the first."""
        try:
            return self.beat_path.read_bytes()
        except FileNotFoundError:
            return b""

    def write_beat(self, text: bytes) -> None:
        """Overwrite the heartbeat. Its length is fixed, so that a full disk does not prevent it."""
        if isinstance(self.beat_path, ObjectPath):
            self.beat_path.put(text)
            return
        file = os.open(self.beat_path, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.pwrite(file, text, 0)
        finally:
            os.close(file)

    def is_released(self) -> bool:
        """True if its owner shut down cleanly."""
        return self.beat() == RELEASED

    def is_free(self, file_lock_is_free: bool) -> bool:
        """True if its owner released it or has provably ended."""
        owner = self.owner()
        return self.is_released() or (owner is not None and owner.is_gone(file_lock_is_free))


def latest(folder: StoragePath) -> Claim | None:
    """The claim with the highest number; None if there is none."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return None
    numbers = [int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit()]
    return Claim(folder, max(numbers)) if numbers else None


def is_there(path: StoragePath) -> bool:
    """True if a file or folder exists.

    Raises:
        OSError: the storage does not answer, which proves nothing (`Path.exists` returns False for some such errors).
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def shut(folders: Iterable[Path]) -> None:
    """Remove drivers' folders, so that no rename out of them succeeds.

    Each is renamed first, which a process on this machine notices at once. A process on another machine may know the
    folder by its handle (NFS), and notices that the files are gone.
    """
    for folder in folders:
        with suppress(FileNotFoundError):
            folder.rename(folder.with_name(f"{folder.name}.{uuid4().hex}{GONE}"))
        for gone in folder.parent.glob(f"*{GONE}"):
            shutil.rmtree(gone, ignore_errors=True)


NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK}
"""Errors of file systems without hard links: exFAT, some FUSE file systems."""


def make(claim: Claim, owner: Owner) -> bool:
    """Create a claim's file atomically and durably; False if another process was first.

    A hard link creates the file together with its contents. On a file system without hard links, a crash may leave an
    empty file; the next driver then waits until that claim has been silent long enough.
    """
    path, text = claim.path, owner.model_dump_json()
    if isinstance(path, ObjectPath):
        return path.create(f"{text}\n".encode())
    temporary = path.with_name(f".{owner.token}.tmp")
    try:
        append_line(temporary, text)
        try:
            os.link(temporary, path)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            with path.open("x", encoding="utf-8") as file:
                file.write(f"{text}\n")
    except FileExistsError:  # NFS retries a call whose answer was lost
        found = claim.owner()
        return found is not None and found.token == owner.token
    finally:
        temporary.unlink(missing_ok=True)
    return True
