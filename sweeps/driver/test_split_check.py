"""The check of a sweep's test splits before its first trial, so that hours of search do not end at a broken file.

A process of its own opens them (`sweeps.worker.locked_check`) and says of each that it is valid, or its first fault:
the driver, which chooses settings, learns nothing else of them. The look is logged as what it was, in
`test_checks.jsonl`; it closes no cell.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from pydantic import BaseModel

from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.storage.files import contents
from meltpoint.tasks.core import sources
from meltpoint.tasks.core.task import DataSpec


class _Look(BaseModel):
    """A line of `test_checks.jsonl`."""

    task: str
    data_fingerprint: str


class TestSplitCheck:
    """A look at test splits that is under way.

    Args:
        ledger: where a valid one is logged.
        cells: the cells whose test splits are looked at, a cell a task.
        process: opens them; None where there are none.
    """

    __test__ = False  # pytest would collect it by its name

    def __init__(self, ledger: Ledger, cells: Sequence[OpenCell], process: subprocess.Popen[str] | None) -> None:
        self.ledger, self.cells, self.process = ledger, cells, process

    def require(self) -> None:
        """Wait for the answers, and log those that are valid.

        Raises:
            ValueError: a test split cannot be read; one line with the file, the place and the remedy.
        """
        if self.process is None:
            return
        asked = "".join(json.dumps(asdict(cell.data)) + "\n" for cell in self.cells)
        said, error = self.process.communicate(asked)
        answers = [json.loads(line) for line in said.splitlines()]
        if len(answers) < len(self.cells):  # killed, for memory say: the split itself is not known to be broken
            raise ValueError(
                f"The look at the test splits ended early: {(error.strip().splitlines() or ['killed'])[-1]}"
            )
        for cell, fault in zip(self.cells, answers, strict=True):
            if fault:
                raise ValueError(
                    f"The test split of {cell.task_name} cannot be read: {fault} It was looked at before the search, "
                    "so nothing is lost."
                )
            line = {"task": cell.task_name, "data_fingerprint": cell.data_fingerprint, "looked_at": time.time()}
            self.ledger.append(self.ledger.test_checks, {**line, "found": "valid"})


@contextmanager
def looking_at_test_splits(ledger: Ledger, cells: Iterable[OpenCell]) -> Iterator[TestSplitCheck]:
    """Look at the test splits that were not looked at before; the process is ended with the block."""
    wanted = unchecked(ledger, cells)
    process = None
    if wanted:
        process = subprocess.Popen(
            [sys.executable, "-m", "meltpoint.sweeps.worker.locked_check"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
        )  # fmt: skip
    try:
        yield TestSplitCheck(ledger, wanted, process)
    finally:
        if process is not None:
            process.kill()
            process.communicate()


def unchecked(ledger: Ledger, cells: Iterable[OpenCell]) -> list[OpenCell]:
    """A cell of each task whose test split lies in files and was not looked at since train and dev were as they are.

    A generated one cannot be broken; one that is carved off train or dev was read with them.
    """
    known = _known(ledger)
    by_data: dict[DataSpec, OpenCell] = {cell.data: cell for cell in cells}
    return [
        cell
        for data, cell in by_data.items()
        if (cell.task_name, cell.data_fingerprint) not in known
        and not cell.task.generated
        and sources.check(data) in ("labelled", "hidden")
    ]


def _known(ledger: Ledger) -> set[tuple[str, str]]:
    try:
        text = contents(ledger.test_checks)
    except FileNotFoundError:
        return set()
    found = set()
    for line in text.splitlines():
        try:
            look = _Look.model_validate_json(line)
        except ValueError:
            continue  # a torn line: it is looked at again
        found.add((look.task, look.data_fingerprint))
    return found
