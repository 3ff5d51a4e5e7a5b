"""What the tree may hold: no utils.py, no machine's own paths, and plug-ins that export their constant."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)
ROOMS = ("tasks", "adapters", "search_spaces", "sweeps", "reports", "benchmarks")
CACHES = {"__pycache__", ".pytest_cache", ".hypothesis", ".mypy_cache", ".ruff_cache"}
OUTSIDE = {".git", ".venv", "build", "dist", "runs", *CACHES}
TEXT = {".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".cfg", ".json", ".sh", ".html", ".svg", ""}
MACHINE_PATH = re.compile(r"(?<![\w.~:/$}])/(?:work|root|Users|home/(?!meltpoint\b)\w+)/")
PLUG_INS = {
    "tasks": "TASK",
    "adapters/encoders": "SUMMARY",
    "adapters/heads": "HEAD",
    "adapters/modes": "MODE",
    "adapters/tricks": "TRICK",
    "reports/analyses": "run",
}


def kept_files() -> list[Path]:
    """The files of the project: what git tracks, or everything but the built where this is no git checkout."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listing.returncode == 0 and listing.stdout:
        return [path for name in listing.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]
    return [p for p in ROOT.rglob("*") if p.is_file() and not OUTSIDE & set(p.relative_to(ROOT).parts)]


def plug_ins() -> list[tuple[str, str, str]]:
    """(folder, module, constant) of every plug-in file."""
    return [
        (folder, path.stem, constant)
        for folder, constant in PLUG_INS.items()
        for path in sorted((ROOT / folder).glob("*.py"))
        if not path.name.startswith("_")
    ]


def test_no_file_is_a_drawer_for_everything() -> None:
    drawers = {"utils.py", "util.py", "helpers.py", "helper.py", "common.py", "misc.py"}
    assert [str(path.relative_to(ROOT)) for path in kept_files() if path.name in drawers] == []


def test_no_source_file_is_longer_than_420_lines() -> None:
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in kept_files() if path.suffix == ".py"}
    assert {str(path.relative_to(ROOT)): n for path, n in lengths.items() if n > 420} == {}


def test_no_file_names_a_path_of_the_machine_it_was_written_on() -> None:
    assert MACHINE_PATH.search("open('/Users/eva/data')")
    assert not MACHINE_PATH.search("https://x.org/" + "work/a /srv/meltpoint/runs ../shared/root/x /home/meltpoint/")
    own = f"{ROOT}/"
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in kept_files()
        if path.suffix in TEXT and path.name != "LICENSE" and path != Path(__file__).resolve()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if MACHINE_PATH.search(line) or own in line
    ]
    assert found == []


@pytest.mark.parametrize(("folder", "module", "constant"), plug_ins())
def test_a_plug_in_exports_its_constant_under_its_file_name(folder: str, module: str, constant: str) -> None:
    loaded = importlib.import_module(f"meltpoint.{folder.replace('/', '.')}.{module}")
    assert hasattr(loaded, constant), f"{folder}/{module}.py has no {constant}"
    name = getattr(getattr(loaded, constant), "name", module)
    assert name == module, f"{folder}/{module}.py calls itself '{name}'; the file name is the word on the command line"


@pytest.mark.parametrize("room", ROOMS)
def test_every_folder_with_modules_is_a_package_with_a_docstring(room: str) -> None:
    folders = {path.parent for path in (ROOT / room).rglob("*.py")}
    for folder in folders:
        init = folder / "__init__.py"
        assert init.is_file(), f"{folder.relative_to(ROOT)} has no __init__.py"
        assert init.read_text(encoding="utf-8").startswith('"""'), f"{init.relative_to(ROOT)} does not say what it is"


def vague_docstrings(source: str) -> list[str]:
    """The first lines of docstrings that open with a question word; commands are excepted, for these are their help."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, DOCUMENTED)]
    helped = [node for node in nodes if not getattr(node, "decorator_list", None)]
    first = [(ast.get_docstring(node) or "").partition("\n")[0] for node in helped]
    return [line for line in first if re.match(r"(What|How|Whether|Where|Who|Which|Why|When)\b", line)]


def test_a_docstring_says_what_a_thing_is_and_asks_no_question() -> None:
    assert vague_docstrings('"""What it is."""\ndef f():\n    """The sum."""') == ["What it is."]
    sources = {path: path.read_text("utf-8") for path in kept_files() if path.suffix == ".py"}
    rooms = {path: text for path, text in sources.items() if path.relative_to(ROOT).parts[0] in (*ROOMS, "launch.py")}
    found = {str(path.relative_to(ROOT)): lines for path, text in rooms.items() if (lines := vague_docstrings(text))}
    assert found == {}, "begin with a noun phrase or a verb"
