"""One line about a file's first wrong value: its key, the value, and what to write there."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

LONGEST = 60
"""Characters of a value that a message shows."""


def first_mistake(
    error: ValidationError, document: object, wanted: Mapping[str, str], place: tuple[int | str, ...] | None = None
) -> str:
    """The first of pydantic's errors, in words of our own.

    Args:
        error: what checking a document gave.
        document: the mapping that was checked.
        wanted: key (dotted, where it lies in another) → what to write there; it holds every key that can be wrong.
        place: where the mistake lies in the document; None for where the error says.
    """
    first = error.errors(include_url=False, include_context=False)[0]
    if first["type"] == "value_error":
        return first["msg"].removeprefix("Value error, ")
    parts = [str(part) for part in (first["loc"] if place is None else place)]
    key = next(key for key in (".".join(parts[:end]) for end in range(len(parts), -1, -1)) if key in wanted)
    is_there, value = _value(document, key)
    if not is_there:
        return f"{key} is missing; {wanted[key]}."
    return f"{key} is {shown(value)}; {wanted[key]}." if key else f"{shown(value)}: {wanted[key]}."


def shown(value: object) -> str:
    """A value as a message shows it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _value(document: object, key: str) -> tuple[bool, object]:
    """(whether a dotted key is there, its value)."""
    for part in key.split(".") if key else ():
        if not isinstance(document, Mapping) or part not in document:
            return False, None
        document = document[part]
    return True, document
