"""A TCP proxy on 127.0.0.1 that closes each connection some seconds after it was opened, whatever passes through it.

As gateways and load balancers do, it breaks off in the midst of a request, or of its answer: what the server was sent
it carries out.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from meltpoint.tests.local_servers import free_ports


class ShortConnections:
    """The proxy.

    Args:
        port: of the server, on 127.0.0.1.
        seconds: the life of a connection.
        growth: by how much the lives of later ones are longer after each that was cut: 1 for always the same. A machine
            may be so busy that no request is answered within the first ones.

    Attributes:
        port: where it listens.
        opened, cut: how many connections were opened, and how many of them it closed before either side did.
    """

    def __init__(self, port: int, seconds: float, growth: float = 1.0) -> None:
        self.target, self.seconds, self.growth = port, seconds, growth
        self.port = free_ports(1)[0]
        self.opened = self.cut = 0
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=100)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def uri(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        """Take no more connections, and close those that are open."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in list(self._open):
            end(one)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """Forward what both sides send until either closes its side, or the time is over."""
        try:
            server = socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            client.close()
            return
        self.opened += 1
        self._open |= {client, server}
        timer = threading.Timer(self.seconds, self._cut, args=(client, server))
        timer.daemon = True
        timer.start()
        back = threading.Thread(target=forward, args=(server, client), daemon=True)
        back.start()
        forward(client, server)
        back.join()
        timer.cancel()
        with self._lock:
            for one in (client, server):
                self._open.discard(one)
                one.close()

    def _cut(self, client: socket.socket, server: socket.socket) -> None:
        with self._lock:
            if client in self._open:
                self.cut += 1
                self.seconds *= self.growth
                end(client)
                end(server)


def forward(source: socket.socket, target: socket.socket) -> None:
    """Send on all that comes, and its end."""
    with suppress(OSError):
        while part := source.recv(65536):
            target.sendall(part)
    end(source)
    end(target)


def end(one: socket.socket) -> None:
    """Close both directions of a connection, whoever reads from it."""
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


@contextmanager
def short_connections(port: int, seconds: float, growth: float = 1.0) -> Iterator[ShortConnections]:
    """The proxy while the block runs."""
    made = ShortConnections(port, seconds, growth)
    try:
        yield made
    finally:
        made.close()
