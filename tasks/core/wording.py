"""Wording of messages and tables: counts with nouns, text made safe for a terminal, one line per validation error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


def counted(number: float) -> str:
    """A number with spaces between thousands; whole numbers have no decimals."""
    return f"{int(number):,}".replace(",", " ") if number == int(number) else f"{number:g}"


def some(number: float, noun: str) -> str:
    """A count with its noun: `1 cell`, `2 cells`, `0.5 GPUs`; `1 entry`, `2 entries`."""
    return f"{counted(number)} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """The plural of a regular noun."""
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"


CONTROLS = [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029]
"""C0 without the tab, DEL and C1, which terminals obey as commands; Unicode's line and paragraph separators."""
DIRECTIONS = [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]
"""Unicode's embeddings, overrides and isolates, which change the order in which a text is shown."""

_VISIBLE = {code: f"\\u{code:04x}" for code in [*CONTROLS, *DIRECTIONS] if code != ord("\t")}
_OF_LINES = {code: text for code, text in _VISIBLE.items() if code != ord("\n")}


def printable(text: str) -> str:
    r"""A text as one line: each control character becomes its escape, such as `\u001b`, as in JSON."""
    return text.translate(_VISIBLE)


def printable_lines(text: str) -> str:
    """A text of several lines, with its other control characters escaped."""
    return text.translate(_OF_LINES)


LONGEST = 60
"""The largest number of characters of a value in a message."""


def first_mistake(
    error: ValidationError, document: object, wanted: Mapping[str, str], place: tuple[int | str, ...] | None = None
) -> str:
    """The message for the first of pydantic's errors, with a remedy.

    Args:
        error: the errors of validating a document.
        document: the mapping that was validated.
        wanted: key (dotted if nested) → the remedy; it has every key that can be wrong.
        place: the path of the mistake in the document; None for the location in the error.
    """
    first = error.errors(include_url=False, include_context=False)[0]
    if first["type"] == "value_error":
        return first["msg"].removeprefix("Value error, ")
    parts = [str(part) for part in (first["loc"] if place is None else place)]
    key = next(key for key in (".".join(parts[:end]) for end in range(len(parts), -1, -1)) if key in wanted)
    exists, value = _value(document, key)
    remedy = wanted[key]
    for part in parts[key.count(".") + 1 :] if key else ():
        if not isinstance(value, Mapping) or (part not in value and first["type"] != "missing"):
            break
        key, exists, value = f"{key}.{part}", part in value, value.get(part)
    if not exists:
        return f"{key} is missing; {remedy}."
    return f"{key} is {shown(value)}; {remedy}." if key else f"{shown(value)}: {remedy}."


def shown(value: object) -> str:
    """A value as a message shows it, truncated if it is long."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _value(document: object, key: str) -> tuple[bool, object]:
    """(True if a dotted key exists, its value)."""
    for part in key.split(".") if key else ():
        if not isinstance(document, Mapping) or part not in document:
            return False, None
        document = document[part]
    return True, document
