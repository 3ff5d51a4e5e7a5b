"""The script that Ray starts for a worker: it requests one from the fork server, or becomes one itself.

Run as a script, with nothing but the standard library: it has to be there in 20 ms.
"""

from __future__ import annotations

import array
import json
import os
import select
import socket
import struct
import sys
from pathlib import Path
from typing import NamedTuple

FORKING = "MELTPOINT_FORKING"
"""The environment variable that tells this script what `Forking` says, as JSON."""
ANSWER = b"1"
LOOK_SECONDS = 2.0
"""How often it looks whether the raylet is still there: there is no faster way without imports that take longer."""
LENGTH = struct.Struct("!Q")


class Forking(NamedTuple):
    """The address of the fork server, and Ray's own way to start a worker, which `patches` fills in.

    Attributes:
        socket: where the fork server listens.
        setup: Ray's own script for starting a worker.
        language: an option that Ray's script takes and the worker does not.
        runtime_environment: the option by which Ray asks for a worker with an environment of its own, never forked.
    """

    socket: str
    setup: str
    language: str
    runtime_environment: str

    def as_json(self) -> str:
        """For the environment."""
        return json.dumps(self._asdict())

    @classmethod
    def from_environment(cls) -> Forking:
        """As `patches` wrote it into the raylet's environment, which its workers inherit."""
        return cls(**json.loads(os.environ[FORKING]))


def ask(path: str, arguments: list[str]) -> socket.socket | None:
    """A worker from the fork server, or None where there is none; the connection lasts as long as the worker."""
    try:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        wanted = {"arguments": arguments, "environment": dict(os.environ), "folder": str(Path.cwd())}
        request = json.dumps(wanted).encode()
        outputs = array.array("i", [0, 1, 2])
        connection.sendmsg([LENGTH.pack(len(request))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, outputs)])
        connection.sendall(request)
        return connection if connection.recv(1) == ANSWER else None
    except OSError:
        return None


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """On the fork server's side: a request (JSON) and the numbers of its open files (input, output, errors)."""
    head, outputs, _, _ = socket.recv_fds(connection, LENGTH.size, 3)
    (length,) = LENGTH.unpack(head)
    parts = []
    while length:
        parts.append(connection.recv(min(length, 65536)))
        if not parts[-1]:
            raise ConnectionError("Ray's command is gone")
        length -= len(parts[-1])
    return b"".join(parts), outputs


def wait_for_end(connection: socket.socket, raylet: int) -> None:
    """Wait until the worker has ended, from which nothing comes, or the raylet: the worker notices and ends too."""
    while os.getppid() == raylet:
        ready, _, _ = select.select([connection], [], [], LOOK_SECONDS)
        if ready:
            return


def main(arguments: list[str]) -> None:
    """Wait for the fork server's worker to end; or be the worker, by Ray's own script for that."""
    forking = Forking.from_environment()
    plain = [argument for argument in arguments if argument != forking.language]
    is_plain = not any(argument.startswith(forking.runtime_environment) for argument in plain)
    connection = ask(forking.socket, plain) if is_plain else None
    if connection is None:
        os.execv(sys.executable, [sys.executable, forking.setup, *arguments])
    wait_for_end(connection, os.getppid())


if __name__ == "__main__":
    main(sys.argv[1:])
