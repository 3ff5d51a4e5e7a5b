"""code_version: which changes of the code make another version, on the real files of the package."""

from __future__ import annotations

import ast
import io
import re
import time
import tokenize
from itertools import groupby
from pathlib import Path

import pytest

import meltpoint
from meltpoint.sweeps.specification.code_version import (
    REGISTRIES,
    Canonical,
    code_version,
    digest,
    module_name,
    read_sources,
)

SOURCES = read_sources(Path(meltpoint.__path__[0]))
NAMES = {module_name(path) for path in SOURCES}
OF_TODAY = digest(SOURCES)


def of_file(path: str, text: str) -> str:
    """A file's own digest, without the contents of what it imports."""
    return Canonical(NAMES).of(path, text).digest


def with_comments(text: str) -> str:
    """The text with a comment behind each statement, and an empty line after it."""
    ends = {
        token.end[0] for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.NEWLINE
    }
    lines = (f"{line}  # note\n" if n in ends else line for n, line in enumerate(text.split("\n"), 1))
    return "# a file\n\n" + "\n".join(lines) + "\n# its end\n"


def with_docstrings(text: str) -> str:
    """The text with another docstring in every module, class and function, and attributes without theirs."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            own = [one for one in node.body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
            node.body = [ast.Expr(ast.Constant("Another text.")), *own]
    return ast.unparse(ast.fix_missing_locations(tree))


def with_imports_reversed(text: str) -> str:
    """The text with each run of imports the other way round."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef):
            runs = groupby(node.body, lambda one: isinstance(one, ast.Import | ast.ImportFrom))
            node.body = [one for is_import, run in runs for one in ([*run][::-1] if is_import else run)]
    return ast.unparse(tree)


REWRITES = {
    "comments and empty lines": with_comments,
    "layout": lambda text: ast.unparse(ast.parse(text)),  # other quotes, parentheses and lines
    "docstrings": with_docstrings,
    "the order of imports": with_imports_reversed,
}


@pytest.mark.parametrize("rewrite", REWRITES)
def test_what_computes_nothing_leaves_every_file_as_it_is(rewrite):
    for path, text in SOURCES.items():
        changed = REWRITES[rewrite](text)
        assert changed != text or not text.strip(), path
        assert of_file(path, changed) == of_file(path, text), path


OTHER_OPERATORS = {ast.Add: ast.Sub, ast.Mult: ast.Div, ast.Sub: ast.Add, ast.Div: ast.Mult, ast.Lt: ast.LtE}


def change(node: ast.AST) -> bool:
    """Let a node compute something else; whether it is of a kind that can."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        node.value = not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        node.value += 1
    elif isinstance(node, ast.BinOp) and type(node.op) in OTHER_OPERATORS:
        node.op = OTHER_OPERATORS[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt | ast.Eq):
        node.ops[0] = ast.GtE()
    elif isinstance(node, ast.BoolOp):
        node.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
    elif isinstance(node, ast.arguments) and node.defaults:
        node.defaults[0] = ast.Constant("another")
    elif isinstance(node, ast.FunctionDef | ast.ClassDef):
        node.name += "_"
    elif isinstance(node, ast.AnnAssign):
        node.annotation = ast.Name("Another")
    else:
        return False
    return True


CHANGES_A_FILE = 30


def test_every_number_operator_default_name_and_annotation_of_every_file_counts():
    changes = 0
    for path, text in SOURCES.items():
        own, tree = of_file(path, text), ast.parse(text)
        nodes = [*ast.walk(tree)]
        for node in nodes[:: max(1, len(nodes) // CHANGES_A_FILE)]:
            before = {name: [*value] if isinstance(value, list) else value for name, value in vars(node).items()}
            if change(node):
                changes += 1
                assert of_file(path, ast.unparse(tree)) != own, (path, ast.unparse(node))
                vars(node).update(before)
    assert changes > len(SOURCES)


def test_one_changed_number_makes_another_version():
    path = "adapters/heads/mlp.py"
    assert digest({**SOURCES, path: SOURCES[path].replace("768, ", "769, ")}) != OF_TODAY


# --- places ---


def moved(path: str, to: str) -> dict[str, str]:
    """The sources with a file, or all files of a folder, at another place, and what imports them adjusted."""
    before, after = module_name(path), module_name(to)
    (folder, name), (new_folder, new_name) = (place.rsplit(".", 1) for place in (before, after))
    line = re.compile(rf"from {folder} import (.*, )?{name}$", re.MULTILINE)

    def adjusted(found: re.Match[str]) -> str:
        others = f"from {folder} import {found[1].rstrip(', ')}\n" if found[1] else ""
        return f"{others}from {new_folder} import {new_name} as {name}"

    found = {p.replace(path, to): line.sub(adjusted, text).replace(before, after) for p, text in SOURCES.items()}
    assert sum(text != SOURCES.get(other) for other, text in found.items()) > 1, "somebody imports it"
    return found


@pytest.mark.parametrize(
    ("path", "to"),
    [
        ("adapters/layers/bundle.py", "adapters/other_room/dropout.py"),
        ("adapters/training/epochs.py", "adapters/results.py"),
        ("adapters/files.py", "tasks/core/other_files.py"),
        ("adapters/families/elmo", "adapters/characters"),
        ("tasks/core/registry.py", "adapters/names.py"),
    ],
)
def test_a_moved_file_leaves_the_version_as_it_is(path, to):
    folder = to.rpartition("/")[0]
    assert digest({f"{folder}/__init__.py": '"""A new folder."""\n', **moved(path, to)}) == OF_TODAY


def test_a_moved_file_whose_imports_were_not_adjusted_makes_another_version():
    to = "adapters/other_room/dropout.py"
    sources = {to if name == "adapters/layers/bundle.py" else name: text for name, text in SOURCES.items()}
    assert digest(sources) != OF_TODAY


@pytest.mark.parametrize("registry", REGISTRIES)
def test_the_name_of_a_plug_ins_file_counts(registry):
    path = next(p for p in SOURCES if p.rpartition("/")[0] == registry and not p.endswith("/__init__.py"))
    sources = {path.replace(".py", "_renamed.py") if name == path else name: text for name, text in SOURCES.items()}
    assert digest(sources) != OF_TODAY


def test_every_folder_that_lists_its_files_is_known_as_a_registry():
    listing = "registry.names(sys.modules"
    found = {path.removesuffix("/__init__.py") for path, text in SOURCES.items() if listing in text}
    assert found == set(REGISTRIES)


def test_two_files_that_exchange_their_contents_make_another_version():
    one, two = "adapters/layers/bundle.py", "adapters/layers/affine.py"
    assert digest({**SOURCES, one: SOURCES[two], two: SOURCES[one]}) != OF_TODAY


SMALL = {
    "adapters/one.py": "RATE = 0.1\n",
    "adapters/two.py": "RATE = 0.2\n",
    "adapters/between.py": "from meltpoint.adapters.one import RATE\n",
    "adapters/beside.py": "from meltpoint.adapters.two import RATE\n",
    "adapters/user.py": "from meltpoint.adapters.between import RATE\n",
}


def test_which_content_an_import_names_counts_also_through_files_between():
    exchanged = {**SMALL, "adapters/one.py": SMALL["adapters/two.py"], "adapters/two.py": SMALL["adapters/one.py"]}
    assert digest(exchanged) != digest(SMALL)
    adjusted = {
        "adapters/between.py": SMALL["adapters/beside.py"],
        "adapters/beside.py": SMALL["adapters/between.py"],
    }
    assert digest({**exchanged, **adjusted}) == digest(SMALL)


def test_imports_in_a_circle_have_a_version():
    one, two = "from meltpoint.tasks.core import b\nX = 1\n", "import meltpoint.tasks.core.a\n"
    found = {digest({"tasks/core/a.py": text, "tasks/core/b.py": two}) for text in (one, one.replace("1", "2"))}
    assert len(found) == 2


# --- Python ---

STRINGS = """
def speak(x, *, y=None, **rest: int) -> str:
    return f"{x!r:>{y}} {x=} {{}} " f'{y:.2f}' "tail é" f"" if (n := len(rest)) else b"bytes" * n
"""
EVERYWHERE = "7b812b32086983dfc5a20daab241e0c523177809fc0b1729f7e3ad39d525e8ba"


def test_every_version_of_python_gives_the_same_digest():
    """The figure was the same on Python 3.11, 3.12 and 3.13 when it was written down."""
    assert digest({"tasks/core/strings.py": STRINGS}) == EVERYWHERE


def test_the_version_is_meltpoints_and_eight_characters_and_costs_once_less_than_four_parses_of_the_code():
    before = time.process_time()
    for text in SOURCES.values():
        ast.parse(text)
    parsing = time.process_time() - before  # of the same texts on this machine, however fast it is today
    code_version.cache_clear()
    before = time.process_time()
    found = code_version()
    spent = time.process_time() - before
    assert found == f"{meltpoint.__version__}+{OF_TODAY[:8]}"
    assert spent < 4 * parsing
    again = time.process_time()
    assert code_version() == found
    assert time.process_time() - again < 0.01
