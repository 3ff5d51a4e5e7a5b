"""Reading the ledger's logs: files of JSON objects, one a line, to which lines are only added."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel

from meltpoint.sweeps.ledger.records import reason
from meltpoint.sweeps.storage.files import StoragePath, contents

LAST_MOMENT = 1e11
"""Seconds since 1970, of the year 5138: later ones are damage, and no calendar has the largest."""

Line = TypeVar("Line", bound=BaseModel)


def read_lines(path: StoragePath, line_class: type[Line]) -> list[Line]:
    """Read a log; empty if it does not exist.

    A line without its end was being written as the power failed, and what it is written before was not done: left out.

    Raises:
        ValueError: a line is damaged; the message names the file.
    """
    try:
        lines = contents(path).decode("utf-8").split("\n")
        return [line_class.model_validate_json(line) for line in lines if _is_whole(line)]
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise ValueError(f"{path} has a line that is damaged ({reason(error)}); delete that line.") from None


def _is_whole(line: str) -> bool:
    return bool(line.strip()) and not (line[0] == "{" and line[-1] != "}")
