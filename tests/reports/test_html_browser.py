"""The page in a real browser: widths, schemes, print, keyboard, and the figures with 10 000 trials."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meltpoint.reports.html.page import html
from meltpoint.reports.report import report
from meltpoint.reports.results import results_of
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary, summarise
from meltpoint.sweeps.search.selection import best_of
from meltpoint.tests.fixed_comparer import FixedComparer
from meltpoint.tests.reports.browser import PRINTED_PIXELS, Browser, browser, missing
from meltpoint.tests.reports.conftest import SETTING, SPACE, epoch
from meltpoint.tests.reports.stored_sweeps import store_sweep

LACK = missing()
WIDTHS = (390, 1300, 2560)
MODES = ("feature_extraction", "fine_tuning", "stack_and_finetune")
BLANK = """
return [...document.querySelectorAll(".plot canvas")].filter((node) => {
  const data = node.getContext("2d").getImageData(0, 0, node.width, node.height).data;
  return !data.some((value) => value);
}).length;
"""
FIRST = "return document.querySelector('.trials tbody tr').cells[arguments[0]].textContent"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(LACK), reason=LACK), pytest.mark.timeout(900)]


OVERFLOWING = """
return [...document.querySelectorAll("th, td, pre, canvas, select, h1, h2, h3, li, p")].filter((node) => {
  const box = node.getBoundingClientRect();
  const first = getComputedStyle(node).position === "absolute";
  return !first && box.width > 0 && (box.right > arguments[0] + 1 || box.left < -1);
}).map((node) => node.textContent.slice(0, 60));
"""


AXE = os.environ.get("MELTPOINT_AXE", "")


@pytest.fixture(scope="module")
def shown() -> Iterator[Browser]:
    with browser() as found:
        yield found


def with_trials(cell: CellSummary, count: int = 40) -> CellSummary:
    """The cell with random trials, of which one failed, in place of its only one."""
    draw = np.random.default_rng(0)
    (first,) = cell.search
    trials = []
    for number in range(count):
        rate, dropout = float(10 ** draw.uniform(-5, -4)), float(draw.uniform(0, 0.3))
        setting = {**SETTING, "learning_rate": rate, "dropout": dropout}
        setting["schedule"] = ("constant", "slanted_triangular")[number % 2]
        failed, score = number == 7, float(draw.uniform(0.5, 0.9))
        trials.append(first.model_copy(update={
            "number": number, "id": f"{first.id}-{number}", "dev": None if failed else score,
            "status": "failed" if failed else "finished", "error": "no room" if failed else None,
            "suggested_by": "random", "setting": setting, "best_epoch": None if failed else 3,
            "epochs": [] if failed else [epoch(at, first.metric, score * at / 3) for at in (1, 2, 3)],
        }))  # fmt: skip
    header = cell.header.model_copy(update={"space": SPACE})
    counts = {**cell.counts, "planned": count, "finished": count - 1, "failed": 1}
    return replace(cell, header=header, search=trials, best=best_of(trials), counts=counts)


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> SweepSummary:
    """A sweep of three kinds of task with predictions, finals, and 40 random trials a cell."""
    folder = tmp_path_factory.mktemp("stored")
    found = summarise(store_sweep(folder, "stored", ("accuracy", "span_f1", "pearson"), (0.6, 0.75, 0.9)))
    return replace(found, cells=[with_trials(cell) for cell in found.cells])


@pytest.fixture(scope="module")
def page(summary: SweepSummary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(report(summary, "html"), encoding="utf-8")
    return path


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_width_and_scheme_shows_everything_without_a_word_on_the_console(width, dark, shown, page):
    shown.complaints()
    shown.show(page, width, dark=dark)
    shown.open_all(width)
    assert shown.run("return document.documentElement.scrollWidth") == width, "the page itself never scrolls sideways"
    assert shown.run(BLANK) == 0
    assert shown.run("return document.querySelectorAll('.plot canvas').length") == 3 + 3
    light = shown.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert light is not dark
    assert shown.complaints() == []
    assert shown.run("return performance.getEntriesByType('resource').length") == 0, "nothing is loaded"


@pytest.mark.skipif(not Path(AXE).is_file(), reason="npm install axe-core, and name its axe.min.js in MELTPOINT_AXE")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_has_no_serious_findings(width: int, dark: bool, shown: Browser, page: Path) -> None:
    shown.show(page, width, dark=dark)
    shown.open_all(width)
    found = shown.violations(Path(AXE))
    assert [one for one in found if one["impact"] in ("serious", "critical")] == []


def test_the_wide_table_is_whole_on_a4(make_cell, make_sweep, shown: Browser, tmp_path: Path) -> None:
    cells = [
        make_cell(mode, task, variant=variant, head=variant, finals=[(0.8, 0.123 + at / 10)] * 6)
        for task in ("sst2", "mrpc", "a_task_with_a_rather_long_name") for variant in ("linear", "a_head_with_a_name")
        for at, mode in enumerate(MODES)
    ]  # fmt: skip
    path = tmp_path / "wide.html"
    path.write_text(html(results_of(make_sweep(*cells, seeds=6), comparer=FixedComparer(0.012))), encoding="utf-8")
    shown.show(path, 1300)
    shown.lay_out_for_print()
    heads = shown.run("return [...document.querySelectorAll('.stacked thead th')].map((node) => node.textContent)")
    assert len(heads) == 1 + 6 + 6
    assert shown.run(OVERFLOWING, PRINTED_PIXELS) == []


def test_the_printed_page_has_every_column_plot_and_section(shown: Browser, page: Path) -> None:
    shown.show(page, 1300)
    shown.lay_out_for_print()
    assert shown.run("return document.querySelectorAll('details:not([open])').length") == 0
    assert shown.run("return [...document.querySelectorAll('.plot')].every((node) => node.querySelector('canvas'))")
    assert shown.run(OVERFLOWING, PRINTED_PIXELS) == []
    assert shown.run("return document.querySelectorAll('.trials tbody tr').length") == 25
    assert "25 of 360 trials are printed" in shown.run(
        "return document.querySelector('.trials .only-print').textContent"
    )
    shown.run("window.dispatchEvent(new Event('afterprint'))")
    assert shown.run("return document.querySelectorAll('details.cell[open]').length") == 0


def test_trials_are_sorted_filtered_and_paged_by_keyboard(shown: Browser, page: Path, summary: SweepSummary) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    shown.show(page, 1300)
    shown.open_all(1300)
    table = shown.driver.find_element(By.CSS_SELECTOR, ".trials")
    cell = summary.cells[1]
    assert shown.run(FIRST, 0) == "1", "the best trials of the tasks come first"
    table.find_elements(By.CSS_SELECTOR, "select")[0].find_elements(By.TAG_NAME, "option")[2].click()
    assert shown.run(FIRST, 1) == f"{100 * cell.best.dev:.1f}", "the best trial of the cell is the first row"
    button = next(one for one in table.find_elements(By.CSS_SELECTOR, "th button") if one.text == "trial")
    button.send_keys(Keys.ENTER)
    assert shown.run(FIRST, 3) == "1"
    assert shown.run("return document.querySelector('.trials th[aria-sort]').ariaSort") == "ascending"
    button.send_keys(Keys.ENTER)
    assert shown.run(FIRST, 3) == "40"
    following = next(one for one in table.find_elements(By.TAG_NAME, "button") if one.text == "Next")
    following.send_keys(Keys.ENTER)
    status = table.find_element(By.CSS_SELECTOR, "[role=status]")
    assert status.text == "26 to 40 of 40 (360 in all)"
    table.find_element(By.CSS_SELECTOR, "input").send_keys("no room")
    assert status.text == "1 to 1 of 1 (360 in all)"
    assert shown.run(FIRST, 4) == "failed: no room"


def test_a_cell_is_opened_from_its_bar_and_its_setting_copied(shown: Browser, page: Path) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    shown.show(page, 1300)
    shown.driver.find_element(By.CSS_SELECTOR, 'a[href="#cell-2"]').send_keys(Keys.ENTER)
    assert shown.run("return document.getElementById('cell-2').open")
    shown.wait_for("document.querySelector('#cell-2 .buttons').offsetHeight > 0")
    shown.driver.find_element(By.CSS_SELECTOR, "#cell-2 [data-copy^=yaml]").send_keys(Keys.ENTER)
    shown.wait_for("document.querySelector('#cell-2 .buttons [role=status]').textContent !== ''")
    assert shown.run("return document.querySelector('#cell-2 .buttons [role=status]').textContent") == "Copied."
