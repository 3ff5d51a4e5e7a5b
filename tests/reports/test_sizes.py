"""Scores over sizes of train: the sentences, the table and the figure."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from meltpoint.adapters import modes
from meltpoint.reports.analyses.core.analysis import AnalysisOptions
from meltpoint.reports.analyses.sizes import run
from meltpoint.reports.findings import crossing, curves_of
from meltpoint.reports.html.page import html
from meltpoint.reports.report import report
from meltpoint.reports.results import results_of
from meltpoint.reports.table_values import Delta
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.tests.reports.stored_sweeps import read_csv

ICE, FIRE = "feature_extraction", "fine_tuning"
SIZES = (64, 256, 1024)


@pytest.fixture
def cells(make_cell) -> list[CellSummary]:
    scores = {ICE: (0.70, 0.74, 0.76), FIRE: (0.60, 0.75, 0.90)}
    made = []
    for mode, over in scores.items():
        for size, score in zip(SIZES, over, strict=True):
            cell = make_cell(mode, variant=f"n{size}", finals=[(score, score), (score, score + 0.02)])
            made.append(replace(cell, header=cell.header.model_copy(update={"train_examples": size})))
    return made


def deltas(cells: list[CellSummary], **claimed: float) -> list[Any]:
    """A comparison of 🔥 and ❄ at each size; `n64=-0.1` is surely ❄'s."""
    of = {(cell.header.mode, cell.header.variant): cell.header.key for cell in cells}
    made = []
    for size in SIZES:
        gain = claimed.get(f"n{size}", 0.0)
        known = SimpleNamespace(
            upper=of[FIRE, f"n{size}"], lower=of[ICE, f"n{size}"], gain=gain, is_claimed=abs(gain) > 0,
            p_holm=None if math.isnan(gain) else 0.01 if gain else 1.0,
        )  # fmt: skip
        made.append(Delta("Δ", known, in_family=True))
    return made


@pytest.mark.parametrize(
    ("claimed", "says"),
    [
        ({"n64": -0.1, "n1024": 0.14}, "🔥 overtakes ❄ between 64 and 1 024 examples."),
        ({"n64": -0.1, "n256": 0.01, "n1024": 0.14}, "🔥 overtakes ❄ between 64 and 256 examples."),
        ({"n64": 0.1, "n1024": -0.14}, "❄ overtakes 🔥 between 64 and 1 024 examples."),
        ({"n64": -0.1, "n256": 0.1, "n1024": -0.1}, "❄ and 🔥 change places more than once; see the table."),
        ({"n1024": 0.14}, "🔥 is better than ❄ at 1 024 examples; at 64, 256 they cannot be told apart."),
        ({"n64": math.nan, "n256": math.nan, "n1024": 0.14}, "🔥 is better than ❄ at 1 024 examples."),
        (dict.fromkeys(("n64", "n256", "n1024"), math.nan), ""),
        ({"n64": 0.1, "n256": 0.1, "n1024": 0.1}, "🔥 is better than ❄ at each size."),
        ({}, "❄ and 🔥 cannot be told apart at any size."),
    ],
)
def test_the_lead_changes_between_the_sizes_where_it_is_sure(cells, claimed: dict[str, float], says: str) -> None:
    (curve,) = curves_of(cells)
    assert crossing(curve, ICE, FIRE, deltas(cells, **claimed)) == says


def test_the_analysis_has_a_row_for_each_mode_and_size_and_a_figure(cells, make_sweep, tmp_path) -> None:
    one = make_sweep(*(cell for cell in cells if cell.header.train_examples == 64))
    assert "Over sizes of train" not in report(one, "md")
    with pytest.raises(ValueError, match="scores at one size only; sweep with --train-sizes"):
        run(AnalysisOptions(one, None, tmp_path))
    options = AnalysisOptions(make_sweep(*cells), None, tmp_path)
    written = {path.name for path in run(options)}
    assert written == {f"sizes.{form}" for form in ("md", "csv", "tex", "svg", "png")}
    rows = read_csv(tmp_path / "sizes.csv")
    assert [(row["train"], row["mode"]) for row in rows[:2]] == [
        ("64", "❄ feature_extraction"),
        ("64", "🔥 fine_tuning"),
    ]
    assert [float(row["score"]) for row in rows] == pytest.approx([0.71, 0.61, 0.75, 0.76, 0.77, 0.91])


def test_the_page_draws_each_modes_scores_over_the_sizes_in_its_colour(cells, make_sweep) -> None:
    page = html(results_of(make_sweep(*cells)))
    embedded = page.partition('<script type="application/json" id="data">')[2].partition("</script>")[0]
    data = json.loads(embedded)
    ((first, second),) = (chart["lines"] for chart in data["sizes"])
    assert [line["mode"] for line in (first, second)] == [ICE, FIRE]
    assert [point[:2] for point in first["points"]] == [[64, 71.0], [256, 75.0], [1024, 77.0]]
    assert set(data["colours"]) == set(modes.names())
    assert "🔥 fine_tuning: 61.0 at 64, 76.0 at 256, 91.0 at 1 024" in page
