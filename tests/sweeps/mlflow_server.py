"""A real MLflow server for tests, and a TCP proxy before it that refuses, hangs, cuts, and loses answers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from meltpoint.sweeps.machine.services import connection_fault
from meltpoint.tests.local_servers import free_ports

START_SECONDS = 150.0


class MlflowServer:
    """`mlflow server` on a SQLite store in a folder of its own, which can be killed and started again."""

    def __init__(self, folder: Path, *more: str, store: str | None = None, **variables: str) -> None:
        self.folder, self.more, self.port = folder, more, free_ports(1)[0]
        self.store = store or f"sqlite:///{folder / 'server.db'}"
        self.uri = f"http://127.0.0.1:{self.port}"
        self.variables = variables
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ["--host", "127.0.0.1", "--port", str(self.port), "--workers", "1", "--backend-store-uri", self.store]
        words += ["--artifacts-destination", (self.folder / "artifacts").as_uri(), *self.more]
        added = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "PYTHONUTF8": "1"}
        with (self.folder / "server.log").open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", *words], stdout=log, stderr=log, start_new_session=True,
                env=dict(os.environ) | added | self.variables, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        while connection_fault("127.0.0.1", self.port):
            assert self.process.poll() is None, (self.folder / "server.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def kill(self) -> None:
        """End the server and its workers without warning."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@contextmanager
def mlflow_server(folder: Path, *more: str) -> Iterator[MlflowServer]:
    server = MlflowServer(folder, *more)
    server.start()
    try:
        yield server
    finally:
        server.kill()


Matches = Callable[[bytes], bool]
"""Whether a rule applies to a request, by its first bytes."""


class Proxy:
    """A TCP proxy on 127.0.0.1 before a server.

    Attributes:
        loses: which requests are forwarded and their answer is thrown away; asked for each.
    """

    def __init__(self, port: int) -> None:
        self.target = port
        self.port = free_ports(1)[0]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.loses: Matches = lambda request: False
        self._hangs = False
        self._listener: socket.socket | None = None
        self._open: set[socket.socket] = set()

    def listen(self) -> None:
        """Take connections, on the same port as before."""
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port), backlog=50)
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def refuse(self) -> None:
        """Refuse connections, as an address where nobody listens, and cut those that are open."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        self.cut()

    def cut(self) -> None:
        """Close all open connections."""
        for one in list(self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def hang(self, hangs: bool) -> None:
        """Take connections and never answer; or answer again, to new connections."""
        self._hangs = hangs
        self.cut()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """Forward one connection's requests, one after another, and their answers."""
        self._open.add(client)
        with client, suppress(OSError):
            while request := _message(client):
                if self._hangs:
                    client.recv(1)  # until it is cut, or the client has enough
                    return
                loses = self.loses(request)
                answer = self._ask(request)
                if loses or not answer:
                    return
                client.sendall(answer)
        self._open.discard(client)

    def _ask(self, request: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.target)) as server:
            server.sendall(request)
            return _message(server)


def _message(source: socket.socket) -> bytes:
    """One HTTP request or answer with its body, whose length its head says; empty where the connection ends."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = source.recv(65536)
        if not part:
            return b""
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    missing = (int(lengths[0]) if lengths else 0) - len(body)
    while missing > 0:
        part = source.recv(65536)
        if not part:
            return b""
        data += part
        missing -= len(part)
    return data


@contextmanager
def proxy(port: int) -> Iterator[Proxy]:
    made = Proxy(port)
    made.listen()
    try:
        yield made
    finally:
        made.refuse()
