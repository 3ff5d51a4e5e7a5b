"""The seeded generator behind the demo's tasks: templates, word lists with a held-out half, and some label noise.

Every split is generated on its own: a text belongs to the split that its checksum says, so the splits are disjoint
and whoever asks for train or dev never makes a test example.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeVar

from meltpoint.tasks.core.task import Example, Split

SIZES: Mapping[Split, int] = {"train": 400, "dev": 200, "test": 400}

HELD_OUT_SHARE = 0.5
"""How often a word of dev and test comes from the half of its list that training never shows."""

_BUCKETS: Mapping[Split, range] = {"train": range(4), "dev": range(4, 7), "test": range(7, 10)}

T = TypeVar("T")


@dataclass(frozen=True)
class Draw:
    """The choices of one split's examples.

    Attributes:
        random: the split's own generator.
        split: train draws from the first half of a list only; dev and test from both.
    """

    random: Random
    split: Split

    def word(self, words: Sequence[T]) -> T:
        """One item; even positions are the half that training sees, odd ones the held-out half."""
        held_out = self.split != "train" and self.random.random() < HELD_OUT_SHARE
        return self.random.choice(words[1::2] if held_out else words[::2])

    def other(self, words: Sequence[T], *taken: T) -> T:
        """One item that is none of `taken`."""
        while (item := self.word(words)) in taken:
            pass
        return item

    def any(self, items: Sequence[T]) -> T:
        """One item of the whole list: for what is grammar rather than vocabulary."""
        return self.random.choice(items)

    def chance(self, share: float) -> bool:
        """True in this share of the draws."""
        return self.random.random() < share


def generate(name: str, split: Split, make: Callable[[Draw], Example]) -> list[Example]:
    """The examples of one split, always the same.

    Args:
        name: the task's name, part of the seed.
        split: which split.
        make: makes one example from a draw; its id is overwritten.
    """
    # Random seeds itself from a text by sha512, the same in every process.
    draw = Draw(Random(f"{name} {split}"), split)
    examples: list[Example] = []
    seen: set[str] = set()
    while len(examples) < SIZES[split]:
        example = make(draw)
        text = " ".join((*example.texts, *example.words)).lower()
        if text in seen or zlib.crc32(text.encode()) % 10 not in _BUCKETS[split]:
            continue
        seen.add(text)
        examples.append(Example(str(len(examples)), example.texts, example.words, example.label))
    return examples


def readers(name: str, make: Callable[[Draw], Example]) -> Mapping[Split, Callable[[Path], list[Example]]]:
    """The readers of a generated task; the folder that they are given does not matter."""

    def reader(split: Split) -> Callable[[Path], list[Example]]:
        return lambda _folder: generate(name, split, make)

    return {split: reader(split) for split in SIZES}


def sentence(text: str) -> str:
    """The text with a capital first letter and single spaces, `a` before a vowel made `an`."""
    words = text.split()
    for position, following in enumerate(words[1:]):
        if words[position] in {"a", "A"} and following[0].lower() in "aeiou":
            words[position] += "n"
    return " ".join([words[0][:1].upper() + words[0][1:], *words[1:]])
