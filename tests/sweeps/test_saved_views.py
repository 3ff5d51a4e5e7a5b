"""labels: names that tell runs apart at a glance, and colours by mode."""

from __future__ import annotations

import base64
import json
import zlib
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest

from meltpoint.sweeps.tracking import saved_views
from meltpoint.sweeps.tracking.saved_views import MAX_TAG_LENGTH, Column, View, fragment, tags_of
from meltpoint.sweeps.tracking.views import (
    cell_labels,
    cell_view,
    every_view,
    searched,
    sweep_views,
)
from meltpoint.tests.sweeps.made_up_sweep import cells_of


def cell(encoder: str = "minilm", mode: str = "fine_tuning", variant: str = "") -> SimpleNamespace:
    return SimpleNamespace(
        encoder=encoder, mode=mode, task_name="sst2", variant=variant, name=f"{encoder}.{mode}.{variant}"
    )


def test_a_cell_is_named_by_symbol_and_task_and_by_the_encoder_where_there_are_several() -> None:
    assert list(cell_labels([cell(), cell(mode="feature_extraction")]).values()) == ["🔥 sst2", "❄ sst2"]
    both = cell_labels([cell(), cell("hf:FacebookAI/roberta-large", variant="short")])
    assert list(both.values()) == ["🔥 sst2 · minilm", "🔥 sst2 · short · roberta-large"]


VERSION = "3.17.2"
VIEW = View("v", "A view", "tags.`a` = 'b'", Column("metrics", "best_dev"), columns=(Column("params", "task"),))


def by_hand(value: str) -> dict:
    """The state in a tag's value, decoded without our code: base64 of zlib behind `deflate;`."""
    word, _, packed = value.partition(";")
    assert word == "deflate"
    return json.loads(zlib.decompress(base64.b64decode(packed)))


def words_of(address: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(address.removeprefix("#")).query).items()}


def test_a_named_view_is_a_tag_with_its_name_its_time_and_its_state() -> None:
    tags = tags_of([VIEW], 1000, VERSION)
    assert set(tags) == {"mlflow.sharedViewState.v"}
    frame = json.loads(tags["mlflow.sharedViewState.v"])
    assert set(frame) == {"name", "createdAt", "state"}
    assert (frame["name"], frame["createdAt"]) == ("A view", 1000)
    state = by_hand(frame["state"])
    assert state["searchFilter"] == "tags.`a` = 'b'"
    assert (state["orderByKey"], state["orderByAsc"]) == ("metrics.`best_dev`", False)
    assert state["selectedColumns"] == ["params.`task`"]


@pytest.mark.parametrize("version", ["3.17.0", "3.17.9"])
def test_an_address_names_the_view_where_the_version_is_verified(version: str) -> None:
    assert words_of(fragment("7", VIEW, version)) == {
        "workflowType": "machine_learning", "compareRunsMode": "TABLE", "viewStateShareKey": "v",
    }  # fmt: skip


@pytest.mark.parametrize("version", ["3.18.0", "3.1.7", "4.0.0", ""])
def test_another_version_gets_filter_and_order_in_the_address_and_no_tag(version: str) -> None:
    assert tags_of([VIEW], 0, version) == {}
    assert words_of(fragment("7", VIEW, version)) == {
        "workflowType": "machine_learning", "compareRunsMode": "TABLE", "searchFilter": "tags.`a` = 'b'",
        "orderByKey": "metrics.`best_dev`", "orderByAsc": "false",
    }  # fmt: skip


@pytest.mark.parametrize("count", [12, 100, 300])
def test_every_view_of_a_sweep_fits_into_a_tag(count: int) -> None:
    cells = cells_of(count)
    tags = tags_of(every_view(cells), 0, VERSION)
    assert len(tags) == len(sweep_views(cells)) + count
    assert max(map(len, tags.values())) <= MAX_TAG_LENGTH


def test_a_view_that_cannot_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sharedViewState\.w is too long for a tag: \d+ of 5000"):
        tags_of([View("w", "w", "".join(f"{n * 7919:x}" for n in range(9999)), Column("tags", "x"))], 0, VERSION)


def test_the_finals_of_a_setting_are_one_row() -> None:
    (finals,) = (view for view in sweep_views(cells_of(3)) if view.id == "finals")
    state = saved_views.state_of(finals)
    assert state["groupBy"]["groupByKeys"] == [{"mode": "tag", "groupByData": "meltpoint.final_of"}]


def test_the_view_of_a_cell_has_columns_of_what_is_searched_and_its_learning_curves() -> None:
    (cell,) = (cell for cell in cells_of(3) if cell.mode == "fine_tuning")
    state = saved_views.state_of(cell_view(cell))
    columns = [column for column in state["selectedColumns"] if column.startswith("params.")]
    assert columns == [f"params.`{name}`" for name in searched(cell.space)]
    assert [chart["metricKey"] for chart in state["compareRunCharts"]] == [f"curve/{cell.task_name}", "train/loss"]
    shown = {section["uuid"] for section in state["compareRunSections"] if section["display"]}
    assert {chart["metricSectionId"] for chart in state["compareRunCharts"]} == shown


def test_each_task_has_a_chart_of_its_learning_curves() -> None:
    (curves,) = (view for view in sweep_views(cells_of(12)) if view.id == "curves")
    lines = [chart["metricKey"] for chart in saved_views.state_of(curves)["compareRunCharts"]]
    assert lines == ["curve/sst2", "curve/mrpc", "curve/cola", "curve/stsb", "train/loss"]
