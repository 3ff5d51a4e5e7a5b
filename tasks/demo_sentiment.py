"""Demo: is a short review positive? Negation, contrast and broken expectations invert the sentiment of single words.

The seeded generator serves all demo tasks: templates, word lists with a held-out half, and label noise. Each split is
generated separately. A text's CRC-32 assigns it to one split, so the splits are disjoint, and generating train or dev
never creates a test example.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeVar

from meltpoint.tasks.core.task import Example, Split, Task

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


def generate(_: Path, name: str, split: Split, make: Callable[[Draw], Example]) -> list[Example]:
    """Generate the examples of one split deterministically.

    Args:
        name: the task's name, part of the seed.
        split: the split to generate.
        make: creates one example; its id is overwritten.
    """
    # Random hashes a string seed with SHA-512, which, unlike `hash`, gives the same value in every process.
    draw = Draw(Random(f"{name} {split}"), split)
    examples: dict[str, Example] = {}
    while len(examples) < SIZES[split]:
        example = make(draw)
        text = " ".join((*example.texts, *example.words)).lower()
        if text not in examples and zlib.crc32(text.encode()) % 10 in _BUCKETS[split]:
            examples[text] = replace(example, id=str(len(examples)))
    return list(examples.values())


def demo(
    name: str, make: Callable[[Draw], Example], kind: str, metric: str, description: str, labels: tuple[str, ...] = (),
    label_range: tuple[float, float] | None = None,
) -> Task:  # fmt: skip
    """The task of generated examples; see `Task` for the arguments."""
    readers = {split: partial(generate, name=name, split=split, make=make) for split in SIZES}
    return Task(
        name, kind, metric, "", readers, labels, label_range, tokenised=True, generated=True,
        description=f"demo, generated: {description}",
    )  # fmt: skip


def sentence(text: str) -> str:
    """The text with a capital first letter, single spaces, and `an` for `a` before a vowel."""
    words = text.split()
    for position, following in enumerate(words[1:]):
        if words[position] in {"a", "A"} and following[0].lower() in "aeiou":
            words[position] += "n"
    return " ".join([words[0][:1].upper() + words[0][1:], *words[1:]])


LABELS = ("negative", "positive")

# By field: (nouns, positive adjectives, negative adjectives).
FIELDS = (
    (
        ("soup", "pasta", "dessert", "steak", "breakfast", "curry", "salad", "bread", "coffee", "pie"),
        ("delicious", "tasty", "fresh", "superb", "tender", "fragrant", "perfect", "delightful"),
        ("stale", "bland", "greasy", "tasteless", "burnt", "soggy", "awful", "inedible"),
    ),
    (
        ("plot", "acting", "ending", "dialogue", "film", "script", "soundtrack", "sequel", "thriller", "comedy"),
        ("gripping", "moving", "clever", "brilliant", "witty", "touching", "superb", "charming"),
        ("dull", "predictable", "clumsy", "tedious", "lifeless", "shallow", "awful", "boring"),
    ),
    (
        ("room", "bed", "service", "view", "pool", "lobby", "bathroom", "staff", "location", "balcony"),
        ("spotless", "comfortable", "friendly", "wonderful", "lovely", "pleasant", "perfect", "excellent"),
        ("filthy", "noisy", "shabby", "dreadful", "cramped", "unpleasant", "awful", "disgusting"),
    ),
    (
        ("phone", "screen", "battery", "keyboard", "camera", "laptop", "speaker", "charger", "tablet", "printer"),
        ("reliable", "fast", "sharp", "excellent", "sturdy", "impressive", "perfect", "dependable"),
        ("useless", "slow", "flimsy", "faulty", "fragile", "worthless", "awful", "defective"),
    ),
)

# (review with an opinion {x} and one {y} of the opposite sentiment, True if the review has the sentiment of {x}).
# {n} and {m} are nouns of one field. The plain reviews contain no negation or contrast.
PLAIN = (
    ("The {n} was {x} .", True),
    ("The {n} was really {x} , and so was the {m} .", True),
    ("I found the {n} {x} from the first minute to the last .", True),
    ("Everyone at our table called the {n} {x} .", True),
    ("What a {x} {n} !", True),
    ("My sister chose it for the {n} , which is {x} .", True),
    ("A {x} {n} and a {x} {m} , just as my friends had said .", True),
    ("After two weeks I still think that the {n} is {x} .", True),
)
TURNING = (
    ("The {n} was not {x} at all .", False),
    ("The {n} was far from {x} .", False),
    ("Nobody could call this {n} {x} .", False),
    ("The {n} was anything but {x} .", False),
    ("I have never seen a less {x} {n} .", False),
    ("The {n} was {x} , but the {m} was so {y} that it decided the matter .", False),
    ("Although the {n} was {y} , the {m} was {x} and that is what counts .", True),
    ("We expected the {n} to be {y} , but it turned out to be {x} .", True),
    ("Friends had warned us that the {n} was {y} ; they were wrong .", True),
    ("The advert promised a {x} {n} , and that was a lie .", False),
    ("There was nothing {y} about the {n} .", True),
    ("The {n} used to be {x} ; those days are over .", False),
    ("The {n} may look {y} at first , yet it is {x} .", True),
    ("Do not let the {y} {n} put you off : the {m} is {x} and well worth it .", True),
    ("A {x} {n} does not make up for a {y} {m} .", False),
)
PLAIN_SHARE = 0.5

NOISE_SHARE = 0.04


def _make(draw: Draw) -> Example:
    nouns, praise, blame = draw.any(FIELDS)
    template, agrees_with_x = draw.any(PLAIN if draw.chance(PLAIN_SHARE) else TURNING)
    x_is_praise = draw.chance(0.5)
    x = draw.word(praise if x_is_praise else blame)
    y = draw.word(blame if x_is_praise else praise)
    noun = draw.word(nouns)
    text = sentence(template.format(n=noun, m=draw.other(nouns, noun), x=x, y=y))
    positive = x_is_praise == agrees_with_x
    if draw.chance(NOISE_SHARE):
        positive = not positive
    return Example("", texts=(text,), label=int(positive))


TASK = demo(
    "demo_sentiment", _make, "sentence_classification", "accuracy", "short reviews with negation and contrast", LABELS
)
