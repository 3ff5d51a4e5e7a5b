"""cluster_watch: what the driver cannot do without is missed when it is gone for long, and not before."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from meltpoint.sweeps.on_ray.cluster_watch import Lost, watched

PATIENCE_SECONDS = 30.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(("127.0.0.1", 0))
        made.listen(50)
        yield made


class Heard:
    """What the watch has told."""

    def __init__(self) -> None:
        self.lost: list[Lost] = []
        self.came = threading.Event()

    def __call__(self, lost: Lost) -> None:
        self.lost.append(lost)
        self.came.set()


def test_a_part_that_is_gone_is_told_once_with_its_name_and_only_after_its_time(listener):
    heard, address = Heard(), listener.getsockname()
    with watched({"Ray's head": address}, heard, lost_seconds=1.0):
        listener.close()
        closed = time.monotonic()
        assert heard.came.wait(PATIENCE_SECONDS)
        assert time.monotonic() - closed >= 0.7
    (lost,) = heard.lost
    assert str(lost) == f"Ray's head did not answer for {lost.seconds:.0f} s"
    assert lost.seconds >= 1.0


def test_parts_that_are_gone_together_are_told_together_the_first_one_first(listener):
    heard = Heard()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(50)
        parts = {"the raylet": other.getsockname(), "Ray's head": listener.getsockname()}
        with watched(parts, heard, lost_seconds=1.0):
            other.close()
            listener.close()
            assert heard.came.wait(PATIENCE_SECONDS)
    assert [lost.part for lost in heard.lost] == ["the raylet and Ray's head"]


def test_a_part_that_comes_back_in_time_is_not_missed(listener):
    heard, address = Heard(), listener.getsockname()
    looks = 0
    with watched({"Ray's head": address}, heard, lost_seconds=2.0):
        listener.close()
        time.sleep(1.0)
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(address)
            again.listen(50)
            again.settimeout(PATIENCE_SECONDS)
            while looks < 6:
                connection, _ = again.accept()
                connection.close()
                looks += 1
            assert heard.lost == []


def test_nothing_is_told_of_a_cluster_that_is_left_in_order(listener):
    heard = Heard()
    with watched({"Ray's head": listener.getsockname()}, heard, lost_seconds=0.2):
        pass
    listener.close()
    assert not heard.came.wait(0.6)
