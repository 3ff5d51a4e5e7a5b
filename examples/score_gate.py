"""A gate for CI: status 1, with one line a cell, where a score fell below that of an earlier sweep.

`python examples/score_gate.py runs/nightly baseline/report.json` compares two sweeps cell by cell, on test where both
were scored there, else on dev. Either is a sweep's folder or its `report.json` (kept in the folder at a sweep's end;
`meltpoint report NAME --format json` prints it), so that the baseline can be a file in the repository.

With two seeds or more on both sides a drop is one that chance does not explain: a one-sided Welch test over the seeds,
at 5 % for all cells together (Bonferroni), of a drop beyond `--tolerance`. With a single seed chance cannot be told
from a drop, and the difference alone is compared with `--tolerance`. A test over seeds does not know which examples the
score rests on: `meltpoint compare` and a sweep's report do.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import meltpoint as mp

ALPHA = 0.05
Key = tuple[str, ...]


@dataclass(frozen=True)
class Drop:
    """A cell whose score fell.

    Attributes:
        cell: its name.
        line: what fell, and how sure that is.
    """

    cell: str
    line: str


def asked() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", help="the new sweep: its folder, or its report.json")
    parser.add_argument("baseline", help="the earlier one: its folder, or its report.json")
    parser.add_argument(
        "--tolerance", type=float, default=0.005, help="the drop that does not matter; 0.005 is 0.5 ×100"
    )
    return parser.parse_args()


def cells_of(place: str) -> dict[Key, dict[str, Any]]:
    """The cells of a sweep's report, by encoder, mode, task and variant.

    Raises:
        ValueError: there is no such sweep, or the file is no report.
    """
    try:
        text = (
            Path(place).read_text(encoding="utf-8") if place.endswith(".json") else mp.load_sweep(place).report("json")
        )
        cells = json.loads(text)["cells"]
        return {(cell["encoder"], cell["mode"], cell["task"], cell["variant"]): cell for cell in cells}
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{place} is no report of a sweep ({type(error).__name__}: {error})") from None


def scores_of(cell: Mapping[str, Any], split: str) -> list[float]:
    """The scores of its finals, one a seed, higher being better."""
    sign = -1.0 if cell["lower_is_better"] else 1.0
    return [sign * score for score in cell[f"{split}_scores"] if score is not None]


def drop_of(
    key: Key, new: Mapping[str, Any] | None, old: Mapping[str, Any], tolerance: float, tests: int
) -> Drop | None:
    """What fell in a cell; None where nothing did, or the baseline itself has no score."""
    name = ".".join(part for part in key if part)
    split = "test" if new is not None and scores_of(new, "test") and scores_of(old, "test") else "dev"
    before = scores_of(old, split)
    if not before:
        return None
    if new is None or not scores_of(new, split):
        return Drop(name, "has no score in the new sweep")
    now = scores_of(new, split)
    if new["metric"] != old["metric"]:
        return Drop(name, f"is scored by {new['metric']}, the baseline by {old['metric']}: not comparable")
    fell = fmean(before) - fmean(now)
    if fell <= tolerance:
        return None
    change = f"{split} {old['metric']} {old[f'{split}_mean']:.4f} → {new[f'{split}_mean']:.4f}"
    p = p_of_drop(now, before, tolerance)
    if p is None:
        return Drop(name, f"{change}, beyond the tolerance of {tolerance:g} (one seed: chance is not ruled out)")
    if p * tests >= ALPHA:
        return None
    return Drop(name, f"{change}, p {p * tests:.4f} over {len(now)} and {len(before)} seeds")


def p_of_drop(now: list[float], before: list[float], tolerance: float) -> float | None:
    """The p-value of "it fell by no more than the tolerance"; None where a side has one seed."""
    from scipy.stats import ttest_ind

    if min(len(now), len(before)) < 2:
        return None
    if len(set(now)) == len(set(before)) == 1:
        return 0.0  # no seed matters: the caller has seen that the means differ by more
    return float(ttest_ind(now, [score - tolerance for score in before], equal_var=False, alternative="less").pvalue)


def main() -> int:
    """Compare, and print what fell."""
    options = asked()
    new, old = cells_of(options.sweep), cells_of(options.baseline)
    found = [drop_of(key, new.get(key), cell, options.tolerance, len(old)) for key, cell in old.items()]
    drops = [drop for drop in found if drop is not None]
    for key, cell in old.items():
        if key in new and new[key]["data_fingerprint"] != cell["data_fingerprint"]:
            print(f"{'.'.join(filter(None, key))}: train or dev are other data than the baseline's.")
    for drop in drops:
        print(f"score_gate: {drop.cell} {drop.line}", file=sys.stderr)
    if not drops:
        print(f"Cells compared: {len(old)}. No score fell.")
    return 1 if drops else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ValueError as error:
        print(f"score_gate: {error}", file=sys.stderr)
        sys.exit(2)
