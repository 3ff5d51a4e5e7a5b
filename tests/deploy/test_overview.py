"""The overview of deploy/: it leads to every folder, whose guide says what to change, and no file holds a secret."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
FOLDERS = sorted(path for path in DEPLOY.iterdir() if path.is_dir())
OVERVIEW = (DEPLOY / "README.md").read_text(encoding="utf-8")
SECRET = re.compile(r"(?i)\b(password|token|secret|key)\b\s*[:=]\s*[\"']?[A-Za-z0-9+/]{12,}")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_every_folder_is_in_the_overview_and_its_guide_says_what_has_to_be_changed(folder: Path) -> None:
    assert f"]({folder.name}/README.md)" in OVERVIEW
    guide = (folder / "README.md").read_text(encoding="utf-8")
    manifests = [path.read_text("utf-8") for path in folder.iterdir() if path.suffix in {".yaml", ".yml"}]
    assert "CHANGE-ME" in guide or not any("CHANGE-ME" in text for text in manifests)


def test_no_file_holds_a_secret() -> None:
    assert SECRET.search('password: "a8f5f167f44f4964e6c998dee827110c"')
    assert not SECRET.search("POSTGRES_PASSWORD: ${POSTGRES_PASSWORD:?POSTGRES_PASSWORD is not in .env}")
    files = [path for path in DEPLOY.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    found = {path.name: SECRET.search(path.read_text(encoding="utf-8")) for path in files}
    assert {name: secret.group() for name, secret in found.items() if secret} == {}
