"""No private name of Ray or Tune is used: they change without notice, and would put a ceiling on Ray's version."""

from __future__ import annotations

import ast
import re
from pathlib import Path

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
    assert faults("import ray\nray.init(num_cpus=1, _system_config={})") == [(2, "_system_config")]
    paths = [*ROOT.glob("*.py"), *(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))]
    broken = [
        f"{path.relative_to(ROOT)}:{line}: {name} is private in Ray; use its public API"
        for path in paths
        if path != Path(__file__).resolve()
        for line, name in faults(path.read_text(encoding="utf-8"))
    ]
    assert not broken, "\n".join(broken)
