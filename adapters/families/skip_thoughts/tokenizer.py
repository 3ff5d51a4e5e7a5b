"""Penn Treebank tokenisation of texts into words, and look-up of words as lines of the dictionary.

The authors split a text into sentences with NLTK's punkt, and sentences into words with NLTK's Treebank tokenizer. The
rules here are those of the Treebank (tokenizer script by R. MacIntyre, 1995), without NLTK and punkt's learned
abbreviations: inside a text, a period ends a sentence if a capital letter follows and the word before is neither an
initial nor one of the titles below. Texts that are tokenised already, as in most data sets, stay unchanged. Nothing is
lower-cased, since the dictionary and the authors' look-up are case-sensitive.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from meltpoint.adapters.data.sentence_pooling import Prompts
from meltpoint.adapters.data.tokenizer import Span
from meltpoint.adapters.families.skip_thoughts.variant import EOS

UNKNOWN, END = "UNK", f"<{EOS}>"
UNBOUNDED = 100_000
"""Longest input in pieces: a GRU can read texts of any length, so that only a setting's `max_pieces` limits them."""

TITLES = frozenset({
    "Adm", "Brig", "Capt", "Cmdr", "Co", "Col", "Corp", "Dr", "Gen", "Gov", "Hon", "Inc", "Jr", "Lt", "Ltd", "Maj",
    "Mr", "Mrs", "Ms", "No", "Pfc", "Prof", "Rep", "Reps", "Rev", "Sen", "Sens", "Sgt", "Sr", "St", "etc", "vs",
})  # fmt: skip
"""Abbreviations whose period does not end a sentence, also before a capital letter."""

_QUOTES = ((re.compile(r'(^|[\s(\[{<])"'), r"\1 `` "), (re.compile("\"|''"), " '' "), (re.compile("``"), " `` "))
_STOP = re.compile(r"(?<!\S)(?P<word>\S*?)\.(?P<after>[\])}>'\s]*)(?=\s[`'(\s]*[A-Z]|$)")
_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(\.{3,})", r" \1 "),
        (r"([;@#$%&?!\[\](){}<>])", r" \1 "),
        (r"([:,])(?=\D|$)", r" \1 "),
        (r"--", " -- "),
        (r"(?<=[^\s'])'(?=\s|$)", " ' "),  # before the rules for clitics, which it may follow: don't'
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


class SkipThoughtsTokenizer:
    """A `Tokenizer` with a dictionary of whole words: a word's piece id is its line number.

    Args:
        words: the dictionary's lines; for a repeated word the last line counts, as in the authors' code.
        eos: whether `<eos>` is appended to every text.

    Raises:
        ValueError: `UNK` or `<eos>` is not among the words.
    """

    joins_pairs = False
    prompts = Prompts()
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

    def sentence(self, text: str, limit: int) -> tuple[list[int], list[int], int]:
        """(pieces, [], number of words cut) of one sentence of at most `limit` words, including `<eos>`.

        A text without words is `<eos>` alone, as an empty sentence was in training; the authors' code cannot encode it.
        """
        lines = [self._lines.get(word, self._unknown) for word in words_of(text)]
        room = limit - len(self._tail)
        return lines[:room] + self._tail or [self._end], [], max(0, len(lines) - room)

    def pair(self, first: str, second: str, limit: int) -> tuple[list[int], list[int], tuple[Span, Span], int]:
        """Never called: `joins_pairs` is false, so that the sentences of a pair are encoded separately."""
        raise AssertionError("Skip-thoughts read one sentence at a time")

    def word(self, word: str) -> list[int]:
        """The line number of one word."""
        return [self._lines.get(word, self._unknown)]

    def frame(self, pieces: Sequence[int]) -> tuple[list[int], list[int], int]:
        """(the pieces, followed by `<eos>` if the variant has it, [], 0)."""
        return [*pieces, *self._tail], [], 0
