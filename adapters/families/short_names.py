"""Short names of encoders: `NAME=ENCODER`, as in `l3=hf:FOLDER`; every table, file and cell then has the name."""

from __future__ import annotations

import re

NAMED = re.compile(r"(?P<name>[^=:/#\\]*)=(?P<word>.*)", re.DOTALL)
"""A folder may have `=` in its path: what stands before it is a name only where no path or family begins there."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")


def short_name(text: str) -> str:
    """The name by which a sweep knows an encoder: the one before the `=`, or the word itself."""
    found = NAMED.fullmatch(text)
    return found["name"] if found else text


def encoder_word(text: str) -> str:
    """The word that says where the encoder lies, without the name before it."""
    found = NAMED.fullmatch(text)
    return found["word"] if found else text


def check_short_name(text: str, named: list[str]) -> None:
    """Refuse a short name that files cannot have, or that is an encoder's already.

    Args:
        text: `NAME=ENCODER`, or any other word, which is not looked at.
        named: the named encoders.

    Raises:
        ValueError: one line with the remedy.
    """
    found = NAMED.fullmatch(text)
    if found is None:
        return
    if not NAME.fullmatch(found["name"]):
        raise ValueError(
            f"--encoder {text}: the name before '=' takes letters, digits, '_' and '-', at most 40 of them, as in "
            "l3=hf:FOLDER."
        )
    if found["name"] in named:
        raise ValueError(f"--encoder {text}: '{found['name']}' is an encoder's own name; take another one.")
