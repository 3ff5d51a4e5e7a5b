"""Signals and other reasons to end a sweep cleanly: SIGTERM, a scheduler's notice (SIGUSR1, SIGUSR2), a lost cluster.

A reason is raised in the main thread as `StopRequest`, which is a KeyboardInterrupt: it propagates wherever Ctrl-C
does, including through Ray's and Tune's handlers.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from meltpoint.tasks.core.wording import printable

STOPPING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Kubernetes, Slurm and `ray job stop` send SIGTERM; Slurm's `--signal=USR1@120` gives notice before it."""
NOTICES = {signal.SIGUSR1, signal.SIGUSR2}
TERMINATED = 128 + signal.SIGTERM
"""The exit status after any of these signals, 143, which shells and schedulers read as "ended by SIGTERM"."""
SECOND_AFTER_SECONDS = 1.0
"""A second signal within this time is a copy of the first: `timeout`, Slurm and `ray job stop` signal both a process
and its group."""
LAST_SECONDS = 25.0
"""A sweep that was asked to end is forced to exit after this time: Kubernetes and Slurm send SIGKILL after 30 s."""
DEAF_SECONDS = 4.0
"""The longest time until the main thread handles a request: Ray checks for signals every second if it can."""
SIGACTION_BYTES = 1024
"""Buffer size, larger than any system's `struct sigaction` (152 bytes with glibc on x86-64)."""


class StopRequest(KeyboardInterrupt):
    """A reason to end the sweep cleanly, other than Ctrl-C.

    Attributes:
        status: the exit status of the command.
        may_write: whether unfinished work may still be written; False once another driver has the sweep.
        without_ray: whether to skip Ray's shutdown, which would wait for a lost node.
    """

    def __init__(self, reason: str, status: int, may_write: bool = True, without_ray: bool = False) -> None:
        super().__init__(reason)
        self.status, self.may_write, self.without_ray = status, may_write, without_ray


def status_of(stop: KeyboardInterrupt) -> int:
    """The exit status of a command that a request or Ctrl-C has ended."""
    return stop.status if isinstance(stop, StopRequest) else 1


class _Asked:
    """The request made in this process, its time on the monotonic clock, and its state.

    Attributes:
        has_interrupt: whether Ctrl-C was pressed and has not been caught yet.
    """

    request: StopRequest | None = None
    installed: tuple[signal.Signals, ...] = ()
    at = 0.0
    was_raised = was_caught = False
    has_interrupt = False
    taken = threading.Event()
    is_handled_elsewhere = False


def request_stop(request: StopRequest, otherwise: Callable[[], None] | None = None) -> None:
    """Raise a request in the main thread, from another thread; the first one counts, and none outside `stoppable`.

    Args:
        otherwise: called in this thread if the main thread does not handle the request, because it waits in C++ code
            for a lost part; the main thread then only waits for the process to end.
    """
    main = threading.main_thread().ident
    if _Asked.request is None and main is not None and signal.getsignal(signal.SIGTERM) is _on_signal:
        _note(request)
        signal.pthread_kill(main, signal.SIGTERM)  # wakes it from a lock too, which `interrupt_main` does not
        if otherwise is not None and not _Asked.taken.wait(DEAF_SECONDS):
            _Asked.is_handled_elsewhere = True
            otherwise()


def reason_of(stop: KeyboardInterrupt) -> KeyboardInterrupt:
    """The request behind a caught interrupt, if any: Ray raises a plain KeyboardInterrupt for it."""
    _Asked.was_caught, _Asked.has_interrupt = True, False
    return _Asked.request or stop


def raise_requested() -> None:
    """Raise a request or Ctrl-C that was not caught: it came while nothing could be raised, or was swallowed.

    Python ignores exceptions in a finaliser or a callback of the garbage collector.

    Also reinstalls the handlers that Tune has replaced: `tune.run` makes SIGUSR1 end the experiment as if it were done.
    """
    for number in _Asked.installed:
        if signal.getsignal(number) is not _on_signal and threading.current_thread() is threading.main_thread():
            signal.signal(number, _on_signal)
    if _Asked.request is not None and not _Asked.was_caught:
        if _Asked.is_handled_elsewhere:
            threading.Event().wait()
        _Asked.was_raised = True
        _Asked.taken.set()
        raise _Asked.request
    if _Asked.has_interrupt:
        raise KeyboardInterrupt


@contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 end the block's work; only in the main thread.

    SIGINT works even if a shell started the command in the background, where it would ignore SIGINT.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _on_signal) for number in STOPPING}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, _on_interrupt)
    _Asked.installed = STOPPING
    try:
        yield
    except KeyboardInterrupt as stop:
        raise reason_of(stop) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _Asked.request, _Asked.was_raised, _Asked.installed = None, False, ()
        _Asked.was_caught = _Asked.has_interrupt = False


@contextmanager
def sigterm_kept() -> Iterator[None]:
    """Restore SIGTERM's handler after the block, from any thread: `ray.init` installs one in C++ that aborts.

    Threads and processes that the block starts do not get a scheduler's notices. These are for the driver, but Slurm
    sends them to all processes of a step, and they would end a raylet.
    """
    libc, handler = ctypes.CDLL(None), ctypes.create_string_buffer(SIGACTION_BYTES)
    libc.sigaction(signal.SIGTERM, None, handler)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, NOTICES)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        libc.sigaction(signal.SIGTERM, handler, None)


def end_now(status: int) -> None:
    """End the process without Python's and Ray's own shutdown."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def say_now(text: str) -> None:
    """Write a line to standard error at once; safe in a signal handler, where a buffered stream is not."""
    with suppress(OSError):  # nobody may read it any more
        os.write(2, f"meltpoint: {printable(text)}\n".encode())


def _on_signal(number: int, frame: FrameType | None) -> None:
    if _Asked.request is None:
        name = signal.Signals(number).name
        _note(StopRequest(f"stopped by {name}", TERMINATED))
        say_now(f"{name}: the sweep ends; finished trials are kept, and the same command resumes it.")
    elif _Asked.was_raised:
        if time.monotonic() - _Asked.at > SECOND_AFTER_SECONDS:
            os._exit(TERMINATED)  # Ray's processes end with it
        return
    raise_requested()


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    _Asked.has_interrupt = True
    raise KeyboardInterrupt


def _note(request: StopRequest) -> None:
    _Asked.request, _Asked.at, _Asked.was_raised = request, time.monotonic(), False
    _Asked.taken.clear()
    last = threading.Timer(LAST_SECONDS, _end, args=(request,))
    last.daemon = True
    last.start()


def _end(request: StopRequest) -> None:
    """End the process if the request is still being handled."""
    if _Asked.request is request:
        say_now(f"the sweep did not end within {LAST_SECONDS:.0f} s and is ended now; finished trials are kept.")
        os._exit(request.status)
