"""`python -m meltpoint.sweeps.worker.locked_check`: a check of test splits before a search, in a separate process.

Reads data specifications from standard input, one line of JSON each, and answers each with one line of JSON: `""` if
the test split can be read and every label is one of the task's, otherwise the fault. Nothing else about a test split
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
    """Answer each line of standard input."""
    for line in sys.stdin:
        print(json.dumps(fault_of(DataSpec(**json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
