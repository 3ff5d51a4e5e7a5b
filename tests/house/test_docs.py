"""The guides: what they link to exists, and what they call a plug-in's place is its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("docs", "deploy", "benchmarks", "examples")
GUIDES = [*sorted(ROOT.glob("*.md")), *(guide for name in FOLDERS for guide in sorted((ROOT / name).rglob("*.md")))]
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)|(?:src|href)=\"([^\"#]+)\"")


def local_links(text: str) -> list[str]:
    found = [first or second for first, second in LINK.findall(text)]
    return [link for link in found if not re.match(r"[a-z]+:", link)]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_local_link_of_a_guide_leads_somewhere_and_no_line_is_over_120_columns(guide: Path) -> None:
    text = guide.read_text(encoding="utf-8")
    assert [link for link in local_links(text) if not (guide.parent / link).exists()] == []
    long = [line for line in text.splitlines() if len(line) > 120 and not line.lstrip().startswith("|")]
    assert long == [] or guide.parent.name == "results", "those are what reports printed"


def test_contributing_starts_each_plug_in_from_a_file_that_exists() -> None:
    rows = re.findall(r"\| `([\w/]+)/NAME\.py` \| `(\w+\.py)` \|", (ROOT / "CONTRIBUTING.md").read_text("utf-8"))
    assert len(rows) == 6
    assert [row for row in rows if not (ROOT / row[0] / row[1]).is_file()] == []


def test_every_make_target_that_a_guide_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = {
        word
        for guide in GUIDES
        for code in re.findall(r"`make ([a-z -]+)`|^make ([a-z-]+)", guide.read_text(encoding="utf-8"), re.MULTILINE)
        for words in code
        for word in words.split()
    }
    assert named - targets == set()


def test_every_row_of_the_table_of_defaults_names_a_test_that_is_there() -> None:
    text = (ROOT / "docs/defaults.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert [row for row in rows if "::" not in row and not row.startswith("| what |")] == []
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", text)
    assert len(named) >= 45, "every tuned quantity, head, input rule, optimiser detail and stopping rule"
    for file, name in named:
        assert f"def test_{name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), f"{file}::{name}"
