"""The order of imports: benchmarks > launch > reports > sweeps > search_spaces > adapters > tasks, and inside rooms."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from meltpoint.tests.house import architecture

SERVICE = {"ray", "mlflow", "optuna"}
FORBIDDEN = {"adapters": SERVICE, "search_spaces": SERVICE - {"optuna"}, "tasks": SERVICE | {"torch", "transformers"}}
HEAVY = ("torch", "ray", "mlflow", "transformers", "datasets", "optuna", "sklearn", "scipy")


def faults(module: str, source: str) -> list[tuple[int, str]]:
    """(line, what is wrong) for each import of a module that breaks the rule; its name starts below `meltpoint`."""
    room, found = architecture.room_of(module), []
    for line, name in architecture.imports(ast.parse(source)):
        top, *rest = name.split(".")
        if top in architecture.ROOMS:
            found.append((line, f"'{name}' is another package's name on PyPI; write meltpoint.{name}"))
        elif top == "":
            found.append((line, f"'{name}' is relative; write from meltpoint. ..."))
        elif top in FORBIDDEN.get(room, set()):
            found.append((line, f"{room} must not know {top}"))
        elif top == "meltpoint" and rest and rest[0] in architecture.ROOMS:
            target = ".".join(rest)
            if not architecture.may_import(module, target):
                found.append((line, f"{module} is not above {target} (tests/house/architecture.py has the order)"))
    return found


def test_every_import_of_every_room_runs_downwards() -> None:
    broken = [
        f"{path.relative_to(architecture.ROOT)}:{line}: {fault}"
        for module, path in architecture.modules().items()
        for line, fault in faults(module, path.read_text(encoding="utf-8"))
    ]
    assert not broken, "\n".join(broken)


LEFT_ALONE = (
    ("launch", "from meltpoint.sweeps.machine.doctor import checks"),
    ("sweeps", "from meltpoint import __version__"),
    ("sweeps", "import ray, mlflow, optuna, torch"),
    ("adapters.data.batching", "from meltpoint.adapters.data.batch import Batch"),
)
"""A room may use itself and what lies below."""


@pytest.mark.parametrize(
    ("module", "source"),
    [
        *LEFT_ALONE,
        ("tasks", "from meltpoint.adapters.data.batch import Batch"),
        ("tasks", "import torch.nn"),
        ("adapters", "def late():\n    import mlflow.tracking"),
        ("adapters", "from meltpoint import sweeps"),
        ("search_spaces", "import ray.tune"),
        ("sweeps", "from meltpoint.reports.report import markdown"),
        ("sweeps", "import meltpoint.launch"),
        ("launch", "from meltpoint.benchmarks import job"),
        ("sweeps", "from . import cells"),
        ("sweeps", "from tasks.core import task"),
        ("adapters.data.batching", "from meltpoint.adapters.heads import mlp"),
        ("adapters.heads.mlp", "from meltpoint.adapters import model"),
        ("adapters.hardware", "from meltpoint.adapters import files_of_a_new_kind"),
        ("sweeps.ledger.ledger", "def late():\n    from meltpoint.sweeps.driver.run import run"),
        ("sweeps.new", "from meltpoint.sweeps.ledger import records"),
    ],
)
def test_the_rule_sees_each_way_to_break_it(module: str, source: str) -> None:
    assert bool(faults(module, source)) == ((module, source) not in LEFT_ALONE)


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert architecture.circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert architecture.circle(architecture.module_arrows()) == []


@pytest.mark.parametrize("room", architecture.SUB_ROOMS)
def test_every_folder_and_file_of_a_room_has_its_place_in_the_order(room: str) -> None:
    there = {path.stem for path in (architecture.ROOT / room).iterdir() if path.suffix == ".py" or path.is_dir()}
    assert there - {"__init__", "__pycache__"} == set(architecture.SUB_ROOMS[room])


def test_the_picture_is_drawn_of_todays_imports() -> None:
    kept = architecture.PICTURE.read_text(encoding="utf-8")
    assert kept == architecture.picture(), "run: .venv/bin/python tests/house/architecture.py"


@pytest.mark.parametrize(
    ("moment", "code", "absent"),
    [
        ("at the door", "import meltpoint.launch", HEAVY),
        ("in a report", "import meltpoint.reports.screen, meltpoint.reports.report", ("torch", "ray", "mlflow")),
        (
            "before Ray starts",
            "from meltpoint.sweeps.command_line import spec_from_options; "
            "from meltpoint.sweeps.ledger import ledger; from meltpoint.sweeps.on_ray import cluster",
            ("torch", "ray", "mlflow"),
        ),
        (
            "in the driver",
            "from meltpoint.adapters import heads; from meltpoint.sweeps.driver import run; "
            "from meltpoint.sweeps.tracking import runs; from meltpoint.sweeps.on_ray import experiment; "
            "from meltpoint.reports import report as tables; [heads.get(name) for name in heads.names()]",
            ("transformers", "datasets", "sklearn"),
        ),
        (
            "in status",
            "from meltpoint.reports import status_view; from meltpoint.tasks.core.metrics import METRICS; "
            "[metric.lower_is_better for metric in METRICS.values()]",
            ("numpy", "torch", "ray", "mlflow"),
        ),
    ],
)
def test_what_a_command_starts_with_imports_nothing_that_only_others_need(
    moment: str, code: str, absent: tuple[str, ...]
) -> None:
    code = f"import sys; {code}; print(*[m for m in {absent!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True, timeout=60)
    assert done.stdout.strip() == "", moment
