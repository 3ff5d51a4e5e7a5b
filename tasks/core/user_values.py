"""The values of a task file's keys: their types, and the checks of one value alone."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field

from meltpoint.tasks import kinds
from meltpoint.tasks.core import registry
from meltpoint.tasks.core.carving import parse_cut
from meltpoint.tasks.core.user_remedies import ENCODINGS

NO_ENCODINGS = {"idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined", "mbcs", "oem"}
"""What Python lists as encodings of text and no file is in; some take quadratic time."""


def as_tuple(value: object) -> object:
    """A text alone as a tuple of one."""
    return (value,) if isinstance(value, str) else value


def label_pairs(value: object) -> object:
    """A list of names, or a mapping of raw value → name, as pairs (raw value, name)."""
    if isinstance(value, Mapping):
        return tuple(value.items())
    return tuple((name, name) for name in value) if isinstance(value, list | tuple) else value


def character(value: object) -> object:
    """A tab where it is written as a word."""
    return {r"\t": "\t", "tab": "\t"}.get(value, value) if isinstance(value, str) else value


def quoting_of(value: object) -> object:
    """`none` as false."""
    return "false" if value == "none" else value


def kind_of(value: object) -> object:
    """A kind that there is."""
    if isinstance(value, str) and value not in kinds.names():
        raise ValueError(f"kind: {registry.unknown(value, 'kind', kinds.names())}")
    return value


def encoding_of(value: object) -> object:
    """An encoding that Python knows and that files are in."""
    if not isinstance(value, str):
        return value
    try:
        name = codecs.lookup(value).name if "\0" not in value else ""
        "".encode(value)  # it refuses what is no encoding of texts, as rot13; `b"".decode` does not
    except (LookupError, UnicodeError):
        name = ""
    if not name or name.replace("-", "_") in NO_ENCODINGS:
        raise ValueError(f"encoding: {registry.unknown(value, 'encoding', ENCODINGS)}")
    return value


def cut_of(key: str) -> BeforeValidator:
    """Check a part of train or dev, and keep it as text."""

    def check(value: object) -> str:
        cut = parse_cut(value, key)
        if key == "dev_from" and cut.split != "train":
            raise ValueError(f"dev_from: dev is carved off train, not off {cut.split}. Write dev_from: train[-500:].")
        # JSON of strings is YAML in braces, which `parse_cut` reads.
        return value if isinstance(value, str) else str(dict(value))  # type: ignore[call-overload]

    return BeforeValidator(check)


Names = Annotated[tuple[str, ...], BeforeValidator(as_tuple), Field(min_length=1)]
Character = Annotated[str, BeforeValidator(character), Field(min_length=1, max_length=1, pattern=r"[^\n\r]")]


Widths = Annotated[tuple[Annotated[int, Field(ge=1, le=10_000)], ...], Field(min_length=1)]
