"""A watch over one reading: how long it takes, what it writes and runs, and whether it ends as the project promises."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

LIMIT_SECONDS = 10.0
"""Processor time that one input may take; what waits without using any is found by pytest's own limit."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CHANGES = {
    "os.remove": 0, "os.rename": 1, "os.rmdir": 0, "os.mkdir": 0, "os.truncate": 0, "os.link": 1, "os.symlink": 1,
    "os.chmod": 0, "os.chown": 0, "shutil.rmtree": 0, "shutil.move": 1, "shutil.copyfile": 1,
}  # fmt: skip
"""Audit events that change a path → which of their arguments it is."""
FORBIDDEN = (
    "subprocess.Popen", "os.system", "os.exec", "os.fork", "os.posix_spawn", "socket.connect", "pickle.find_class",
)  # fmt: skip


class TooLongError(BaseException):
    """An input took longer than the limit. No `Exception`: no reader may catch it."""


@dataclass(frozen=True)
class Fault:
    """A reading that did not end as it should.

    Attributes:
        kind: the error's class, "TooLong", or "Wrote".
        where: the innermost line of the project's own code.
        message: the error's first line.
        trace: the whole traceback.
    """

    kind: str
    where: str
    message: str
    trace: str = ""


@dataclass
class Auditor:
    """Notes what is written outside a folder, run or unpickled; Python removes no audit hook, so it can be silent."""

    folder: str = ""
    is_active: bool = False
    noted: list[str] = field(default_factory=list)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """The audit hook."""
        if not self.is_active:
            return
        if event == "open" and (
            (isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"))
            or (isinstance(arguments[2], int) and arguments[2] & WRITES)
        ):
            self._note(event, arguments[0])
        elif event in CHANGES:
            self._note(event, arguments[CHANGES[event]])
        elif event in FORBIDDEN:
            self.noted.append(f"{event} {arguments[0]!r:.100}")

    def _note(self, event: str, path: Any) -> None:
        if isinstance(path, int) or path is None:
            return
        real = os.path.realpath(os.fsdecode(path))
        if real != os.devnull and not real.startswith(self.folder + os.sep):
            self.noted.append(f"{event} {real}")


AUDITOR = Auditor()


def install() -> None:
    """Begin to listen to audit events, once a process."""
    sys.addaudithook(AUDITOR)
    signal.signal(signal.SIGPROF, _raise_too_long)


def _raise_too_long(number: int, frame: FrameType | None) -> None:
    raise TooLongError


@contextlib.contextmanager
def _within(folder: Path) -> Iterator[None]:
    AUDITOR.folder, AUDITOR.noted = str(folder.resolve()), []
    signal.setitimer(signal.ITIMER_PROF, LIMIT_SECONDS)
    AUDITOR.is_active = True
    try:
        yield
    finally:
        AUDITOR.is_active = False
        signal.setitimer(signal.ITIMER_PROF, 0)


def fault_of(read: Callable[[Path], object], folder: Path) -> Fault | None:
    """Read a folder with a mutated file: what is wrong with how it ended.

    It may succeed, or raise `ValueError` itself with a message: that is what the command line turns into one line. Its
    subclasses (of decoding, of JSON, of validation) name neither the file nor the remedy.
    """
    fault = None
    try:
        with _within(folder):
            read(folder)
    except TooLongError as error:
        fault = _fault("TooLong", error)
    except BaseException as error:  # noqa: BLE001 - any other class is what is looked for
        if type(error) is not ValueError:
            fault = _fault(type(error).__name__, error)
        elif not str(error).strip():
            fault = _fault("no message", error)
    if AUDITOR.noted:
        fault = Fault("Wrote", AUDITOR.noted[0].split(" ")[0], AUDITOR.noted[0])
    return fault


def _fault(kind: str, error: BaseException) -> Fault:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/meltpoint/" in frame.filename and "/tests/" not in frame.filename]
    where = f"{Path((own or frames)[-1].filename).name}:{(own or frames)[-1].name}"
    message = " ".join(str(error).split())[:300]
    return Fault(kind, where, message, "".join(traceback.format_exception(error))[-4000:])
