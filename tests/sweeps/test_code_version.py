"""code_version: the changes of the code that make another version, on the real files of the package."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import meltpoint
from meltpoint.sweeps.specification.provenance import code_version, digest, read_sources

SOURCES = read_sources(Path(meltpoint.__path__[0]))
OF_TODAY = digest(SOURCES)
LOOP = "adapters/training/trainer.py"


def with_docstrings(text: str) -> str:
    """The text without comments and layout, and with another docstring in every module, class and function."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [ast.Expr(ast.Constant("Another text.")), *node.body]
    return ast.unparse(ast.fix_missing_locations(tree))


def test_comments_docstrings_and_layout_leave_the_version_as_it_is():
    assert digest({path: with_docstrings(text) for path, text in SOURCES.items()}) == OF_TODAY
    assert digest({path: f"# a file\n\n{text}\n# its end\n" for path, text in SOURCES.items()}) == OF_TODAY
    assert digest({**SOURCES, "adapters/new/__init__.py": '"""A folder."""\n'}) == OF_TODAY


TEXT = "from a import b\n\nclass C:\n    rate: float = 0.1\n    def f(self, x: int = 2):\n        return x + 1\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [("0.1", "0.2"), ("+", "-"), ("= 2", "= 3"), (": float", ": int"), ("rate", "pace"), ("import b", "import c")],
)
def test_every_number_operator_default_name_annotation_and_import_counts(old: str, new: str):
    assert digest({LOOP: TEXT}) != digest({LOOP: TEXT.replace(old, new)})


def test_one_changed_number_and_a_moved_file_make_another_version():
    text = SOURCES[LOOP]
    assert digest({**SOURCES, LOOP: f"{text}\nEXTRA = 1\n"}) != digest({**SOURCES, LOOP: f"{text}\nEXTRA = 2\n"})
    moved = {path: text for path, text in SOURCES.items() if path != LOOP} | {"adapters/training/loop.py": text}
    assert digest(moved) != OF_TODAY


def test_the_version_is_meltpoints_and_eight_characters():
    assert code_version() == f"{meltpoint.__version__}+{OF_TODAY[:8]}"
