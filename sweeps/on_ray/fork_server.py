"""A process that has imported what workers need, and forks one in milliseconds where Ray would start a new Python.

A worker's imports (torch, transformers) and its encoder take 5 s of processor time. On a local cluster this process has
them once, beside the driver's own, and its children share the memory. Python's multiprocessing has the same in its
forkserver, but Ray starts its workers by a command line: `forked_worker.py` stands there, and asks over a socket.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from meltpoint.adapters import heap
from meltpoint.sweeps.machine.signals import NOTICES
from meltpoint.sweeps.on_ray.forked_worker import ANSWER, receive

FORK_SAFE = {
    "OMP_NUM_THREADS": "1",  # no threads of torch's or numpy's own, which a fork would lose
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # nor of pyarrow's allocator
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # looking for a GPU must not start CUDA: it breaks in a fork
}

KEPT_BYTES, MAPPED_BYTES = 2**30, 2**25
MALLOC = (
    "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1"
    f":glibc.malloc.trim_threshold={KEPT_BYTES}:glibc.malloc.mmap_threshold={MAPPED_BYTES}"
)
"""Huge pages, and one arena for all threads, since a trial's own would have none: a fine-tuning step takes and gives
back some 100 MB, at a page fault each 4 kB. A step of eight trials side by side takes more than the 64 MB that glibc
keeps at most, so it may keep 1 GB (`memory.make_room` gives that back where memory is scarce); who sets this has to say
too from which size on memory is mapped: the largest that glibc comes to. glibc from 2.35 on; others do not look."""

RAYS_PARTS = (
    "pandas", "pyarrow.fs", "fsspec", "google.protobuf.json_format", "jsonschema", "msgpack", "requests", "rich.table",
)  # fmt: skip
"""What Ray imports in every worker that is not Ray's own, and costs a quarter of its import."""

PR_SET_PDEATHSIG = 1
"""Linux's `prctl` option for the signal that a process gets when its parent ends."""

GPU_DEVICES = ("nvidia[0-9]*", "dxg", "kfd", "accel/accel*", "davinci[0-9]*")
"""Device files of NVIDIA's GPUs (under WSL: dxg), AMD's, and of accelerators by Intel, Google and Huawei."""


class ForkServer:
    """The fork server of a local cluster, seen from the driver. It ends with the driver, its children go on.

    Attributes:
        socket_path: where it listens.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="meltpoint-fork-")
        self.socket_path = str(Path(self._folder.name) / "socket")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_open(self) -> bool:
        """True if it was started, and not closed since."""
        return self._process is not None

    def open(self, encoder: str, kind: str) -> None:
        """Start it; it imports in the background. Only Linux forks safely after imports like torch's.

        Args:
            encoder, kind: the encoder's word and the kind of task, for `worker.warm_encoder`.
        """
        if sys.platform != "linux":
            return
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.socket_path)
        listener.listen(64)  # Ray's commands wait here while the imports last
        with listener:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "meltpoint.sweeps.on_ray.fork_server", str(listener.fileno()), encoder, kind],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env=environment(), pass_fds=[listener.fileno()], start_new_session=True,
            )  # fmt: skip

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()  # it waits for that, too, in case the driver is killed
            self._process.kill()
            self._process.wait()
            self._process = None
        self._folder.cleanup()


def machine_has_gpus(devices: Path = Path("/dev")) -> bool:
    """True if there is a GPU's device file; forking was not yet measured beside GPUs, and stays off there.

    Ray may still find one in another way, or hide one that is there: `Cluster` asks it once it has started.
    """
    return any(next(devices.glob(pattern), None) is not None for pattern in GPU_DEVICES)


def environment() -> dict[str, str]:
    """The fork server's: what makes it safe to fork, and how its children get memory unless the user says it."""
    return {"GLIBC_TUNABLES": MALLOC, **os.environ, **FORK_SAFE}


def main(listener: socket.socket, encoder: str, kind: str) -> None:
    """The fork server's process: import, then fork whoever asks, until the driver is gone."""
    for number in NOTICES:  # the driver's business, though Slurm sends them to all processes
        signal.signal(number, signal.SIG_IGN)
    if not _end_with_driver():
        return
    heap.raise_gc_threshold()
    _import(encoder, kind)
    heap.freeze_heap()
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        return  # a fork would lose the other threads, and keep their locks; workers start in Ray's way then
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the dead
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        connection, _ = listener.accept()
        with connection:
            if os.fork() == 0:
                listener.close()
                _become_worker(connection)
                return


def _end_with_driver() -> bool:
    """Let the kernel end this process with the thread that started it; False if the driver is gone already.

    The imports take many seconds on a busy machine, and it looks after its input only behind them.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # forks do not inherit it
    ready, _, _ = select.select([sys.stdin], [], [], 0)
    return not ready


def _become_worker(connection: socket.socket) -> None:
    """Do what Ray's command was started for: its command line, its environment, its outputs."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgid(0, 0)  # Ray ends a worker's process group with the worker
    request, outputs = receive(connection)
    asked = json.loads(request)
    connection.sendall(ANSWER)  # and stays open as long as this process lives: Ray's command waits for its end
    threading.Thread(target=_end_with, args=(connection,), name="ray-command", daemon=True).start()
    for number, opened in enumerate(outputs):
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    sys.argv = asked["arguments"]
    runpy.run_path(sys.argv[0], run_name="__main__")


def _end_with(connection: socket.socket) -> None:
    """End this process with Ray's command, which ends with its raylet.

    A worker that has a raylet's ear notices by itself, one that is still starting does not.
    """
    try:
        connection.recv(1)
    except OSError as error:
        if error.errno == errno.EBADF:
            return  # closed here, by a worker at its own end: what it has printed is still to be flushed
    os._exit(1)


def _import(encoder: str, kind: str) -> None:
    """Import what a worker needs, and load the first cell's encoder.

    Not Ray: it reads its environment (the job, the token) as it is imported, and that is each worker's own. And not
    what opens test splits: that is imported where finalists are scored, and nowhere else.
    """
    import torch

    from meltpoint.sweeps.worker import worker

    for name in RAYS_PARTS:
        with contextlib.suppress(ImportError):  # of another version of Ray, which does without
            importlib.import_module(name)
    with contextlib.suppress(ValueError, OSError):  # the trial comes upon the same trouble, and has an outcome for it
        worker.warm_encoder(encoder, kind)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise RuntimeError("CUDA cannot be used after a fork")


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), *sys.argv[2:])
