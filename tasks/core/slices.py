"""A labelled test split that a slice carves off train or dev, for tasks whose test labels are hidden."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from meltpoint.tasks.core.counts import some
from meltpoint.tasks.core.task import Example

_FORM = re.compile(r"(train|dev)\[(-?\d+)?:(-?\d+)?\]")


@dataclass(frozen=True)
class Slice:
    """A slice of a split, with the semantics of Python's slices.

    Attributes:
        text: the slice as written by the user (`train[-1000:]`), for the tables.
        split: the split that is sliced.
    """

    text: str
    split: Literal["train", "dev"]
    start: int | None
    stop: int | None

    def carve(self, examples: list[Example]) -> tuple[list[Example], list[Example]]:
        """Split the examples into (the rest, the carved part), both in their original order.

        Raises:
            ValueError: the slice is empty, or covers the whole split.
        """
        first, last, _ = slice(self.start, self.stop).indices(len(examples))
        carved, rest = examples[first:last], examples[:first] + examples[max(first, last) :]
        if not carved or not rest:
            problem = "is empty" if not carved else "leaves nothing of the split"
            has = some(len(examples), "example")
            raise ValueError(f"--test-from {self.text} {problem}: {self.split} has {has}. Choose other ends.")
        return rest, carved


def parse_slice(text: str) -> Slice:
    """Parse `train[-1000:]`, `dev[:400]` or `train[100:200]`.

    Raises:
        ValueError: any other form.
    """
    match = _FORM.fullmatch(text.replace(" ", ""))
    if not match or (match[2] is None and match[3] is None):
        raise ValueError(f"--test-from '{text}' is not a slice of train or dev. Write train[-1000:] or dev[:400].")
    split: Literal["train", "dev"] = "train" if match[1] == "train" else "dev"
    start, stop = (int(end) if end is not None else None for end in (match[2], match[3]))
    return Slice(match[0], split, start, stop)
