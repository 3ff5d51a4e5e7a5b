"""The version of the code that a trial's numbers depend on: a digest of `adapters/` and `tasks/`.

Comments, docstrings and layout do not count. Everything else does: each number, name, import and annotation
(dataclasses and pydantic read them), the text of messages, and the files' paths, because files name plug-ins.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import meltpoint

ROOMS = ("adapters", "tasks")


@cache
def code_version() -> str:
    """Meltpoint's version and the digest of its code; computed once per process, in less than a second."""
    return f"{meltpoint.__version__}+{digest(read_sources(Path(meltpoint.__path__[0])))[:8]}"


def read_sources(root: Path) -> dict[str, str]:
    """Each file of the rooms: its path below the package (`adapters/heads/mlp.py`) → its text."""
    paths = (path for room in ROOMS for path in (root / room).rglob("*.py"))
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def digest(sources: Mapping[str, str]) -> str:
    """64 hexadecimal characters for a set of files.

    Args:
        sources: a file's path below the package → its text.

    Raises:
        SyntaxError: a file is not valid Python.
    """
    parts = []
    for path, text in sorted(sources.items()):
        tree = ast.parse(text, path)
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                node.body = [statement for statement in node.body if not _does_nothing(statement)]
        parts += [path, ast.dump(tree)] if tree.body else []
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _does_nothing(statement: ast.stmt) -> bool:
    """True for `pass`, a docstring, and `...`."""
    is_constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_constant or isinstance(statement, ast.Pass)
