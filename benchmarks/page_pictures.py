"""Pictures of a sweep's page for the documentation: its front, and the plots of a cell.

    python -m meltpoint.benchmarks.page_pictures STORAGE/NAME/report.html docs/images --cell 1

writes `report.png` and `report_cell.png`, with at most 128 colours each, so that they stay small.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

from PIL import Image

from meltpoint.benchmarks.browser import Browser, browser

WIDTH, COLOURS = 1100, 128


def save(picture: bytes, path: Path) -> None:
    """Write a PNG with few colours."""
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(COLOURS).save(path, optimize=True)
    print(path)


def front(shown: Browser, page: Path) -> bytes:
    """The front of the page, until the section on costs."""
    shown.show(page, WIDTH)
    shown.wait_for("[...document.querySelectorAll('#tuning ~ .charts .plot')].every((n) => n.querySelector('canvas'))")
    end = shown.run("return document.getElementById('cost').getBoundingClientRect().top + scrollY")
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
    """Take both pictures."""
    parser = argparse.ArgumentParser(prog="page_pictures", description=__doc__)
    parser.add_argument("page", type=Path, help="a page of `report --format html`")
    parser.add_argument("out", type=Path, help="the folder of the pictures")
    parser.add_argument("--cell", type=int, default=0, help="whose plots; counted from 0")
    options = parser.parse_args()
    with browser() as shown:
        save(front(shown, options.page), options.out / "report.png")
        save(plots(shown, options.page, options.cell), options.out / "report_cell.png")


if __name__ == "__main__":
    main()
