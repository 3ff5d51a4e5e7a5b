"""The version of the code that a trial's numbers depend on: a digest of what `adapters/` and `tasks/` compute.

It is the same after a change of comments, docstrings, layout or the order of imports, after a file was moved (with the
imports of it), and on every version of Python. Everything else counts: each number, operator, name, default and
annotation (dataclasses and pydantic read them), also the text of messages; and the names of plug-ins' files, which are
names on the command line.

Files count as a set. A module that a file imports is represented by its content, not by its place, so that two modules
that exchange their contents are noticed: as graphs are told apart by colour refinement (Weisfeiler and Leman 1968).
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path

import meltpoint

ROOMS = ("adapters", "tasks")
REGISTRIES = (
    "adapters/encoders", "adapters/heads", "adapters/modes", "adapters/tricks", "tasks",
)  # fmt: skip
"""Folders whose files are plug-ins: a file's name is a word of the command line."""

IGNORED = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
"""Fields of the syntax tree that follow from the others, or are comments."""


@cache
def code_version() -> str:
    """Meltpoint's version and the digest of its code; some 0.2 s of processor time, once a process."""
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
        SyntaxError: a file that is no Python.
    """
    names = {module_name(path) for path in sources}
    modules = {module_name(path): Canonical(names).of(path, text) for path, text in sources.items()}
    colours = {name: module.digest for name, module in modules.items()}
    classes = 0
    while len(set(colours.values())) > classes:  # the first pass is always made: it is what looks at imports
        classes = len(set(colours.values()))
        colours = {name: module.refined(colours[name], colours) for name, module in modules.items()}
    return _hash(sorted(colours[name] for name, module in modules.items() if not module.is_empty))


def module_name(path: str) -> str:
    """`adapters/heads/mlp.py` is `meltpoint.adapters.heads.mlp`."""
    return ".".join(["meltpoint", *path.removesuffix(".py").removesuffix("/__init__").split("/")])


def plug_in(path: str) -> str:
    """The registry and word of a plug-in's file; "" for any other file."""
    folder, _, name = path.removesuffix(".py").rpartition("/")
    return "" if folder not in REGISTRIES or name.startswith("_") else f"{folder.split('/')[-1]}/{name}"


def _hash(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@dataclass(frozen=True)
class Import:
    """Something that a file takes of another module.

    Attributes:
        module: that file's module; "" for a module outside the set.
        text: what is taken, and its name here.
    """

    module: str
    text: str


@dataclass(frozen=True)
class Module:
    """A file's syntax tree without what does not count.

    Attributes:
        digest: of the tree, modules of the set left out.
        imports: the modules of the set, in runs of neighbouring statements whose order does not matter.
        is_empty: whether nothing is left of it, as of a folder's `__init__.py`.
    """

    digest: str
    imports: tuple[tuple[Import, ...], ...]
    is_empty: bool

    def refined(self, own: str, colours: Mapping[str, str]) -> str:
        """A digest of its digest so far and of its imports'."""
        runs = (sorted(f"{entry.text} {colours[entry.module]}" for entry in run) for run in self.imports)
        return _hash([own, *("\n".join(run) for run in runs)])


@dataclass
class Canonical:
    """Writes a file's syntax tree as a text that all versions of Python agree on; `ast.dump` differs between them.

    Attributes:
        names: the modules of the set.
        parts: the text so far.
        imports: the modules of the set that were met so far.
    """

    names: set[str]
    parts: list[str] = field(default_factory=list)
    imports: list[tuple[Import, ...]] = field(default_factory=list)

    def of(self, path: str, text: str) -> Module:
        """A file's module."""
        self._statements(ast.parse(text, path).body)
        is_empty, name = not self.parts, plug_in(path)
        return Module(_hash([name, *self.parts]), tuple(self.imports), is_empty and not name)

    def _statements(self, body: list[ast.stmt]) -> None:
        """A block: without `pass` and constants (docstrings, `...`), neighbouring imports in any order."""
        kept = (statement for statement in body if not _does_nothing(statement))
        for is_import, run in groupby(kept, lambda statement: isinstance(statement, ast.Import | ast.ImportFrom)):
            if is_import:
                self._imports([entry for statement in run for entry in self._taken(statement)])
            else:
                for statement in run:
                    self._node(statement)

    def _taken(self, statement: ast.stmt) -> list[Import]:
        """The targets of an import statement; a module outside the set is part of the text."""
        assert isinstance(statement, ast.Import | ast.ImportFrom)
        if isinstance(statement, ast.Import):
            return [self._module(alias) for alias in statement.names]
        base = "." * statement.level + (statement.module or "")
        return [self._name(base, alias) for alias in statement.names]

    def _module(self, alias: ast.alias) -> Import:
        """`import MODULE`, which binds the whole path, or `import MODULE as NAME`."""
        text = f"import {alias.name} as {alias.asname}"
        if alias.name not in self.names:
            return Import("", text)
        return Import(alias.name, f"module as {alias.asname}" if alias.asname else text)

    def _name(self, base: str, alias: ast.alias) -> Import:
        """`from BASE import NAME`: a module or what a module defines."""
        inner, own = f"{base}.{alias.name}", alias.asname or alias.name
        if inner in self.names:
            return Import(inner, f"module as {own}")
        if base in self.names:
            return Import(base, f"{alias.name} as {own}")
        return Import("", f"from {base} import {alias.name} as {own}")

    def _imports(self, entries: list[Import]) -> None:
        texts = sorted(f"{entry.text} {bool(entry.module)}" for entry in entries)
        self.parts += ["imports", *texts, "]"]
        self.imports.append(tuple(entry for entry in entries if entry.module))

    def _node(self, node: ast.AST) -> None:
        parts = self.parts
        parts.append(type(node).__name__)
        if isinstance(node, ast.JoinedStr):
            self._joined(node)
            return
        for name in node._fields:
            value = getattr(node, name, None)
            is_absent = value == [] or (value is None and not isinstance(node, ast.Constant))
            if name not in IGNORED and not is_absent:  # a field that only newer versions have is absent in older code
                parts.append(name)
                self._value(value)
        parts.append(")")

    def _value(self, value: object) -> None:
        if isinstance(value, ast.AST):
            self._node(value)
        elif not isinstance(value, list):
            self._constant(value)
        elif value and isinstance(value[0], ast.stmt):
            self.parts.append("[")
            self._statements(value)
            self.parts.append("]")
        else:
            self.parts.append("[")
            for item in value:
                self._value(item)
            self.parts.append("]")

    def _constant(self, value: object) -> None:
        if isinstance(value, str) and value in self.names:  # a module that is imported by its name
            self.parts.append("module")
            self.imports.append((Import(value, "name"),))
        else:
            self.parts.append(f"{type(value).__name__} {value!a}")

    def _joined(self, node: ast.JoinedStr) -> None:
        """An f-string: how its plain parts are divided is not the same on all versions of Python."""
        for is_plain, run in groupby(node.values, lambda value: isinstance(value, ast.Constant)):
            if is_plain:
                text = "".join(str(value.value) for value in run if isinstance(value, ast.Constant))
                self.parts += [ascii(text)] if text else []
            else:
                for value in run:
                    self._node(value)
        self.parts.append(")")


def _does_nothing(statement: ast.stmt) -> bool:
    is_constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_constant or isinstance(statement, ast.Pass)
