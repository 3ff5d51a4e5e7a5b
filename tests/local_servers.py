"""Free ports and HTTP servers on 127.0.0.1 for tests, and a wait for what they bring about."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def until(condition: Callable[[], object], seconds: float = 240.0) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.01)


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class QuietHandler(BaseHTTPRequestHandler):
    """Answers to HTTP requests, without a line for each on standard error: `get` and `post` are written by a test."""

    def do_GET(self) -> None:
        """Answer a GET request."""
        self.get()

    def do_POST(self) -> None:
        """Answer a POST request."""
        self.post()

    def get(self) -> None:
        """Answer a GET request: there is nothing here."""
        self.answer(404)

    def post(self) -> None:
        """Answer a POST request: there is nothing here."""
        self.answer(404)

    def answer(self, status: int, body: str = "", **headers: str) -> None:
        """Send a whole answer."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def served_by(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """A server whose requests a handler answers, each in a thread of its own, while the block runs; yields its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
