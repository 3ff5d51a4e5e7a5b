"""Headless Chromium, driven by Selenium, for checks and pictures of `report --format html` pages."""

from __future__ import annotations

import base64
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
