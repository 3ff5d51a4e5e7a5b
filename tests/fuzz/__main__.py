"""`python -m meltpoint.tests.fuzz`: mutated files against every reader; status 1 where one ended with a fault.

Repeats exactly with the same seed. `--target NAME --number N` reads one input again and shows its traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meltpoint.tests.fuzz import batch, watch
from meltpoint.tests.fuzz.batch import make_bases, targets

HUNG_SECONDS = 6 * watch.LIMIT_SECONDS
"""After so long without a word a process hangs where its own timer does not reach: in C code."""

START_SECONDS = 600.0
"""How long a process may take to its first word: it imports torch and reads every whole file once."""


@dataclass
class Findings:
    """What came of the inputs.

    Attributes:
        read, accepted: inputs by target.
        faults: (target, kind, place) → the inputs that had it, and the first one's traceback.
        broken: why the fuzzer itself could not go on; "" if it could.
    """

    read: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    faults: dict[tuple[str, str, str], list[Any]] = field(default_factory=dict)
    broken: str = ""

    def add(self, line: dict[str, Any]) -> None:
        """Count one input."""
        target, number = line["input"]
        self.read[target] += 1
        self.accepted[target] += line["accepted"]
        if line["fault"]:
            fault = line["fault"]
            key = (target, fault["kind"], fault["where"])
            if key not in self.faults:
                print(f"FAULT {' '.join(key)}, input {number}: {fault['message'][:200]}", file=sys.stderr, flush=True)
            self.faults.setdefault(key, [fault["message"], fault["trace"]]).append(number)

    def show(self) -> None:
        """Print a table of the targets, then every kind of fault."""
        for target, count in sorted(self.read.items()):
            print(f"  {target:15} {count:7} inputs, {self.accepted[target]:6} accepted")
        for (target, kind, where), (message, _trace, *numbers) in sorted(self.faults.items()):
            print(f"FAULT {target} {kind} in {where}: {len(numbers)} inputs, first {numbers[0]}: {message[:200]}")
        print(self.line())

    def line(self) -> str:
        """The inputs and the faults so far."""
        return f"{sum(self.read.values())} inputs, {len(self.faults)} kinds of faults"


def one_process(base: Path, seed: int, inputs: list[batch.Input], findings: Findings, until: float) -> None:
    """Read inputs in child processes: a new one for the rest after a crash or a hang.

    Args:
        until: the `time.monotonic()` at which it leaves the rest.
    """
    while inputs and time.monotonic() < until:
        command = [sys.executable, "-m", "meltpoint.tests.fuzz", "--child", str(base), "--seed", str(seed)]
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert child.stdin is not None
        assert child.stdout is not None
        silence = _killed_after(START_SECONDS, child)
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(json.dumps(inputs))
            child.stdin.close()
        under_way: Any = None
        for text in child.stdout:
            silence.cancel()
            if time.monotonic() > until:
                child.kill()
                break
            silence = _killed_after(HUNG_SECONDS, child)
            line = json.loads(text)
            under_way = line.get("begins")
            if under_way is None:
                findings.add(line)
                inputs = inputs[1:]
        status, is_hung = child.wait(), silence.finished.is_set()
        silence.cancel()
        if under_way is not None and time.monotonic() < until:
            kind = "Hung" if is_hung else "Crashed"
            fault = {"kind": kind, "where": f"status {status}", "message": "", "trace": ""}
            findings.add({"input": under_way, "accepted": False, "fault": fault})
            inputs = inputs[1:]
        elif status and time.monotonic() < until:
            findings.broken = f"a process of the fuzzer itself ended with status {status}; try --jobs 1 --child"
            return


def _killed_after(seconds: float, child: subprocess.Popen[str]) -> threading.Timer:
    """A running timer that kills a child; its event `finished` is set once it has."""
    timer = threading.Timer(seconds, child.kill)
    timer.daemon = True
    timer.start()
    return timer


def show_one(base: Path, seed: int, one: batch.Input) -> None:
    """Read one input again, and print its file and its traceback."""
    batch.prepare(base)
    name, data = targets(base)[one[0]].mutated(batch.rng_of(seed, *one))
    print(f"{name}: {len(data)} bytes: {data[:1500]!r}")
    fault, accepted = batch.read_one(base, seed, one)
    print(f"accepted: {accepted}", fault and f"{fault.kind} in {fault.where}: {fault.message}\n{fault.trace}")


def main() -> None:
    """Read the options, run, and show what was found."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=math.inf, help="read no more after so long")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--target", action="append", help="some of the targets")
    parser.add_argument("--number", type=int, help="one input of one target")
    parser.add_argument("--base", type=Path, help="a folder to keep the whole files in")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        batch.run(options.child, options.seed, [(name, number) for name, number in json.load(sys.stdin)])
        return
    with tempfile.TemporaryDirectory(prefix="meltpoint-fuzz-") as scratch:
        base = (options.base or Path(scratch)).resolve()
        base.mkdir(exist_ok=True)
        make_bases(base)
        if options.number is not None:
            show_one(base, options.seed, (options.target[0], options.number))
            return
        until = time.monotonic() + options.seconds
        weights = {name: one.weight for name, one in targets(base).items() if name in (options.target or targets(base))}
        every, findings = list(batch.plan(weights, options.inputs)), Findings()
        shares = [list(itertools.islice(every, start, None, options.jobs)) for start in range(options.jobs)]
        threads = [
            threading.Thread(target=one_process, args=(base, options.seed, share, findings, until)) for share in shares
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(60.0)
                print(findings.line(), file=sys.stderr, flush=True)
    findings.show()
    raise SystemExit(findings.broken or bool(findings.faults))


if __name__ == "__main__":
    main()
