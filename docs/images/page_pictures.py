"""Take `demo.png` and `report.png` of a page of `report --format html` with Chromium.

Usage: python docs/images/page_pictures.py PAGE.html
"""

import io
import math
import sys
import tempfile
from pathlib import Path

from PIL import Image
from rich.console import Console

from meltpoint.reports.screen import show_summary
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.summary import summarise
from meltpoint.tests.reports.browser import Browser, browser

WIDTH, COLOURS = 1100, 128
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


if __name__ == "__main__":
    page, images = Path(sys.argv[1]), Path(__file__).parent
    with browser() as shown:
        save(terminal(shown, page.parent), images / "demo.png")
        save(front(shown, page), images / "report.png")
