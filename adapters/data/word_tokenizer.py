"""Word tokenizers for raw texts, and six statistics of a pair's words.

ELMo was pretrained on the One Billion Word Benchmark (Chelba et al. 2013), which was tokenised by Moses' rules: "good."
there becomes the two words "good" and ".", and "don't" becomes "don" and "'t". `moses` applies sacremoses' version of
these rules, which needs no data files. They know English abbreviations ("Mr.", "U.S."), and also split the sentences
inside a text.

`treebank` has the rules of the Penn Treebank (tokenizer script by R. MacIntyre, 1995), as NLTK's `word_tokenize`
applies them, without NLTK and punkt's learned abbreviations: inside a text, a period ends a sentence if a capital
letter follows and the word before is neither an initial nor one of the titles below. Texts that are already tokenised,
as in most data sets, stay unchanged. Nothing is lower-cased.

Kiros et al. 2015 put the statistics next to a pair's sentence vectors ("+ feats"). They are like those of Socher et al.
2011, section 4 (three of numbers and their difference in length), as the released `eval_msrp.py` of Skip-thoughts
defines them, over words of the Penn Treebank. According to that file, a logistic regression on them alone has an
accuracy of about 73.2 on MRPC.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from meltpoint.adapters.data.input_format import WordTokenizer

if TYPE_CHECKING:
    from sacremoses import MosesTokenizer


def default_word_tokenizer(reads_words: bool, tokenised: bool) -> WordTokenizer:
    """The word tokenizer of a cell whose search space names none.

    Args:
        reads_words: whether the encoder splits words at white space (`EncoderReference.reads_words`).
        tokenised: whether the task's texts are tokenised already (`Task.tokenised`).
    """
    return "moses" if reads_words and not tokenised else "whitespace"


def separate_words(text: str, word_tokenizer: WordTokenizer) -> str:
    """A text with a space between its words; `whitespace` leaves it unchanged."""
    if word_tokenizer == "whitespace":
        return text
    # Unescaped: "&" stays "&", as in the benchmark.
    return " ".join(_moses().tokenize(text, escape=False))


@cache
def _moses() -> MosesTokenizer:
    """The tokenizer, cached per process because creating it takes a tenth of a second."""
    from sacremoses import MosesTokenizer  # imported here because its character tables are slow to read

    return MosesTokenizer(lang="en")


TITLES = frozenset({
    "Adm", "Brig", "Capt", "Cmdr", "Co", "Col", "Corp", "Dr", "Gen", "Gov", "Hon", "Inc", "Jr", "Lt", "Ltd", "Maj",
    "Mr", "Mrs", "Ms", "No", "Pfc", "Prof", "Rep", "Reps", "Rev", "Sen", "Sens", "Sgt", "Sr", "St", "etc", "vs",
})  # fmt: skip
"""Abbreviations whose period does not end a sentence, even before a capital letter."""

_QUOTES = ((re.compile(r'(^|[\s(\[{<])"'), r"\1 `` "), (re.compile("\"|''"), " '' "), (re.compile("``"), " `` "))
_STOP = re.compile(r"(?<!\S)(?P<word>\S*?)\.(?P<after>[\])}>'\s]*)(?=\s[`'(\s]*[A-Z]|$)")
_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(\.{3,})", r" \1 "),
        (r"([;@#$%&?!\[\](){}<>])", r" \1 "),
        (r"([:,])(?=\D|$)", r" \1 "),
        (r"--", " -- "),
        (r"(?<=[^\s'])'(?=\s|$)", " ' "),  # before the rules for clitics, because the quote may follow one: don't'
        (r"(?<=[^\s'])('(?:s|S|m|M|d|D|ll|LL|re|RE|ve|VE))(?=\s|$)", r" \1 "),
        (r"(?<=[^\s'])(n't|N'T)(?=\s|$)", r" \1 "),
        (r"(?i)\b(can)(not)\b", r"\1 \2"),
        (r"(?i)\b(gon|wan)(na)\b", r"\1 \2"),
        (r"(?i)\b(got)(ta)\b", r"\1 \2"),
        (r"(?i)\b(gim|lem)(me)\b", r"\1 \2"),
        (r"(?i)(?<!\S)('t)(is|was)\b", r"\1 \2"),
    )
)


def words_of(text: str) -> list[str]:
    """Split a text into words."""
    for pattern, replacement in _QUOTES:
        text = pattern.sub(replacement, text)
    text = _STOP.sub(_end_of_sentence, text)
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text.split()


def _end_of_sentence(match: re.Match[str]) -> str:
    """A word and its period, separated at the end of a sentence, unchanged in an abbreviation."""
    word, after = match["word"], match["after"]
    last = not match.string[match.end() :].strip()
    final = re.split(r"[-/(`']", word)[-1]
    abbreviated = final in TITLES or re.fullmatch(r"(?:\w\.)*\w", final) is not None
    if word.endswith(".") or not word or (abbreviated and not last):
        return match[0]
    return f"{word} . {after}"


STATISTICS = 6
"""The number of values that `pair_statistics` returns."""


def pair_statistics(first: str, second: str) -> tuple[float, ...]:
    """The statistics of a pair of texts; see `of_words`."""
    return of_words(words_of(first), words_of(second))


def of_words(first: Sequence[str], second: Sequence[str]) -> tuple[float, ...]:
    """The statistics of a pair of word lists.

    Returns:
        1 if the sets of numbers are equal; 1 if they are equal and not empty; 1 if one contains the other; the share of
        the first sentence's distinct words that the second has, and the reverse; the mean of the two ratios of their
        lengths. The released code divides by zero for a sentence without words: here its share is 0, and the ratio of
        lengths counts it as one word.
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
    """True if Python 2's `float`, as in the released code, reads a word as a number, including "nan" and "1e5"."""
    if not word.isascii() or "_" in word:
        return False
    try:
        float(word)
    except ValueError:
        return False
    return True
