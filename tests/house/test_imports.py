"""Imports run one way: benchmarks > launch > reports > sweeps > search_spaces > adapters > tasks."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LEVELS = {"benchmarks": 6, "launch": 5, "reports": 4, "sweeps": 3, "search_spaces": 2, "adapters": 1, "tasks": 0}
SERVICE = {"ray", "mlflow", "optuna"}
FORBIDDEN = {"adapters": SERVICE, "search_spaces": SERVICE - {"optuna"}, "tasks": SERVICE | {"torch", "transformers"}}
HEAVY = ("torch", "ray", "mlflow", "transformers", "datasets", "optuna", "sklearn", "scipy")


def sources() -> Iterator[tuple[str, Path]]:
    """(room, file) for every module of the package."""
    yield "launch", ROOT / "launch.py"
    for room in LEVELS:
        for path in sorted((ROOT / room).rglob("*.py")):
            yield room, path


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of all that a module imports, wherever in it; relative ones start with a dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def faults(room: str, source: str) -> list[tuple[int, str]]:
    """(line, what is wrong) for each import of a room's module that breaks the rule."""
    found = []
    for line, name in imports(ast.parse(source)):
        top, *rest = name.split(".")
        if top in LEVELS:
            found.append((line, f"'{name}' is another package's name on PyPI; write meltpoint.{name}"))
        elif top == "":
            found.append((line, f"'{name}' is relative; write from meltpoint. ..."))
        elif top in FORBIDDEN.get(room, set()):
            found.append((line, f"{room} must not know {top}"))
        elif top == "meltpoint" and rest and rest[0] in LEVELS and not may_import(room, rest[0]):
            found.append((line, f"{room} is not above {rest[0]}"))
    return found


def may_import(room: str, other: str) -> bool:
    return room == other or LEVELS[room] > LEVELS[other]


def test_every_import_of_every_room_runs_downwards() -> None:
    broken = [
        f"{path.relative_to(ROOT)}:{line}: {fault}"
        for room, path in sources()
        for line, fault in faults(room, path.read_text(encoding="utf-8"))
    ]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("tasks", "from meltpoint.adapters.data.batch import Batch"),
        ("tasks", "import torch.nn"),
        ("adapters", "def late():\n    import mlflow.tracking"),
        ("adapters", "from meltpoint import sweeps"),
        ("search_spaces", "import ray.tune"),
        ("sweeps", "from meltpoint.reports.tables import render"),
        ("sweeps", "import meltpoint.launch"),
        ("launch", "from meltpoint.benchmarks import job"),
        ("sweeps", "from . import cells"),
        ("sweeps", "from tasks.core import task"),
    ],
)
def test_the_rule_sees_each_way_to_break_it(room: str, source: str) -> None:
    assert faults(room, source)


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("launch", "from meltpoint.sweeps.machine.doctor import checks"),
        ("sweeps", "from meltpoint import __version__"),
        ("sweeps", "import ray, mlflow, optuna, torch"),
        ("adapters", "from meltpoint.adapters.data.batch import Batch"),
    ],
)
def test_the_rule_lets_a_room_use_itself_and_what_lies_below(room: str, source: str) -> None:
    assert not faults(room, source)


def test_importing_the_door_imports_no_heavy_part() -> None:
    code = f"import sys, meltpoint.launch; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True, timeout=60)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    ("moment", "code", "absent"),
    [
        (
            "before Ray starts",
            "from meltpoint.sweeps.command_line import spec_from_options; "
            "from meltpoint.sweeps.driver import early_start",
            ("torch", "ray", "mlflow"),
        ),
        (
            "in the driver",
            "from meltpoint.adapters import heads; from meltpoint.sweeps.driver import run; "
            "from meltpoint.sweeps.tracking import runs; from meltpoint.sweeps.on_ray import tune_adapters; "
            "from meltpoint.reports import tables; [heads.get(name) for name in heads.names()]",
            ("transformers", "datasets", "sklearn"),
        ),
    ],
)
def test_what_a_sweep_starts_with_imports_nothing_that_only_workers_need(
    moment: str, code: str, absent: tuple[str, ...]
) -> None:
    code = f"import sys; {code}; print(*[m for m in {absent!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True, timeout=60)
    assert done.stdout.strip() == "", moment
