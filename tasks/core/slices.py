"""Slices of a split: the examples from one position to another, which become dev or a labelled test."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from meltpoint.tasks.core.counts import some
from meltpoint.tasks.core.task import Example

_END = r"(-?\d+%?)?"
_FORM = re.compile(rf"(train|dev)\[{_END}:{_END}\]")

TEST_FROM = "--test-from"


@dataclass(frozen=True)
class Slice:
    """A slice of a split, with the semantics of Python's slices; an end may be a percentage of the split.

    Attributes:
        text: the slice as written by the user (`train[-1000:]`, `train[:10%]`), for the tables.
        split: the split that is sliced.
        start, stop: the ends as written; "" where there is none.
        asked_by: the option or the key that has the slice, for messages.
        by_group: True if the examples of a group have to stay on one side.
    """

    text: str
    split: Literal["train", "dev"]
    start: str
    stop: str
    asked_by: str = TEST_FROM
    by_group: bool = False

    def positions(self, examples: Sequence[Example]) -> list[int]:
        """The positions of the slice's examples, ascending.

        Raises:
            ValueError: the slice is empty, covers the whole split, or cuts a group apart.
        """
        count = len(examples)
        first, last, _ = slice(_position(self.start, count), _position(self.stop, count)).indices(count)
        if last <= first or last - first == count:
            problem = "is empty" if last <= first else "leaves nothing of the split"
            has = some(count, "example")
            raise ValueError(f"{self.asked_by} {self.text} {problem}: {self.split} has {has}. Choose other ends.")
        inside = {example.group for example in examples[first:last]} if self.by_group else set()
        both = next((one.group for one in (*examples[:first], *examples[last:]) if one.group in inside), None)
        if both is not None:
            remedy = f"Write {{from: {self.split}, fraction: 0.1}}, which keeps groups whole"
            raise ValueError(f"{self.asked_by} {self.text} cuts the group '{both[:40]}' apart. {remedy}.")
        return list(range(first, last))

    def carve(self, examples: list[Example]) -> tuple[list[Example], list[Example]]:
        """Split the examples into (the rest, the carved part), both in their original order; see `positions`."""
        chosen = self.positions(examples)
        first, last = chosen[0], chosen[-1] + 1
        return examples[:first] + examples[last:], examples[first:last]

    def note(self, examples: Sequence[Example]) -> str:
        """The slice for the tables."""
        return self.text


def _position(end: str, count: int) -> int | None:
    """An end as a position: a percentage is rounded down, so that `[:10%]` and `[10%:]` share nothing."""
    if not end.endswith("%"):
        return int(end) if end else None
    percent = int(end[:-1])
    return count * percent // 100 if percent >= 0 else -(count * -percent // 100) or count


def parse_slice(text: str, asked_by: str = TEST_FROM) -> Slice:
    """Parse `train[-1000:]`, `dev[:400]`, `train[100:200]` or `train[:10%]`.

    Raises:
        ValueError: any other form.
    """
    match = _FORM.fullmatch(text.replace(" ", ""))
    if not match or (match[2] is None and match[3] is None):
        raise ValueError(f"{asked_by} '{text}' is not a slice of train or dev. Write train[-1000:] or dev[:400].")
    split: Literal["train", "dev"] = "train" if match[1] == "train" else "dev"
    return Slice(match[0], split, match[2] or "", match[3] or "", asked_by)
