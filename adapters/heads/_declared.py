"""The hyperparameters that the files of the heads declare, without importing them: a head's file imports torch."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

from meltpoint.adapters.parameters import Parameter


def parameters(folders: Iterable[str]) -> tuple[Parameter, ...] | None:
    """What every `Parameter(…)` of the folders' files is, by name; None where one is not made of plain values."""
    found: dict[str, Parameter] = {}
    for path in sorted(path for folder in folders for path in Path(folder).glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if " Parameter(" not in text or path.name == Path(__file__).name:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == Parameter.__name__:
                try:
                    values = [ast.literal_eval(value) for value in node.args]
                    named = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
                except ValueError:
                    return None
                parameter = Parameter(*values, **named)
                found[parameter.name] = parameter
    return tuple(found[name] for name in sorted(found))
