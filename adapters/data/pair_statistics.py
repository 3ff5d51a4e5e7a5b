"""Six statistics of a pair's words, which Kiros et al. 2015 put beside its sentence vectors ("+ feats").

They are like those of Socher et al. 2011, section 4 (three of numbers and their difference in length), as the released
`eval_msrp.py` of Skip-thoughts defines them, over words of the Penn Treebank. A logistic regression on them alone has
an accuracy of about 73.2 on MRPC by that file's word.
"""

from __future__ import annotations

from collections.abc import Sequence

from meltpoint.adapters.data.word_tokenizer import words_of

STATISTICS = 6
"""How many numbers `pair_statistics` gives."""


def pair_statistics(first: str, second: str) -> tuple[float, ...]:
    """The statistics of a pair of texts; see `of_words`."""
    return of_words(words_of(first), words_of(second))


def of_words(first: Sequence[str], second: Sequence[str]) -> tuple[float, ...]:
    """The statistics of a pair of word lists.

    Returns:
        1 where the sets of numbers are equal; 1 where they are and there is one; 1 where one contains the other; the
        share of the first sentence's distinct words that the second has, and the reverse; the mean of the two ratios
        of their lengths. The released code divides by zero for a sentence without words: here its share is 0, and the
        ratio of lengths is taken as if it had one word.
    """
    one, two = set(first), set(second)
    numbers_one, numbers_two = set(filter(is_number, one)), set(filter(is_number, two))
    same, shared = numbers_one == numbers_two, len(one & two)
    length, other = max(1, len(first)), max(1, len(second))
    return (
        float(same), float(same and bool(numbers_one)), float(numbers_one <= numbers_two or numbers_two <= numbers_one),
        shared / max(1, len(one)), shared / max(1, len(two)), (length / other + other / length) / 2,
    )  # fmt: skip


def is_number(word: str) -> bool:
    """True where Python 2's `float`, which the released code asks, reads a word as a number, "nan" and "1e5" too."""
    if not word.isascii() or "_" in word:
        return False
    try:
        float(word)
    except ValueError:
        return False
    return True
