"""This commit against an older one of this repository: the same `meltpoint sweep`, each from a fresh storage.

    python -m meltpoint.benchmarks.against_commit OLD [--repeats 1] -- --encoder minilm --task sst2 … (as for `sweep`)

Both run in this environment, from exported trees: what is not committed has no part in it. An older commit may draw
other settings and stop other trials, so epochs are counted, too.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from meltpoint.benchmarks.alternation import Measurement, alternate, show
from meltpoint.benchmarks.processes import run_timed

NAME = "benchmark"


def export(repository: Path, commit: str, folder: Path) -> Path:
    """A commit's tree as a package; the folder to put on Python's path.

    Raises:
        ValueError: there is no such commit.
    """
    package = folder / commit / "meltpoint"
    package.mkdir(parents=True)
    archive = subprocess.run(["git", "-C", str(repository), "archive", commit], capture_output=True, check=False)
    if archive.returncode:
        raise ValueError(f"{commit} is no commit of {repository}: {archive.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tree:
        tree.extractall(package, filter="data")
    return package.parent


def sweep(tree: Path, words: Sequence[str]) -> Measurement:
    """One side's sweep, from command to table."""
    path = os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as folder:
        command = [sys.executable, "-m", "meltpoint.launch", "sweep", "--name", NAME, "--storage", folder, *words]
        finished = run_timed(command, {"PYTHONPATH": path})
        return measurement(finished.seconds, finished.cpu_seconds, Path(folder) / NAME / "trials")


def measurement(seconds: float, cpu_seconds: float, trials: Path) -> Measurement:
    """What the ledger says of the trials that ran; a final that the search answered ran no second time.

    Raises:
        RuntimeError: a trial failed, so that the run measured something else.
    """
    every = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(trials.glob("*.json"))]
    records = [record for record in every if not record.get("answered_by")]
    failed = [str(record["error"]) for record in records if record["status"] == "failed"]
    if failed or not records:
        raise RuntimeError("; ".join(failed) or "no trial ended")
    first = min(record["started_at"] for record in records)
    last = max(record["started_at"] + record["seconds"] for record in records)
    epochs = sum(len(record["epochs"]) for record in records)
    return Measurement(
        seconds, {"first to last trial, s": last - first, "epochs": epochs, "processor seconds": cpu_seconds}
    )  # fmt: skip


def main() -> None:
    """Read the command line, run both in turn, print the ratio."""
    parser = argparse.ArgumentParser(prog="against_commit", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("commit", help="the older one")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("words", nargs="+", help="after --, as for `meltpoint sweep`")
    options = parser.parse_args()
    repository = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as folder:
        try:
            ours, theirs = (export(repository, commit, Path(folder)) for commit in ("HEAD", options.commit))
        except ValueError as error:
            parser.error(str(error))
        claim = f"meltpoint sweep {' '.join(options.words)}"
        comparison = alternate(
            claim, options.commit, lambda: sweep(ours, options.words), lambda: sweep(theirs, options.words),
            options.repeats,
        )  # fmt: skip
        show(comparison, options.json)


if __name__ == "__main__":
    main()
