"""The page of `report --format html`: figures as in the other formats, one file, and users' text is never markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meltpoint.adapters import modes
from meltpoint.reports.formats import p_text
from meltpoint.reports.html import page
from meltpoint.reports.html.front import cards, cost_charts, front_table, use_of
from meltpoint.reports.html.page import best_setting, cell_section, embedded, html, prose
from meltpoint.reports.report import kept_files, report
from meltpoint.reports.results import SweepResults, results_of
from meltpoint.reports.statistics.cost import trade_offs
from meltpoint.reports.table_values import STAR
from meltpoint.search_spaces import documents
from meltpoint.sweeps.results.export import best_space
from meltpoint.sweeps.results.summary import SweepSummary, summarise
from meltpoint.tests.fixed_comparer import FixedComparer
from meltpoint.tests.reports.stored_sweeps import store_sweep

ROOT = Path(__file__).resolve().parents[2]
VENDOR = ROOT / "reports" / "html" / "vendor"
MODES = ("feature_extraction", "fine_tuning", "stack_and_finetune")
MEANS = (0.7, 0.8, 0.805)
VOID = {"meta", "br", "wbr", "input", "rect"}


class Reader(HTMLParser):
    """A page's elements, the texts of its table cells, and its scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[str] = []
        self.raw: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("td", "th"):
            self.cells.append("")
        if tag in ("script", "style"):
            self.raw.append((tag, dict(attrs), ""))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            tag, attrs, before = self.raw[-1]
            self.raw[-1] = (tag, attrs, before + data)
        elif {"td", "th"} & set(self.open):
            self.cells[-1] += data

    def data(self) -> dict[str, Any]:
        (text,) = [text for _, attrs, text in self.raw if attrs.get("id") == "data"]
        found: dict[str, Any] = json.loads(text)
        return found


@pytest.fixture
def results(make_cell, make_sweep) -> SweepResults:
    cells = [
        make_cell(mode, task, search=(0.5, 0.9, None), finals=[(0.8, mean)] * 6, failed=("no room",))
        for task in ("sst2", "mrpc") for mode, mean in zip(MODES, MEANS, strict=True)
    ]  # fmt: skip
    cells[0].finals[0] = cells[0].finals[0].model_copy(update={"mlflow_run_id": "a" * 32})
    return results_of(make_sweep(*cells, seeds=6), comparer=FixedComparer(0.012))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> SweepSummary:
    """A sweep with stored predictions of a classification, a labelling and a regression task."""
    folder = tmp_path_factory.mktemp("stored")
    return summarise(store_sweep(folder, "stored", ("accuracy", "span_f1", "pearson"), (0.6, 0.9)))


def test_the_table_has_every_text_and_mark_of_the_other_formats_in_turned_order(results: SweepResults) -> None:
    (block,) = results.table.blocks
    table = front_table(block, results.table.deltas)
    rows = (*block.modes, *block.ensembles, *block.differences)
    assert [title for title, _ in table["heads"]] == [row.title for row in rows]
    for place, (_, entries) in enumerate(table["rows"]):
        assert [text for text, _ in entries] == [row.entries[place].text_with_marks for row in rows]
    adjusted = [p_text(one.comparison.p_holm or 0.0) for one in results.family if one.task == "sst2"]
    assert [p for _, p in table["rows"][0][1]] == ["", "", "", *adjusted]


def test_each_task_opens_with_its_recommendation_and_its_bars(results: SweepResults) -> None:
    found = cards(results)
    assert [one["task"] for one in found] == ["sst2", "mrpc"]
    for card, known in zip(found, results.recommendations, strict=True):
        assert [card[name] for name in ("sentence", "certainty", "details")] == [
            known.sentence, known.certainty, known.details,
        ]  # fmt: skip
        bars = card["bars"]
        assert [bar["mode"] for bar in bars] == [one.mode for one in known.standings]
        assert [bar["width"] for bar in bars] == [pytest.approx(100 * one.score.mean) for one in known.standings]
        assert [bar["mode"] for bar in bars if bar["is_recommended"]] == [known.winner.mode]
        assert [text for text, _ in card["ticks"]] == ["0", "50", "100"], "no score is above 100"
        assert f"--cell minilm.{known.winner.mode}.{known.task} --model" in card["commands"]
    table = front_table(results.table.blocks[0], results.table.deltas)
    assert sum(STAR in text for text, _ in table["rows"][0][1]) == 1


@pytest.mark.parametrize("kept", ["task.yaml", "model"], ids=["tune, whose model is yet to be kept", "a kept model"])
def test_the_page_of_a_sweep_that_keeps_its_model_predicts_by_the_sweeps_name(results, tmp_path, kept):
    known, folder = results.recommendations[0], tmp_path / results.summary.name
    (folder / kept).mkdir(parents=True)
    one_task = [cell for cell in results.summary.cells if cell.header.task == known.task]
    commands, python = use_of(known, replace(results.summary, folder=folder, cells=one_task))
    assert commands == f"meltpoint predict {folder.name} new.csv --storage {tmp_path}"
    assert f'mp.load_model("{folder}/model")' in python
    several, _ = use_of(known, replace(results.summary, folder=folder))
    assert f"--cell {known.winner.cell.name} --model" in several, "the kept model may be another task's"


def test_warnings_of_a_kind_share_a_line(make_cell, make_sweep) -> None:
    cells = [make_cell(MODES[0], task, search=(0.8,)) for task in ("sst2", "mrpc")]
    warned = [replace(cell, header=cell.header.model_copy(update={"warnings": ("dev is small",)})) for cell in cells]
    assert "Warning: sst2: dev is small; likewise mrpc." in report(make_sweep(*warned), "html")


def test_a_running_sweep_without_a_result_has_a_page_that_says_so(make_cell, make_sweep) -> None:
    results = results_of(make_sweep(make_cell(search=()), state="running"), comparer=FixedComparer())
    (card,) = cards(results)
    assert (card["sentence"], card["bars"]) == ("No recommendation yet: 0 of 1 cell have finals.", [])
    page = html(results)
    assert "There are no finals yet." in page
    assert "No trial has finished yet." in page


def test_the_page_has_the_figures_of_the_markdown_report(stored: SweepSummary) -> None:
    page = report(stored, "html")
    assert page == report(stored, "html"), "equal data give equal bytes"
    cells = {" ".join(cell.split()) for cell in Reader(page).cells}
    for line in report(stored, "md").splitlines():
        if not line.startswith("| ") or line.startswith("| ---"):
            continue
        for figure in re.findall(r"(?:dev )?[+−]?\d+\.\d(?: ± \d+\.\d| \[[^\]]*\])?", line.replace("*", "")):
            assert any(figure in cell for cell in cells) or figure in unescape(page), (figure, line)


def test_a_page_is_whole_and_loads_nothing(results: SweepResults) -> None:
    reader = Reader(html(results))
    assert reader.open == []
    assert [attrs for _, attrs in reader.tags if (attrs.get("href") or "").startswith("http")]
    for tag, attrs in reader.tags:
        assert not {"src", "srcset", "onclick", "onload", "style"} & attrs.keys(), (tag, attrs)
        if link := attrs.get("href"):
            assert tag == "a"
            assert link.startswith("#") or link == f"http://127.0.0.1:5000/#/runs/{'a' * 32}", "where `ui` shows MLflow"


def test_the_policy_allows_exactly_the_pages_own_scripts_and_style(results: SweepResults) -> None:
    reader = Reader(html(results))
    (policy,) = [a["content"] for _, a in reader.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    own = [
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for _, attrs, text in reader.raw if attrs.get("type") != "application/json"
    ]  # fmt: skip
    assert sorted(re.findall(r"'sha256-[^']+'", policy)) == sorted(own)
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    digest = hashlib.sha256((VENDOR / "echarts.min.js").read_bytes()).hexdigest()
    assert digest in (VENDOR / "README.md").read_text(encoding="utf-8"), "the plotting library is the published file"


EVIL = "</script><script>alert('&')</script>"


def test_names_notes_and_errors_of_users_are_text(make_cell, make_sweep) -> None:
    cell = make_cell(
        task="<script>alert(1)", search=(0.8,), failed=(EVIL,), notes=(f"{EVIL} `a <b>`",), head="<i>",
        finals=[(0.8, 0.8)] * 2,
    )  # fmt: skip
    page = report(make_sweep(cell), "html")
    reader = Reader(page)
    assert "alert(" not in "".join(text for _, attrs, text in reader.raw if attrs.get("type") != "application/json")
    assert sum(tag == "script" for tag, _ in reader.tags) == 5, "the data, the library, and three of ours"
    assert "i" not in {tag for tag, _ in reader.tags}
    assert EVIL in reader.data()["cells"][0]["rows"]["error"][1]
    assert "<script>alert(1)" in unescape(page)


@pytest.mark.parametrize("text", [EVIL, "<!--", "\u2028", "]]>", "&lt;"])
def test_embedded_data_comes_back_as_it_was_and_cannot_end_its_element(text: str) -> None:
    written = embedded({"text": text, "none": float("nan")})
    assert not set("<>&\u2028") & set(written)
    assert json.loads(written) == {"text": text, "none": None}
    assert prose("`<a>` & *b* [c](d)") == "<code>&lt;a&gt;</code> &amp; *b* [c](d)", "code is marked, and nothing else"


def test_the_best_setting_as_yaml_is_the_exported_one_without_its_provenance(results: SweepResults) -> None:
    summary = results.summary
    cell = summary.cells[0]
    exported = documents.parse(best_space(summary, cell, cell.best).dump(), "exported")
    shown = documents.parse(best_setting(cell, summary), "shown")
    assert {key: value for key, value in exported.items() if key != "provenance"} == shown


def test_the_best_trials_are_in_the_table_the_best_first_and_failed_ones_last_beside_the_finals_seeds(
    make_cell, make_sweep, results: SweepResults
) -> None:
    cell = make_cell(search=(0.5, 0.9, 0.7), failed=("no room",))
    section = cell_section(cell, make_sweep(cell), 100)
    rows = section["data"]["rows"]
    assert rows["dev"] == [0.9, 0.7, 0.5, None]
    assert rows["number"] == [2, 3, 1, 51]
    assert rows["status"] == ["finished"] * 3 + ["failed"]
    assert rows["error"][3] == "no room"
    assert rows["setting"][0].startswith("learning_rate 4.25e-5, dropout 0.1, epochs 3"), "only searched parameters"
    assert section["note"] == ""
    many = make_cell(search=tuple(np.linspace(0, 1, 200)))
    section = cell_section(many, make_sweep(many), 100)
    assert len(section["data"]["rows"]["id"]) == 100
    assert section["note"] == "The table has the best 100 of 200 trials; `meltpoint.load_sweep` has all."
    seeds = cell_section(results.summary.cells[0], results.summary, 100)["seeds"]
    assert [(one["seed"], one["dev"], one["test"]) for one in seeds] == [(seed, "80.0", "70.0") for seed in range(6)]


def test_score_against_cost_is_that_of_the_table(stored: SweepSummary) -> None:
    charts = cost_charts(stored.cells)
    groups = trade_offs(stored.cells)
    shown = [point["score"] for chart in charts for group in chart["data"]["groups"] for point in group["points"]]
    assert shown == pytest.approx([100 * point.score for group in groups.values() for point in group], abs=1e-3)


def test_the_page_is_kept_beside_the_tables_once_every_cell_is_done(make_cell, make_sweep) -> None:
    done = results_of(make_sweep(make_cell(finals=[(0.8, 0.8)] * 2)), comparer=FixedComparer())
    half = results_of(make_sweep(make_cell(finals=[(0.8, None)] * 2)), comparer=FixedComparer())
    assert sorted(kept_files(done)) == ["report.csv", "report.html", "report.json", "report.md", "report.tex"]
    assert "report.html" not in kept_files(half)
    assert kept_files(done)["report.html"] == html(done)


def test_a_page_that_cannot_be_made_takes_no_table_with_it(make_cell, make_sweep, monkeypatch, capsys):
    def fails(results: SweepResults) -> str:
        raise RuntimeError("a plot")

    monkeypatch.setattr(page, "html", fails)
    kept = kept_files(results_of(make_sweep(make_cell(finals=[(0.8, 0.8)]))))
    assert sorted(kept) == ["report.csv", "report.json", "report.md", "report.tex"]
    assert "report.html was not written (RuntimeError: a plot); `meltpoint report" in capsys.readouterr().err


@pytest.mark.parametrize("mode", modes.names())
def test_a_modes_colour_is_told_from_a_white_and_from_a_black_page(mode: str) -> None:
    """WCAG 2.2, 1.4.11: graphics have a contrast of 3 : 1 or more."""
    red, green, blue = (value / 255 for value in bytes.fromhex(modes.get(mode).colour[1:]))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (red, green, blue)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    assert min(1.05 / (luminance + 0.05), (luminance + 0.05) / 0.05) >= 3
