"""Draw `bars.png` from a sweep's `report.json`: each mode's test score over seeds, the recommended mode in colour.

Usage: python docs/images/bars.py runs/demo
"""

import json
import sys
from pathlib import Path

from matplotlib import pyplot

NAMES = {"feature_extraction": "frozen", "fine_tuning": "fine-tuned", "stack_and_finetune": "stacked, then fine-tuned"}


def draw(sweep: Path, out: Path) -> None:
    """Draw the first task's modes as horizontal bars, the best on top."""
    report = json.loads((sweep / "report.json").read_text(encoding="utf-8"))
    found = report["recommendations"][0]
    standings = found["ranking"][::-1]
    figure, axes = pyplot.subplots(figsize=(8, 1 + 0.6 * len(standings)), layout="constrained")
    for place, one in enumerate(standings):
        is_best = one["is_recommended"]
        score, spread = 100 * one["score"], 100 * (one["std"] or 0)
        axes.barh(place, score, xerr=spread, color="#d9480f" if is_best else "#74a9cf", height=0.6, capsize=4)
        axes.text(score + spread + 0.8, place, f"{score:.1f}", va="center", weight="bold" if is_best else "normal")
    axes.set_yticks(range(len(standings)), [NAMES[one["mode"]] for one in standings])
    axes.set_xlim(0, 105)
    axes.set_xlabel(f"{found['task']}: {found['metric']} × 100 on {found['split']}, mean ± deviation over seeds")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, dpi=120)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(__file__).with_name("bars.png"))
