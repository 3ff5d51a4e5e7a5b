"""ui: what a reader finds in MLflow's dashboard, in how many actions, by a real browser on sweeps of 12 and 100 cells.

An action is the opening of an address that `meltpoint ui NAME` prints, or a click.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from meltpoint.tests.sweeps import made_up_sweep
from meltpoint.tests.sweeps.browser import SIZES, Browser, browser, dashboard, links, missing, without_assistant


def questions(page: Browser, pages: Mapping[str, str], folder: Path, name: str) -> dict[str, int]:
    """Answer a reader's questions on a sweep, with a picture of each answer.

    Args:
        pages: view → its address.
        name: the sweep's, for the names of the pictures.

    Returns:
        question → actions.
    """
    first, curves = pages["Dashboard"], pages["curves"]
    counts: dict[str, int] = {}

    def answered(question: str) -> None:
        counts[question] = page.actions
        page.picture(folder / f"{name}-{question.replace(' ', '-')}.png")

    page.open(first)
    page.sees("1/3 ★", "default test")
    answered("who wins")
    page.click("❄ mrpc")
    page.sees("1/3 ★ on mrpc: test ", "Best setting", "learning_rate", "Learning curves")
    answered("best setting")
    page.click("Learning curves")
    page.sees("dev/f1", "train/loss", "16 matching runs")
    answered("all trials of a cell")
    page.open(curves)
    page.sees("curve/sst2", "curve/mrpc")  # the others are further down, and drawn once you scroll to them
    answered("learning curves")
    return counts


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage with sweeps of 12 and of 100 cells."""
    made = tmp_path_factory.mktemp("storage")
    for name, (cells, trials) in SIZES.items():
        made_up_sweep.write(made, name, cells, trials)
    return made


@pytest.mark.slow
@pytest.mark.timeout(1200)  # 1 792 made-up runs are written first
@pytest.mark.skipif(bool(missing()), reason=missing() or "everything is there")
def test_a_reader_finds_winners_settings_and_curves_in_few_actions(storage: Path, tmp_path: Path) -> None:
    with dashboard(storage) as server, browser() as page:
        without_assistant(page, server)
        page.sees(*SIZES)
        assert "meltpoint" not in page.text(), "the home page shows no raw tag"
        page.errors()
        for name, (cells, _) in SIZES.items():
            counts = questions(page, links(storage, server, name), tmp_path, name)
            assert counts["who wins"] <= 1
            assert counts["best setting"] <= 2
            assert counts["learning curves"] <= 2
            page.open(links(storage, server, name)["Dashboard"])
            page.sees(f"{cells} matching runs")
        assert page.errors() == []
