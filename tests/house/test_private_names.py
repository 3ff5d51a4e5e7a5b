"""No private name of Ray or Tune is used: they change without notice, and would put a ceiling on Ray's version."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = {"tests/house/test_private_names.py"}
ROOMS = ("adapters", "benchmarks", "examples", "reports", "search_spaces", "sweeps", "tasks", "tests")
MODULE = re.compile(r"\bray(\.\w+)*\._\w+")


def sources() -> list[Path]:
    paths = [*ROOT.glob("*.py"), *(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))]
    return [path for path in sorted(paths) if path.relative_to(ROOT).as_posix() not in ALLOWED]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def of_ray(node: ast.AST) -> list[str]:
    """The dotted names of Ray that a statement imports."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    else:
        names = []
    return [name for name in names if name.split(".")[0] == "ray"]


def docstrings(tree: ast.AST) -> set[int]:
    """The nodes of texts that stand alone: nothing can be imported by them."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def own_names(tree: ast.AST) -> set[str]:
    """The names that a module defines itself: functions, and attributes that it assigns."""
    functions = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    return functions | {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def faults(source: str) -> list[tuple[int, str]]:
    """(line, private name) for each that a module uses; attributes and arguments count where it imports Ray at all."""
    tree = ast.parse(source)
    imported = [(node, name) for node in ast.walk(tree) for name in of_ray(node)]
    found = [(node.lineno, name) for node, name in imported if any(map(is_private, name.split(".")))]
    texts, own = docstrings(tree), own_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            found += [(node.lineno, match[0]) for match in MODULE.finditer(node.value)]
        elif imported and isinstance(node, ast.Call):
            found += [(node.lineno, word.arg) for word in node.keywords if word.arg and is_private(word.arg)]
        elif imported and isinstance(node, ast.Attribute) and is_private(node.attr):
            is_own = isinstance(node.value, ast.Name) and node.value.id == "self" and node.attr in own
            found += [] if is_own else [(node.lineno, node.attr)]
    return sorted(found)


def all_faults(paths: list[Path]) -> Iterator[str]:
    for path in paths:
        for line, name in faults(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(ROOT)}:{line}: {name} is private in Ray; use its public API"


def test_no_private_name_of_ray_is_used() -> None:
    broken = list(all_faults(sources()))
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    "source",
    [
        "from ray._private.node import Node",
        "import ray._private.worker",
        "from ray.air.execution._internal import actor_manager",
        "def late():\n    from ray.tune.execution.class_cache import _ActorClassCache",
        "import ray\nray._private.services",
        "from ray.tune.execution import class_cache\nclass_cache._ActorClassCache.get = None",
        "import ray\nray.init(num_cpus=1, _system_config={})",
        "import ray\ndef start(begin):\n    begin(_node_ip_address='127.0.0.1')",
        "import ray\ndef look(trial):\n    return trial._default_result_or_future",
        "from ray.tune import Callback\nclass Own(Callback):\n    def see(self):\n        return self._actor_manager",
        "import importlib\nimportlib.import_module('ray._private.node')",
    ],
)
def test_the_rule_sees_each_way_to_a_private_name(source: str) -> None:
    assert faults(source)


@pytest.mark.parametrize(
    "source",
    [
        "import ray\nray.init(num_cpus=1)",
        "from ray.tune import Callback\nclass Own(Callback):\n    def _see(self): ...\n    def on(self): self._see()",
        "class Other:\n    def see(self, other):\n        return other._folder",
        "def see():\n    'As in ray._private.node.'",
        "array._grow = 1",
    ],
)
def test_the_rule_lets_public_names_and_a_modules_own_alone(source: str) -> None:
    assert not faults(source)
