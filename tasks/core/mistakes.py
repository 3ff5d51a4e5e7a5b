"""One-line messages for validation errors of a file: the key, its value, and what to write instead."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

LONGEST = 60
"""The most characters of a value that a message shows."""


def first_mistake(
    error: ValidationError, document: object, wanted: Mapping[str, str], place: tuple[int | str, ...] | None = None
) -> str:
    """The message for the first of pydantic's errors, with a remedy.

    Args:
        error: the errors of validating a document.
        document: the mapping that was validated.
        wanted: key (dotted if nested) → what to write there; it has every key that can be wrong.
        place: the path of the mistake in the document; None for the location in the error.
    """
    first = error.errors(include_url=False, include_context=False)[0]
    if first["type"] == "value_error":
        return first["msg"].removeprefix("Value error, ")
    parts = [str(part) for part in (first["loc"] if place is None else place)]
    key = next(key for key in (".".join(parts[:end]) for end in range(len(parts), -1, -1)) if key in wanted)
    exists, value = _value(document, key)
    if not exists:
        return f"{key} is missing; {wanted[key]}."
    return f"{key} is {shown(value)}; {wanted[key]}." if key else f"{shown(value)}: {wanted[key]}."


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
