"""Draw `bars.png`: a task's test scores over seeds as a sweep has them, the recommended mode in colour.

Usage: python docs/images/bars.py STORAGE NAME TASK
"""

import sys
from pathlib import Path

from matplotlib import pyplot

from meltpoint.reports.commands.results import read_summary
from meltpoint.reports.recommendation import Recommendation
from meltpoint.reports.results import results_of

NAMES = {"feature_extraction": "frozen", "fine_tuning": "fine-tuned", "stack_and_finetune": "stacked, then fine-tuned"}


def draw(found: Recommendation, out: Path) -> None:
    """Draw the modes as horizontal bars, the best on top."""
    standings = found.standings[::-1]
    figure, axes = pyplot.subplots(figsize=(8, 1 + 0.6 * len(standings)), layout="constrained")
    for place, one in enumerate(standings):
        score, spread = 100 * one.score.mean, 100 * (one.score.std or 0)
        color, weight = ("#d9480f", "bold") if one.is_recommended else ("#74a9cf", "normal")
        axes.barh(place, score, xerr=spread, color=color, height=0.6, capsize=4)
        axes.text(score + spread + 0.8, place, f"{score:.1f}", va="center", weight=weight)
    axes.set_yticks(range(len(standings)), [NAMES[one.mode] for one in standings])
    axes.set_xlim(0, 100)
    axes.set_xlabel(f"{found.task}: {found.metric} × 100 on {found.split}, mean ± deviation over seeds")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, dpi=120)


if __name__ == "__main__":
    storage, name, task = sys.argv[1:]
    by_task = {one.task: one for one in results_of(read_summary(name, storage)).recommendations}
    draw(by_task[task], Path(__file__).with_name("bars.png"))
