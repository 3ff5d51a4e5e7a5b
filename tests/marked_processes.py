"""Processes that a test started, and all that those started: known by a mark in their environment.

A process whose parent died belongs to another parent; its environment stays as it was.
"""

from __future__ import annotations

from contextlib import suppress
from uuid import uuid4

import psutil

VARIABLE = "MELTPOINT_TEST_MARK"


class Marked:
    """A group of processes that were started with a mark.

    Attributes:
        environment: what to start the first one with, beside its own.
    """

    def __init__(self) -> None:
        self._mark = uuid4().hex
        self.environment = {VARIABLE: self._mark}

    def processes(self, title: str = "") -> list[psutil.Process]:
        """Those that run, with words in their command line."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(VARIABLE) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found += [process] if title in titled(process) else []
        return found

    def kill(self, title: str = "") -> int:
        """Send SIGKILL to those with words in their command line; returns to how many."""
        victims = self.processes(title)
        for process in victims:
            with suppress(psutil.Error):
                process.kill()
        return len(victims)


def titled(process: psutil.Process) -> str:
    """A process's command line, which Ray makes say what a worker does; empty for one that is gone."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""
