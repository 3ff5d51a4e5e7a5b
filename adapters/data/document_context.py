"""What a document has around a sentence: as many words on both sides as one input of the encoder holds.

Each sentence is read in a window of its own, itself in the middle, so that each of its words is scored once, and with
as much context as there is room for: the maximal context of Devlin et al. 2019's code for documents, without the words
near a window's edge.
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
        ends: where each word ends in the document's pieces, the first entry being 0: (words + 1,).
        first: the place of the sentence's first word.
        is_alone: whether the document has nothing but the sentence.
    """

    words: Sequence[Sequence[int]]
    ends: Sequence[int]
    first: int
    is_alone: bool

    def of(self, window: range, room: int) -> tuple[Pieces, Pieces]:
        """The pieces before and after some words of the sentence: whole words, about as much on either side.

        What one side cannot use, because the document begins or ends there, goes to the other.

        Args:
            window: words of the sentence, from 0.
            room: how many pieces the input holds, special tokens not counted.
        """
        start, stop = self.first + window.start, self.first + window.stop
        left = room - (self.ends[stop] - self.ends[start])
        after = min(self.ends[-1] - self.ends[stop], left // 2)
        first = bisect_left(self.ends, self.ends[start] - (left - after), 0, start)
        last = bisect_right(self.ends, self.ends[stop] + left - (self.ends[start] - self.ends[first])) - 1
        return self._pieces(first, start), self._pieces(stop, max(last, stop))

    def _pieces(self, start: int, stop: int) -> Pieces:
        return tuple(piece for word in self.words[start:stop] for piece in word)


def documents(examples: Sequence[Example], sentences: Sequence[Sequence[Sequence[int]]]) -> list[Surroundings]:
    """Each sentence within what is there of its document: the sentences that follow one another in the source.

    A sample of a split has gaps: what does not follow is no context.

    Args:
        examples: sentences; `group` names their document.
        sentences: the pieces of each word of each.
    """
    found: list[Surroundings] = []
    for start, stop in _stretches(examples):
        words = [word for sentence in sentences[start:stop] for word in sentence]
        ends = [0, *accumulate(map(len, words))]
        firsts = accumulate(map(len, sentences[start:stop]), initial=0)
        alone = stop - start == 1
        found += [Surroundings(words, ends, first, alone) for first, _ in zip(firsts, range(start, stop), strict=False)]
    return found


def documents_fingerprint(*splits: Sequence[Example]) -> str:
    """sha256 (hex, 16 characters) over which sentences of each split are one another's context."""
    stretches = [[stop - start for start, stop in _stretches(examples)] for examples in splits]
    return hashlib.sha256(json.dumps(stretches).encode()).hexdigest()[:16]


def _stretches(examples: Sequence[Example]) -> Iterator[tuple[int, int]]:
    """(start, stop) of each run of sentences that follow one another in one document."""
    start = 0
    for stop in range(1, len(examples) + 1):
        if stop == len(examples) or not _follows(examples[stop - 1], examples[stop]):
            yield start, stop
            start = stop


def _follows(one: Example, other: Example) -> bool:
    """Whether a sentence comes next after another one in the same document; numbered ids show the gaps of a sample."""
    if not one.group or one.group != other.group:
        return False
    numbered = one.id.isdecimal() and other.id.isdecimal()
    return not numbered or int(other.id) == int(one.id) + 1
