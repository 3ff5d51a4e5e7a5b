"""Best settings of a sweep as training jobs: one plain command a cell, for a queue, or run at once.

`python examples/training_job.py runs/first --out jobs` exports each cell's best setting and prints the command that
trains it; `| sh`, `| parallel` or a line of a batch script runs them. `--run` runs them here, one after another.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

import meltpoint as mp

MELTPOINT = [sys.executable, "-m", "meltpoint.launch"]


def asked() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", help="the sweep's folder, STORAGE/NAME")
    parser.add_argument("--cell", help="one cell, ENCODER.MODE.TASK; else every cell that has a best setting")
    parser.add_argument("--seed", type=int, help="another seed than the search's")
    parser.add_argument("--out", type=Path, default=Path("jobs"), help="the folder for settings and models")
    parser.add_argument("--transformers", action="store_true", help="models as plain folders of transformers")
    parser.add_argument("--run", action="store_true", help="train now")
    return parser.parse_args()


def export(sweep: mp.LoadedSweep, cell: str, out: Path) -> Path:
    """Write a cell's best setting, with its scores and where it comes from."""
    storage, _, name = sweep.place.rstrip("/").rpartition("/")
    words = ["export", name, "--cell", cell, "--out", str(out), "--storage", storage or "."]
    subprocess.run([*MELTPOINT, *words], check=True, stdout=sys.stderr)
    return out / f"{cell}.yaml"


def main() -> int:
    """Print the commands, and run them where that is asked for."""
    options = asked()
    sweep = mp.load_sweep(options.sweep)
    cells = [options.cell] if options.cell else [str(cell) for cell in sweep.cells.dropna(subset=["best_dev"]).index]
    for cell in cells:
        best = sweep.best(cell)
        file = export(sweep, cell, options.out)
        words = ["train", str(file), "--out", str(options.out / f"{cell}.trained")]
        words += [] if options.seed is None else ["--seed", str(options.seed)]
        words += ["--transformers"] if options.transformers else []
        print(f"# {cell}: dev {best['metric']} {best['dev']:.4f}")
        print(shlex.join(["meltpoint", *words]), flush=True)
        if options.run and subprocess.run([*MELTPOINT, *words], check=False).returncode != 0:
            print(f"{cell}: its training failed, or gave another score than the sweep's.", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ValueError, subprocess.CalledProcessError) as error:
        print(f"training_job: {error}", file=sys.stderr)
        sys.exit(2)
