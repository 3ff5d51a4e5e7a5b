"""Seeded generator of the demo tasks: templates, word lists with a held-out half, and label noise.

Each split is generated separately. A text's CRC-32 assigns it to one split, so the splits are disjoint, and generating
train or dev never creates a test example.
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
"""Probability that a word of dev or test comes from the half of its list that train never uses."""

_BUCKETS: Mapping[Split, range] = {"train": range(4), "dev": range(4, 7), "test": range(7, 10)}

T = TypeVar("T")


@dataclass(frozen=True)
class Draw:
    """Random choices for the examples of one split.

    Attributes:
        random: the split's generator.
        split: train draws from the first half of a list only; dev and test from both.
    """

    random: Random
    split: Split

    def word(self, words: Sequence[T]) -> T:
        """One item; even indices are the half that train uses, odd ones the held-out half."""
        held_out = self.split != "train" and self.random.random() < HELD_OUT_SHARE
        return self.random.choice(words[1::2] if held_out else words[::2])

    def other(self, words: Sequence[T], *taken: T) -> T:
        """One item that is not in `taken`."""
        while (item := self.word(words)) in taken:
            pass
        return item

    def any(self, items: Sequence[T]) -> T:
        """One item of the whole list, for choices of grammar rather than of vocabulary."""
        return self.random.choice(items)

    def chance(self, share: float) -> bool:
        """True with this probability."""
        return self.random.random() < share


def generate(name: str, split: Split, make: Callable[[Draw], Example]) -> list[Example]:
    """Generate the examples of one split deterministically.

    Args:
        name: the task's name, part of the seed.
        split: the split to generate.
        make: creates one example; its id is overwritten.
    """
    # Random hashes a string seed with SHA-512, unlike `hash` the same in every process.
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
    """The readers of a generated task, which ignore the folder that they are given."""

    def reader(split: Split) -> Callable[[Path], list[Example]]:
        return lambda _folder: generate(name, split, make)

    return {split: reader(split) for split in SIZES}


def sentence(text: str) -> str:
    """The text with a capital first letter, single spaces, and `an` for `a` before a vowel."""
    words = text.split()
    for position, following in enumerate(words[1:]):
        if words[position] in {"a", "A"} and following[0].lower() in "aeiou":
            words[position] += "n"
    return " ".join([words[0][:1].upper() + words[0][1:], *words[1:]])
