"""Counted nouns: one is singular, in every room that talks to people."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from meltpoint.tasks.core.wording import some

ROOT = Path(__file__).resolve().parents[2]
FILES = [ROOT / "launch.py", *(path for room in ("reports", "sweeps", "tasks") for path in (ROOT / room).rglob("*.py"))]


def fixed_plurals(source: str) -> Iterator[tuple[int, str]]:
    """(line, noun) of f-strings that write a plural behind a length, whatever the length is."""
    for node in ast.walk(ast.parse(source)):
        values = node.values if isinstance(node, ast.JoinedStr) else []
        for value, after in itertools.pairwise(values):
            call = value.value if isinstance(value, ast.FormattedValue) else None
            is_length = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "len"
            noun = re.match(r" ([A-Za-z]+s)\b", str(after.value)) if isinstance(after, ast.Constant) else None
            if is_length and noun:
                yield node.lineno, noun.group(1)


def test_the_search_for_fixed_plurals_finds_one():
    assert list(fixed_plurals('f"{len(cells)} cells"')) == [(1, "cells")]
    assert not list(fixed_plurals('f"{some(len(cells), noun)} and {len(rest)} of them"'))


def test_no_message_writes_a_plural_behind_a_length():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {noun}"
        for path in FILES
        for line, noun in fixed_plurals(path.read_text(encoding="utf-8"))
    ]
    assert not found, found


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "cell", "1 cell"), (0, "cell", "0 cells"), (2, "entry", "2 entries"), (1, "entry", "1 entry"),
        (12345, "trial", "12 345 trials"), (1.0, "CPU", "1 CPU"), (0.25, "GPU", "0.25 GPUs"),
    ],
)  # fmt: skip
def test_one_is_singular(number: float, noun: str, text: str):
    assert some(number, noun) == text
