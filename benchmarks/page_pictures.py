"""Pictures of a sweep for the documentation: its table in a terminal, its page's front, and the plots of a cell.

    python -m meltpoint.benchmarks.page_pictures STORAGE/NAME/report.html docs/images --cell 1

writes `demo.png`, `report.png` and `report_cell.png`, with at most 128 colours each, so that they stay small.
"""

from __future__ import annotations

import argparse
import io
import math
import tempfile
from pathlib import Path

from PIL import Image
from rich.console import Console

from meltpoint.benchmarks.browser import Browser, browser
from meltpoint.reports.screen import show_summary
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.summary import summarise

WIDTH, COLOURS = 1100, 128
COLUMNS, AFTER_TABLE = 90, "What tuning bought"
"""The terminal's width in characters, and the first words that its picture leaves out."""
TERMINAL = """<!doctype html><meta charset="utf-8"><style>
body { margin: 0; padding: 16px; background: #282828; color: #d0d0d0; width: max-content; }
pre { margin: 0; font: 15px/1.35 monospace; }
</style><pre>%s</pre>"""


def save(picture: bytes, path: Path) -> None:
    """Write a PNG with few colours."""
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(COLOURS).save(path, optimize=True)
    print(path)


def terminal(shown: Browser, sweep: Path) -> bytes:
    """The table as `meltpoint report NAME` shows it on a terminal, and what it shows in words.

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
    """The front of the page, until the table."""
    shown.show(page, WIDTH)
    end = shown.run("return document.getElementById('table').getBoundingClientRect().top + scrollY")
    return shown.picture(WIDTH, 0, int(end) - 20)


def plots(shown: Browser, page: Path, cell: int) -> bytes:
    """The hyperparameters of a cell: importance, parallel coordinates, and each against the score."""
    shown.show(page, WIDTH)
    shown.open_all(WIDTH)
    top, bottom = shown.run(
        """
        const node = document.getElementById(arguments[0]);
        const places = [...node.querySelectorAll("h4")].map((head) => head.getBoundingClientRect().top + scrollY);
        const at = [...node.querySelectorAll("h4")].findIndex((head) => head.textContent === "Hyperparameters");
        return [places[at], places[at + 1]];
        """,
        f"cell-{cell}",
    )
    return shown.picture(WIDTH, int(top) - 10, int(bottom - top))


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(prog="page_pictures", description=__doc__)
    parser.add_argument("page", type=Path, help="a page of `report --format html`")
    parser.add_argument("out", type=Path, help="the folder of the pictures")
    parser.add_argument("--cell", type=int, default=0, help="whose plots; counted from 0")
    options = parser.parse_args()
    with browser() as shown:
        save(terminal(shown, options.page.parent), options.out / "demo.png")
        save(front(shown, options.page), options.out / "report.png")
        save(plots(shown, options.page, options.cell), options.out / "report_cell.png")


if __name__ == "__main__":
    main()
