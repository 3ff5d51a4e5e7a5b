"""Document context: as many of a document's words on both sides of a sentence as one encoder input holds.

Each sentence is encoded in the middle of its own window, so that each of its words is predicted once, with as much
context as fits. This is the maximum context in the code of Devlin et al. 2019, except that no word is predicted near a
window's edge.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from meltpoint.tasks.core.task import Example

Pieces = tuple[int, ...]


@dataclass(frozen=True)
class Surroundings:
    """A sentence within its document.

    Attributes:
        words: the pieces of each of the document's words.
        ends: the position at which each word ends in the document's pieces, after an initial 0: (words + 1,).
        first: the index in `words` of the sentence's first word.
        is_alone: whether the document consists of this sentence only.
    """

    words: Sequence[Sequence[int]]
    ends: Sequence[int]
    first: int
    is_alone: bool

    def of(self, window: range, room: int) -> tuple[Pieces, Pieces]:
        """The pieces before and after some words of the sentence: whole words, about as many pieces on each side.

        If the document's beginning or end leaves room on one side, the other side gets it.

        Args:
            window: words of the sentence, from 0.
            room: maximum number of pieces of the input, special tokens not counted.
        """
        start, stop = self.first + window.start, self.first + window.stop
        left = room - (self.ends[stop] - self.ends[start])
        after = min(self.ends[-1] - self.ends[stop], left // 2)
        first = bisect_left(self.ends, self.ends[start] - (left - after), 0, start)
        last = bisect_right(self.ends, self.ends[stop] + left - (self.ends[start] - self.ends[first])) - 1
        return self._pieces(first, start), self._pieces(stop, max(last, stop))

    def _pieces(self, start: int, stop: int) -> Pieces:
        return tuple(piece for word in self.words[start:stop] for piece in word)


def documents(
    examples: Sequence[Example],
    sentences: Sequence[Sequence[Sequence[int]]],
    sampled_from: Sequence[Example] | None = None,
) -> list[Surroundings]:
    """Each sentence's surroundings: the sentences that directly precede and follow it in its document.

    Args:
        examples: sentences; `group` names their document.
        sentences: the pieces of each word of each sentence of `sampled_from`, or of `examples` without it.
        sampled_from: the split that they are a sample of; None if they are not a sample. Without it, sentences beyond
            a gap are not used as context.
    """
    surroundings: list[Surroundings] = []
    for start, stop in _stretches(examples if sampled_from is None else sampled_from):
        words = [word for sentence in sentences[start:stop] for word in sentence]
        ends = [0, *accumulate(map(len, words))]
        firsts = accumulate(map(len, sentences[start:stop]), initial=0)
        alone = stop - start == 1
        surroundings += [
            Surroundings(words, ends, first, alone) for first, _ in zip(firsts, range(start, stop), strict=False)
        ]
    return surroundings if sampled_from is None else [surroundings[place] for place in _places(examples, sampled_from)]


def documents_fingerprint(*splits: tuple[Sequence[Example], Sequence[Example] | None]) -> str:
    """sha256 (first 16 hex digits) of everything that decides the context of sentences.

    Args:
        splits: the sentences of each split, and the split that they are a sample of, as in `documents`. Whole splits
            contribute their runs of consecutive sentences; samples also their positions and the surrounding words.
    """
    parts: list[object] = []
    for examples, sampled_from in splits:
        parts.append([stop - start for start, stop in _stretches(examples if sampled_from is None else sampled_from)])
        if sampled_from is not None:
            parts += [_places(examples, sampled_from), [example.words for example in sampled_from]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _places(examples: Sequence[Example], sampled_from: Sequence[Example]) -> list[int]:
    """The index of each example in the split that it was sampled from."""
    places = {example.id: place for place, example in enumerate(sampled_from)}
    return [places[example.id] for example in examples]


def _stretches(examples: Sequence[Example]) -> Iterator[tuple[int, int]]:
    """(start, stop) of each run of sentences that follow one another in one document."""
    start = 0
    for stop in range(1, len(examples) + 1):
        if stop == len(examples) or not _follows(examples[stop - 1], examples[stop]):
            yield start, stop
            start = stop


def _follows(one: Example, other: Example) -> bool:
    """True if `other` directly follows `one` in the same document; numeric ids reveal the gaps of a sample."""
    if not one.group or one.group != other.group:
        return False
    numbered = one.id.isdecimal() and other.id.isdecimal()
    return not numbered or int(other.id) == int(one.id) + 1
