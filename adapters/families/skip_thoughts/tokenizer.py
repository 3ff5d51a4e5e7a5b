"""Text → words, as the Penn Treebank writes them, and words → lines of the dictionary.

The authors cut a text into sentences with NLTK's punkt, and those into words with NLTK's Treebank rules. The rules here
are the Treebank's too (its tokenizer script by R. MacIntyre, 1995), but neither NLTK nor punkt's learned abbreviations
are needed: inside a text a period ends a sentence where a capital follows and the word before is neither an initial nor
one of the titles below. Texts that are words already, as those of most data sets, stay what they are. Nothing is
lower-cased: the dictionary tells cases apart, and so does the authors' look-up.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from meltpoint.adapters.data.tokenizer import Span
from meltpoint.adapters.families.skip_thoughts.variant import EOS

UNKNOWN, END = "UNK", f"<{EOS}>"
UNBOUNDED = 100_000
"""Pieces: the recurrence reads texts of any length; a setting's `max_pieces` is the limit."""

TITLES = frozenset({
    "Adm", "Brig", "Capt", "Cmdr", "Co", "Col", "Corp", "Dr", "Gen", "Gov", "Hon", "Inc", "Jr", "Lt", "Ltd", "Maj",
    "Mr", "Mrs", "Ms", "No", "Pfc", "Prof", "Rep", "Reps", "Rev", "Sen", "Sens", "Sgt", "Sr", "St", "etc", "vs",
})  # fmt: skip
"""Words whose period is their own, also before a capital."""

_QUOTES = ((re.compile(r'(^|[\s(\[{<])"'), r"\1 `` "), (re.compile("\"|''"), " '' "), (re.compile("``"), " `` "))
_STOP = re.compile(r"(?<!\S)(?P<word>\S*?)\.(?P<after>[\])}>'\s]*)(?=\s[`'(\s]*[A-Z]|$)")
_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(\.{3,})", r" \1 "),
        (r"([;@#$%&?!\[\](){}<>])", r" \1 "),
        (r"([:,])(?=\D|$)", r" \1 "),
        (r"--", " -- "),
        (r"(?<=[^\s'])'(?=\s|$)", " ' "),  # before what it may follow: don't'
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
    """The words of a text."""
    for pattern, replacement in _QUOTES:
        text = pattern.sub(replacement, text)
    text = _STOP.sub(_end_of_sentence, text)
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text.split()


def _end_of_sentence(found: re.Match[str]) -> str:
    """A word and its period: apart where the sentence ends, as they are where it is an abbreviation."""
    word, after = found["word"], found["after"]
    last = not found.string[found.end() :].strip()
    final = re.split(r"[-/(`']", word)[-1]
    abbreviated = final in TITLES or re.fullmatch(r"(?:\w\.)*\w", final) is not None
    if word.endswith(".") or not word or (abbreviated and not last):
        return found[0]
    return f"{word} . {after}"


class WordTokenizer:
    """Meltpoint's `Tokenizer` over a dictionary of whole words: a piece is a word's line.

    Args:
        words: a line each; of a word that stands twice the last line counts, as in the authors' code.
        eos: whether every text ends with `<eos>`.

    Raises:
        ValueError: `UNK` or `<eos>` is not among the words.
    """

    joins_pairs = False
    max_pieces = UNBOUNDED

    def __init__(self, words: Sequence[str], eos: bool) -> None:
        self.words = words
        self._lines = {word: number for number, word in enumerate(words)}
        absent = [word for word in (UNKNOWN, END) if word not in self._lines]
        if absent:
            raise ValueError(f"has no {absent[0]}; download it again")
        self._unknown, self._end = self._lines[UNKNOWN], self._lines[END]
        self._tail = [self._end] if eos else []
        self.pad_piece = self._end

    def sentence(self, text: str, limit: int) -> tuple[list[int], list[int], bool]:
        """(pieces, [], whether words were cut) of one sentence of at most `limit` words, `<eos>` counted.

        A text without words is `<eos>` alone, as an empty sentence was in training; the authors' code has no answer.
        """
        lines = [self._lines.get(word, self._unknown) for word in words_of(text)]
        room = limit - len(self._tail)
        return lines[:room] + self._tail or [self._end], [], len(lines) > room

    def pair(self, first: str, second: str, limit: int) -> tuple[list[int], list[int], tuple[Span, Span], bool]:
        """Nothing: the encoder reads one sentence at a time."""
        raise AssertionError("Skip-thoughts read one sentence at a time")

    def word(self, word: str) -> list[int]:
        """The line of one word."""
        return [self._lines.get(word, self._unknown)]

    def frame(self, pieces: Sequence[int]) -> tuple[list[int], list[int], int]:
        """(the words, with `<eos>` where it is asked for, [], 0)."""
        return [*pieces, *self._tail], [], 0
