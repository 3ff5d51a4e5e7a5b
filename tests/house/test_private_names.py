"""No private name of Ray or Tune is used: they change without notice, and would put a ceiling on Ray's version."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from meltpoint.tests.house.architecture import imports

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("adapters", "benchmarks", "examples", "reports", "search_spaces", "sweeps", "tasks", "tests")
MODULE = re.compile(r"\bray(\.\w+)*\._\w+")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def own_names(nodes: list[ast.AST]) -> set[str]:
    """The names that a module defines itself: functions, classes, and attributes of `self` that it assigns."""
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    stored = [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    return defined | {node.attr for node in stored if ast.unparse(node.value) == "self"}


def faults(source: str) -> list[tuple[int, str]]:
    """(line, private name) for each that a module uses; attributes and arguments count where it imports Ray at all."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    imported = [(line, name) for line, name in imports(tree) if name.split(".")[0] == "ray"]
    found = [(line, name) for line, name in imported if any(map(is_private, name.split(".")))]
    texts = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # nothing is imported by a text alone
    own = own_names(nodes)
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            found += [(node.lineno, match[0]) for match in MODULE.finditer(node.value)]
        elif imported and isinstance(node, ast.Call):
            found += [(node.lineno, word.arg) for word in node.keywords if word.arg and is_private(word.arg)]
        elif imported and isinstance(node, ast.Attribute) and is_private(node.attr):
            is_own = node.attr in own and ast.unparse(node.value) == "self"
            found += [] if is_own else [(node.lineno, node.attr)]
    return sorted(found)


def test_no_private_name_of_ray_is_used() -> None:
    paths = [*ROOT.glob("*.py"), *(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))]
    broken = [
        f"{path.relative_to(ROOT)}:{line}: {name} is private in Ray; use its public API"
        for path in paths
        if path != Path(__file__).resolve()
        for line, name in faults(path.read_text(encoding="utf-8"))
    ]
    assert not broken, "\n".join(broken)


SEEN = (
    "from ray._private.node import Node",
    "import ray._private.worker",
    "from ray.air.execution._internal import actor_manager",
    "def late():\n    from ray.tune.execution.class_cache import _ActorClassCache",
    "import ray\nray._private.services",
    "from ray.tune.execution import class_cache\nclass_cache._ActorClassCache.get = None",
    "import ray\nray.init(num_cpus=1, _system_config={})",
    "import ray\ndef look(trial):\n    return trial._default_result_or_future",
    "from ray.tune import Callback\nclass Own(Callback):\n    def see(self):\n        return self._actor_manager",
    "import importlib\nimportlib.import_module('ray._private.node')",
)
LEFT_ALONE = (
    "import ray\nray.init(num_cpus=1)",
    "from ray.tune import Callback\nclass Own(Callback):\n    def _see(self): ...\n    def on(self): self._see()",
    "class Other:\n    def see(self, other):\n        return other._folder",
    "def see():\n    'As in ray._private.node.'",
)


@pytest.mark.parametrize("source", [*SEEN, *LEFT_ALONE])
def test_the_rule_sees_each_way_to_a_private_name_and_lets_public_and_own_ones_alone(source: str) -> None:
    assert bool(faults(source)) == (source in SEEN)
