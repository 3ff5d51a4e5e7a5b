"""Draw the pictures of a finished sweep: `demo.png`, `report.png` (with Chromium) and a task's `bars.png`.

Usage, after `meltpoint report NAME --format html`: python docs/images/pictures.py STORAGE NAME TASK
"""

import io
import math
import sys
import tempfile
from pathlib import Path

from matplotlib import pyplot
from PIL import Image
from rich.console import Console

from meltpoint.reports.recommendation import Recommendation
from meltpoint.reports.results import results_of
from meltpoint.reports.screen import show_summary
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.summary import summarise
from meltpoint.tests.reports.browser import Browser, browser

WIDTH, COLOURS = 1100, 128
NAMES = {"feature_extraction": "frozen", "fine_tuning": "fine-tuned", "stack_and_finetune": "stacked, then fine-tuned"}
COLUMNS, AFTER_TABLE = 90, "What tuning bought"
"""The terminal's width in characters, and the text at which its picture ends."""
TERMINAL = """<!doctype html><meta charset="utf-8"><style>
body { margin: 0; padding: 16px; background: #282828; color: #d0d0d0; width: max-content; }
pre { margin: 0; font: 15px/1.35 monospace; }
</style><pre>%s</pre>"""


def save(picture: bytes, path: Path) -> None:
    """Write a PNG with few colours."""
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(COLOURS).save(path, optimize=True)
    print(path)


def terminal(shown: Browser, sweep: Path) -> bytes:
    """A picture of the terminal output of `meltpoint report NAME`, up to `AFTER_TABLE`.

    Args:
        sweep: the sweep's folder.
    """
    console = Console(record=True, force_terminal=True, highlight=False, width=COLUMNS, file=io.StringIO())
    show_summary(summarise(Ledger(sweep)), console)
    lines = console.export_html(inline_styles=True, code_format="{code}").split("\n")
    end = next((number for number, line in enumerate(lines) if AFTER_TABLE in line), len(lines))
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "terminal.html"
        page.write_text(TERMINAL % "\n".join(lines[:end]).strip(), encoding="utf-8")
        shown.show(page, WIDTH)
        size = shown.run("const box = document.body.getBoundingClientRect(); return [box.width, box.height]")
        return shown.picture(math.ceil(size[0]), 0, math.ceil(size[1]))


def front(shown: Browser, page: Path) -> bytes:
    """A picture of the page from the top down to the table."""
    shown.show(page, WIDTH)
    end = shown.run("return document.getElementById('table').getBoundingClientRect().top + scrollY")
    return shown.picture(WIDTH, 0, int(end) - 20)


def bars(found: Recommendation, out: Path) -> None:
    """Draw a task's test scores over seeds as bars, the best on top and the recommended mode in colour."""
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
    sweep, images = Path(storage) / name, Path(__file__).parent
    summary = summarise(Ledger(sweep))
    with browser() as shown:
        save(terminal(shown, sweep), images / "demo.png")
        save(front(shown, sweep / "report.html"), images / "report.png")
    bars({one.task: one for one in results_of(summary).recommendations}[task], images / "bars.png")
