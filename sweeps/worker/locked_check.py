"""`python -m meltpoint.sweeps.worker.locked_check`: a look at test splits before a search, in a process of its own.

Reads the specifications of data from standard input, a line of JSON each, and answers each with a line: `""` where the
test split can be read and every label is one of the task's, or the fault in one line. Nothing else of a test split
leaves the process: no text, no number of examples or labels, no fingerprint.
"""

from __future__ import annotations

import json
import sys

from meltpoint.tasks.core.locked import open_test
from meltpoint.tasks.core.task import DataSpec


def fault_of(spec: DataSpec) -> str:
    """The first fault of a test split, in one line; "" if it has none."""
    try:
        open_test(spec)
    except ValueError as error:
        return " ".join(str(error).split())
    return ""


def main() -> None:
    """Answer the lines of standard input."""
    for line in sys.stdin:
        print(json.dumps(fault_of(DataSpec(**json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
