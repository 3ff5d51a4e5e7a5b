"""Formatting of counts for messages and tables: thousands separators and plural nouns."""

from __future__ import annotations


def counted(number: float) -> str:
    """A number with spaces between thousands; whole numbers have no decimals."""
    return f"{int(number):,}".replace(",", " ") if number == int(number) else f"{number:g}"


def some(number: float, noun: str) -> str:
    """A count with its noun: `1 cell`, `2 cells`, `0.5 GPUs`; `1 entry`, `2 entries`."""
    return f"{counted(number)} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """The plural of a regular noun."""
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
