"""The lengths of a task's inputs in pieces: the default of `max_pieces`, and notes on the cuts of a length limit."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

from meltpoint.adapters.data.batch import EncodedSplit
from meltpoint.adapters.hyperparameters import MAX_PIECES
from meltpoint.tasks.core.splits import SAMPLE_SEED, sample
from meltpoint.tasks.core.task import Example
from meltpoint.tasks.core.wording import counted, some

PERCENTILE = "99.5th percentile"
_PER_MILLE = 995

KEPT_WHOLE = 128
"""Inputs of up to this length stay whole by default; a batch is as long as its longest row, so they cost little."""

MULTIPLE = 8
"""Lengths are rounded up to a multiple of this, because a GPU's matrix units take eight 16-bit numbers at a time."""

MOST_COUNTED = 2000
"""The number of training examples that lengths are counted on; ten of these are longer than the percentile."""


def sample_of(examples: Sequence[Example], in_documents: bool) -> list[Example]:
    """The training examples that lengths are counted on: all, or a seeded sample in their order.

    Args:
        examples: the training split.
        in_documents: whether sentences are read in document context; if so, whole documents are drawn.
    """
    if len(examples) <= MOST_COUNTED:
        return list(examples)
    if not in_documents:
        return sample(examples, MOST_COUNTED)
    sizes = Counter(example.group for example in examples)
    drawn = random.Random(SAMPLE_SEED).sample(list(sizes), len(sizes))
    before = accumulate((sizes[group] for group in drawn), initial=0)
    chosen = {group for group, count in zip(drawn, before, strict=False) if count < MOST_COUNTED}
    return [example for example in examples if example.group in chosen]


def percentile(lengths: Sequence[int]) -> int:
    """The smallest of the lengths that at least 99.5 % of them do not exceed; 0 without lengths."""
    ranked = sorted(lengths)
    return ranked[-(-_PER_MILLE * len(ranked) // 1000) - 1] if ranked else 0


def default_length(lengths: Sequence[int]) -> tuple[int, str]:
    """The default longest input for inputs of these lengths, before rounding, and its source.

    It is the 99.5th percentile, but never cuts an input of up to 128 pieces.
    """
    found, longest = percentile(lengths), max(lengths, default=0)
    counted_on = some(len(lengths), "training example")
    if longest <= KEPT_WHOLE:
        return longest, f"the longest of {counted_on}"
    if found < KEPT_WHOLE:
        return KEPT_WHOLE, f"inputs of up to {KEPT_WHOLE} stay whole; the {PERCENTILE} of {counted_on} is {found}"
    return found, f"the {PERCENTILE} of {counted_on}"


def rounded(length: int, most: int) -> int:
    """A length, rounded up to a multiple of 8, but at most `most`."""
    return min(-(-max(1, length) // MULTIPLE) * MULTIPLE, most)


def settable(longest: int) -> int:
    """The largest `max_pieces` of a setting for an encoder whose longest input is `longest`."""
    return min(longest, int(MAX_PIECES.maximum))


def longest_whole(split: EncodedSplit) -> int:
    """The smallest limit that cuts nothing of a split."""
    return max(split.whole, default=0)


def cut_notes(split: EncodedSplit, max_pieces: int, longest: int) -> list[str]:
    """The losses of a split's inputs to a length limit, one line per kind of loss; none if everything fits.

    Args:
        split: tokenised with the limit.
        max_pieces: the limit, at most `longest`.
        longest: the longest input that the encoder takes, special tokens included.
    """
    is_own = max_pieces >= longest
    limit = f"the encoder's longest input, {some(longest, 'piece')}" if is_own else f"max_pieces = {max_pieces}"
    remedy = _remedy(split, max_pieces, settable(longest))
    of = f"of {some(split.examples, 'sentence' if split.word_counts else 'example')}"
    share = f"({percent(split.truncated, split.examples)}; {percent(split.pieces_cut, split.pieces + split.pieces_cut)}"
    notes = []
    if split.truncated:
        what = "with a word cut to" if split.word_counts else "cut to"
        notes.append(f"{counted(split.truncated)} {of} {what} {limit} {share} of all pieces lost){remedy}")
    if split.windowed:
        notes.append(f"{counted(split.windowed)} {of} split into windows of {limit}, no word lost{remedy}")
    if split.narrowed:
        seen = f"{_mean(split.pieces, len(split.rows))} of their document's {_mean(sum(split.whole), split.examples)}"
        part = f"({percent(split.narrowed, split.examples)}; the mean input has {seen} pieces)"
        notes.append(f"{counted(split.narrowed)} {of} with only a part of their document in {limit} {part}{remedy}")
    return notes


def percent(part: int, whole: int) -> str:
    """A share in per cent: `0.4 %`, `<0.1 %`, `100 %`."""
    share = 100 * part / whole if whole else 0.0
    return "<0.1 %" if 0 < share < 0.1 else f"{share:.3g} %"


def _remedy(split: EncodedSplit, max_pieces: int, most: int) -> str:
    """The option that would keep the cut pieces, as far as the encoder can read them."""
    if max_pieces >= most:
        return f"; the longest has {counted(longest_whole(split))}"
    needed = rounded(longest_whole(split), most)
    lacking = sum(length > needed for length in split.whole)
    return f"; --set max_pieces={needed} would keep {f'all but {counted(lacking)}' if lacking else 'all'}"


def _mean(total: int, count: int) -> str:
    return counted(round(total / max(1, count)))
