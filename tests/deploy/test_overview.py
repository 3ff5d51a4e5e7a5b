"""The overview of deploy/: every folder is in its table, has a guide with an order and a checklist, and no secrets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
FOLDERS = sorted(path for path in DEPLOY.iterdir() if path.is_dir())
OVERVIEW = (DEPLOY / "README.md").read_text(encoding="utf-8")
SECRET = re.compile(r"(?i)\b(password|token|secret|key)\b\s*[:=]\s*[\"']?[A-Za-z0-9+/]{12,}")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_the_table_leads_to_every_folder(folder: Path) -> None:
    rows = [line for line in OVERVIEW.splitlines() if line.startswith("|")]
    assert any(f"]({folder.name}/README.md)" in row for row in rows)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_guide_says_what_to_do_in_which_order_and_what_goes_wrong(folder: Path) -> None:
    guide = (folder / "README.md").read_text(encoding="utf-8")
    order, _, checklist = guide.partition("## What goes wrong")
    assert "## In this order" in order
    assert re.search(r"^1\. ", order, re.MULTILINE)
    assert checklist.count("\n- [ ] **") >= 4


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_what_has_to_be_changed_is_marked_and_the_guide_says_how(folder: Path) -> None:
    marked = [
        path for path in folder.iterdir() if path.suffix in {".yaml", ".yml"} and "CHANGE-ME" in path.read_text("utf-8")
    ]
    assert not marked or "CHANGE-ME" in (folder / "README.md").read_text(encoding="utf-8")


def test_no_file_holds_a_secret() -> None:
    texts = {
        path: path.read_text(encoding="utf-8") for path in DEPLOY.rglob("*") if path.is_file() and path.suffix != ".pyc"
    }
    assert {path.name: found.group() for path, text in texts.items() if (found := SECRET.search(text))} == {}


def test_a_secret_would_be_found() -> None:
    assert SECRET.search('password: "a8f5f167f44f4964e6c998dee827110c"')
    assert not SECRET.search("POSTGRES_PASSWORD: ${POSTGRES_PASSWORD:?POSTGRES_PASSWORD is not in .env}")
