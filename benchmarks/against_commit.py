"""Comparison of this commit with an older one: the same `meltpoint sweep`, each in a new storage folder.

    python -m meltpoint.benchmarks.against_commit OLD [--repeats 1] -- --encoder minilm --task sst2 … (as for `sweep`)

Both run in this environment from exported trees, without uncommitted changes. An older commit may draw other settings
and stop other trials, so the epochs are counted too.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from meltpoint.benchmarks.alternation import Measurement, alternate, show
from meltpoint.benchmarks.processes import run_timed

NAME = "benchmark"


def export(repository: Path, commit: str, folder: Path) -> Path:
    """Export a commit's tree as a package and return the folder to put on Python's path.

    Raises:
        ValueError: there is no such commit.
    """
    package = folder / commit / "meltpoint"
    package.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "-C", str(repository), "archive", "--format=zip", commit], capture_output=True, check=False
    )
    if archive.returncode:
        raise ValueError(f"{commit} is no commit of {repository}: {archive.stderr.decode(errors='replace').strip()}")
    with zipfile.ZipFile(io.BytesIO(archive.stdout)) as tree:  # tarfile's filters are not in every Python 3.11
        tree.extractall(package)
    return package.parent


def sweep(tree: Path, arguments: Sequence[str]) -> Measurement:
    """Run one side's sweep as a command."""
    path = os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as folder:
        command = [sys.executable, "-m", "meltpoint.launch", "sweep", "--name", NAME, "--storage", folder, *arguments]
        finished = run_timed(command, {"PYTHONPATH": path})
        return measurement(finished.seconds, finished.cpu_seconds, Path(folder) / NAME / "trials")


def measurement(seconds: float, cpu_seconds: float, trials: Path) -> Measurement:
    """The figures of the trials that ran, from the ledger; finals with a result taken from the search did not run.

    Raises:
        RuntimeError: a trial failed, so that the measurement is invalid.
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
    """Parse the command line, run both sides alternately, print the ratio."""
    parser = argparse.ArgumentParser(prog="against_commit", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("commit", help="the older one")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("arguments", nargs="+", help="after --, as for `meltpoint sweep`")
    options = parser.parse_args()
    repository = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as folder:
        try:
            ours, theirs = (export(repository, commit, Path(folder)) for commit in ("HEAD", options.commit))
        except ValueError as error:
            parser.error(str(error))
        claim = f"meltpoint sweep {' '.join(options.arguments)}"
        comparison = alternate(
            claim, options.commit, lambda: sweep(ours, options.arguments), lambda: sweep(theirs, options.arguments),
            options.repeats,
        )  # fmt: skip
        show(comparison, options.json)


if __name__ == "__main__":
    main()
