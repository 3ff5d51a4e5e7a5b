"""Best settings of a sweep in a git repository: one YAML file a cell, and a commit that names the scores.

`python examples/config_repository.py runs/first ../configs` writes `settings/*.yaml` into the repository and commits
them; where nothing changed, nothing is committed. `meltpoint train settings/CELL.yaml` trains one again. It pushes
nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import meltpoint as mp


def asked() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", help="the sweep's folder, STORAGE/NAME")
    parser.add_argument("repository", type=Path, help="a checkout of the repository")
    parser.add_argument("--folder", default="settings", help="the folder in the repository")
    return parser.parse_args()


def git(repository: Path, *words: str) -> str:
    """The output of a git command in the repository.

    Raises:
        ValueError: it failed; the first line of what git says.
    """
    done = subprocess.run(["git", "-C", str(repository), *words], capture_output=True, encoding="utf-8", check=False)
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise ValueError(f"git {words[0]} in {repository}: {said[0] if said else 'failed'}")
    return done.stdout


def message(sweep: mp.LoadedSweep) -> str:
    """The commit's message: a line a cell with its best trial's dev score and the means over the finals' seeds."""
    lines = [f"Best settings of the sweep {sweep.name}", ""]
    for cell in sweep.cells.dropna(subset=["best_dev"]).index:
        best = sweep.best(str(cell))
        means = [
            f"{split} {best[f'{split}_mean']:.4f}" for split in ("dev", "test") if best[f"{split}_mean"] is not None
        ]
        over = f"; over {len(best['seeds'])} seeds {', '.join(means)}" if means else ""
        lines.append(f"{cell}: dev {best['metric']} {best['dev']:.4f}{over}")
    return "\n".join(lines)


def main() -> int:
    """Export into the repository and commit what changed."""
    options = asked()
    git(options.repository, "rev-parse", "--is-inside-work-tree")
    sweep = mp.load_sweep(options.sweep)
    storage, _, name = sweep.place.rstrip("/").rpartition("/")
    target = options.repository / options.folder
    words = ["export", name, "--out", str(target), "--storage", storage or "."]
    subprocess.run([sys.executable, "-m", "meltpoint.launch", *words], check=True, stdout=sys.stderr)
    files = [f"{options.folder}/{cell}.yaml" for cell in sweep.cells.dropna(subset=["best_dev"]).index]
    git(options.repository, "add", "--", *files)
    if not git(options.repository, "status", "--porcelain", "--", *files).strip():
        print("Nothing changed; no commit.")
        return 0
    git(options.repository, "commit", "--quiet", "--message", message(sweep), "--", *files)
    print(git(options.repository, "log", "-1", "--format=%h %s").strip())
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ValueError, subprocess.CalledProcessError) as error:
        print(f"config_repository: {error}", file=sys.stderr)
        sys.exit(2)
