"""A headless Chromium, driven through selenium: pages of the dashboard, clicks that are counted, the console.

`python -m meltpoint.tests.sweeps.browser FOLDER STORAGE NAME` opens a sweep that was run, and saves its cells as
`FOLDER/dashboard.png`: so the documents' picture was taken, of `make demo`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from meltpoint.sweeps.specification.tracking_uri import default_uri
from meltpoint.sweeps.tracking.saved_views import fragment
from meltpoint.sweeps.tracking.store import sweep_fragments
from meltpoint.sweeps.tracking.views import curves_view
from meltpoint.tests.sweeps.mlflow_server import MlflowServer

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--lang=en",
)  # fmt: skip
WAIT_SECONDS = 120.0
"""Longest wait for a page: MLflow's front end is 10 MB of JavaScript, and the machine may be busy."""
OF_MLFLOW = ("mlflow/users/current", "ResizeObserver loop")
"""Lines that MLflow's front end leaves in the console on any page of a server without sign-in: a request for the
signed-in user, which is answered by 404, and a notice of the browser about charts that change their size."""
ASSISTANT = {"mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true", "mlflow.assistant.panelOpen_v1": "false"}
"""What the front end keeps in the browser once a reader has closed its assistant."""
SIZES = {"twelve": (12, 16), "hundred": (100, 16)}
"""Name → (cells, search trials of each) of the made-up sweeps."""


def missing() -> str:
    """What this machine lacks for it, in words; empty if nothing."""
    lacking = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    if lacking:
        return f"{' and '.join(lacking)} not installed (apt install chromium chromium-driver)"
    return "" if find_spec("selenium") else "selenium is not installed (pip install selenium)"


class Browser:
    """A browser with a profile of its own.

    Attributes:
        actions: how many clicks a reader has made since the last `open`, which is the first action.
    """

    def __init__(self, driver: Any) -> None:
        self.driver, self.actions = driver, 0

    def open(self, address: str) -> None:
        """Open an address, as a reader who clicks on what the terminal printed."""
        self.driver.get("about:blank")  # the addresses differ behind `#` alone, so that nothing would be loaded
        self.driver.get(address)
        self.actions = 1

    def click(self, text: str) -> None:
        """Click on a link or button by its text."""
        quoted = f"//*[self::a or self::button or @role='tab'][contains(normalize-space(.), {_literal(text)})]"
        self.until(lambda: self._clicked(quoted), f"nothing to click: {text}")
        self.actions += 1
        self._follow()

    def _follow(self) -> None:
        """Go to the tab that a click has opened, as links in descriptions do, and close the one before."""
        time.sleep(1)
        if len(self.driver.window_handles) > 1:
            self.driver.close()
            self.driver.switch_to.window(self.driver.window_handles[-1])

    def _clicked(self, path: str) -> bool:
        for element in self.driver.find_elements("xpath", path):
            if element.is_displayed():
                self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
                element.click()
                return True
        return False

    def text(self) -> str:
        """The visible text of the page."""
        return str(self.driver.find_element("tag name", "body").text)

    def rows(self) -> list[str]:
        """The names of runs in the table, from the top."""
        cells = self.driver.find_elements("css selector", ".ag-pinned-left-cols-container [role='row']")
        ordered = sorted(cells, key=lambda cell: int(cell.get_attribute("row-index") or 0))
        return [" ".join(cell.text.split()) for cell in ordered]

    def sees(self, *texts: str) -> None:
        """Wait until the page shows every one of these texts."""
        self.until(lambda: all(text in self.text() for text in texts), f"not on the page: {texts}")

    def until(self, condition: Callable[[], bool], failure: str) -> None:
        """Wait for a condition; elements may be replaced while it looks at them.

        Raises:
            AssertionError: it does not come true.
        """
        from selenium.common.exceptions import WebDriverException

        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                if condition():
                    return
            except WebDriverException:
                pass  # a page that is drawn anew
            assert time.monotonic() < deadline, f"{failure}\n{self.text()[:3000]}"
            time.sleep(0.3)

    def picture(self, file: Path) -> None:
        """Save what is to be seen, once charts have come to rest."""
        time.sleep(2)
        self.driver.save_screenshot(str(file))

    def errors(self) -> list[str]:
        """The errors in the console since the last call, but those of MLflow itself."""
        lines = [str(line["message"]) for line in self.driver.get_log("browser") if line["level"] == "SEVERE"]
        return [line for line in lines if not any(known in line for known in OF_MLFLOW)]


def _literal(text: str) -> str:
    return f'"{text}"' if '"' not in text else f"'{text}'"


@contextmanager
def browser(width: int = 1600, height: int = 1000) -> Iterator[Browser]:
    """A browser that ends with the block."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = str(shutil.which("chromium"))
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
        try:
            yield Browser(driver)
        finally:
            driver.quit()


@contextmanager
def dashboard(storage: Path) -> Iterator[str]:
    """MLflow's server on a storage, as `meltpoint ui` starts it; yields its address."""
    server = MlflowServer(
        storage, "--artifacts-destination", (storage / "mlartifacts").as_uri(), store=default_uri(storage)
    )  # fmt: skip
    server.start()
    try:
        yield server.uri
    finally:
        server.kill()


def links(storage: Path, server: str, sweep: str) -> dict[str, str]:
    """View → its address; `Dashboard` is the one that `meltpoint ui SWEEP` prints."""
    cells = sweep_fragments(default_uri(storage), sweep)[sweep]
    experiment = cells.split("/")[2]
    curves = fragment(experiment, curves_view([]), metadata.version("mlflow"))
    return {name: f"{server.rstrip('/')}/{part}" for name, part in (("Dashboard", cells), ("curves", curves))}


def without_assistant(page: Browser, server: str) -> None:
    """Close MLflow's assistant, which a new browser opens by itself, so that pictures show the tables."""
    page.open(server)
    time.sleep(3)  # it opens when the page has loaded
    for key, value in ASSISTANT.items():
        page.driver.execute_script("window.localStorage.setItem(arguments[0], arguments[1])", key, value)


def shrink(file: Path) -> None:
    """Save a picture with 256 colours, in place."""
    from PIL import Image

    with Image.open(file) as picture:
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)


def of_a_sweep(storage: Path, sweep: str, folder: Path) -> None:
    """Save a picture of a sweep's cells in the dashboard."""
    with dashboard(storage) as server, browser(height=800) as page:
        without_assistant(page, server)
        page.open(links(storage, server, sweep)["Dashboard"])
        page.sees("matching runs", "default test")
        page.picture(folder / "dashboard.png")
        assert page.errors() == []


def main() -> None:
    """Save a picture with 256 colours."""
    if lacking := missing():
        sys.exit(f"Not run: {lacking}.")
    folder, storage, sweep = sys.argv[1:]
    of_a_sweep(Path(storage).absolute(), sweep, Path(folder))
    shrink(Path(folder) / "dashboard.png")


if __name__ == "__main__":
    main()
