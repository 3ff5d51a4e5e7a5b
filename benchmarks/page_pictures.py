"""Headless Chromium, driven by Selenium, for pictures and checks of `report --format html` pages."""

from __future__ import annotations

import argparse
import base64
import io
import json
import math
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console

from meltpoint.reports.screen import show_summary
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.summary import summarise

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
PRINTED_PIXELS = 703
"""The width of A4 less the page's margins of 12 mm, at 96 pixels an inch."""
OPEN_ALL = "document.querySelectorAll('details').forEach((node) => { node.open = true; })"
AXE = """
const done = arguments[0];
axe.run(document, {}).then((result) => done(result.violations.map((one) => (
  {id: one.id, impact: one.impact, first: one.nodes[0].html, count: one.nodes.length}))));
"""


def missing() -> str:
    """The parts missing on this machine to drive Chromium, with the remedy; "" if none is missing."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    if absent:
        return f"{' and '.join(absent)} not found: apt-get install chromium chromium-driver"
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed: pip install selenium"
    return ""


class Browser:
    """One browser tab; colours, sizes and media are emulated, so one process can show every variant of a page."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def show(self, page: Path, width: int, height: int = 1000, dark: bool = False) -> None:
        """Open a file in a window of the given size in pixels."""
        self._resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": [scheme]})
        self.driver.get(page.absolute().as_uri())

    def _resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page, and return its value."""
        return self.driver.execute_script(script, *arguments)

    def open_all(self, width: int) -> None:
        """Open every section in a window as high as the page, so that parts drawn on sight are drawn."""
        self.run(OPEN_ALL)
        self._resize(width, self.height + 2000)
        self.wait_for("[...document.querySelectorAll('.plot')].every((node) => node.querySelector('canvas'))")
        self.wait_for("[...document.querySelectorAll('.trials')].every((node) => node.querySelector('tbody'))")

    @property
    def height(self) -> int:
        """The height of the whole page, in pixels."""
        return int(self.run("return document.documentElement.scrollHeight"))

    def wait_for(self, condition: str, seconds: float = 60.0) -> None:
        """Wait until a JavaScript condition holds in the page."""
        from selenium.webdriver.support.wait import WebDriverWait

        WebDriverWait(self.driver, seconds).until(lambda driver: driver.execute_script(f"return {condition}"))

    def complaints(self) -> list[str]:
        """Console lines since the last call: errors, and violations of the page's content security policy."""
        return [f"{one['level']}: {one['message']}" for one in self.driver.get_log("browser")]

    def violations(self, axe: Path) -> list[dict[str, Any]]:
        """Accessibility findings of the axe-core script in `axe`: id, impact, first element, and number of elements."""
        source = axe.read_text(encoding="utf-8")
        self.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": source})  # the page's policy allows no script
        found: list[dict[str, Any]] = self.driver.execute_async_script(AXE)
        return found

    def printed(self) -> bytes:
        """The page printed to PDF."""
        options = {"preferCSSPageSize": True, "printBackground": False}
        return base64.b64decode(self.driver.execute_cdp_cmd("Page.printToPDF", options)["data"])

    def lay_out_for_print(self) -> None:
        """Show the page in its print layout, at A4 width."""
        self._resize(PRINTED_PIXELS, 1000)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        self.run("window.dispatchEvent(new Event('beforeprint'))")

    def picture(self, width: int, top: int = 0, height: int | None = None) -> bytes:
        """A part of the page as PNG, from `top` down to the end of the page, or to `height`."""
        clip = {"x": 0, "y": top, "width": width, "height": height or self.height - top, "scale": 1}
        options = {"format": "png", "captureBeyondViewport": True, "clip": clip}
        return base64.b64decode(self.driver.execute_cdp_cmd("Page.captureScreenshot", options)["data"])

    def opening_seconds(self) -> float:
        """Seconds from navigation until the page is loaded and first painted."""
        script = """
          const [found] = performance.getEntriesByType("navigation");
          const paints = performance.getEntriesByType("paint").map((one) => one.startTime);
          return JSON.stringify([found.loadEventEnd, ...paints]);
        """
        self.wait_for("performance.getEntriesByType('paint').length > 0")
        return float(max(json.loads(self.run(script)))) / 1000


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser with a temporary profile, deleted on exit.

    Raises:
        ValueError: Chromium, its driver or Selenium is missing.
    """
    if lack := missing():
        raise ValueError(lack)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(prefix="meltpoint-browser-", ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            yield Browser(driver)
        finally:
            driver.quit()


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


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(prog="page_pictures", description=__doc__)
    parser.add_argument("page", type=Path, help="a page of `report --format html`")
    parser.add_argument("out", type=Path, help="the folder of the pictures")
    options = parser.parse_args()
    with browser() as shown:
        save(terminal(shown, options.page.parent), options.out / "demo.png")
        save(front(shown, options.page), options.out / "report.png")


if __name__ == "__main__":
    main()
