"""The form in which an encoder gets texts: words, joint or separate pairs, document context, prefixes, pooling.

The module also has the tokenizers' interface, the word tokenizers for raw texts, and statistics of a pair's words. It
imports no torch: processes that load no encoder check settings, and resolve and list encoders.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal, Protocol, cast

from meltpoint.adapters.hyperparameters import Parameter, Setting

if TYPE_CHECKING:
    from sacremoses import MosesTokenizer


Pairing = Literal["auto", "joint", "separate"]
Context = Literal["sentence", "document"]
WordTokenizer = Literal["whitespace", "moses"]
Prefix = Literal["own", "none", "query", "passage"]

PAIRING = Parameter(
    "pairing", "auto", "both sentences of a pair in one input, or each in its own; auto: jointly if the encoder can",
    choices=("auto", "joint", "separate"), shapes=True,
)  # fmt: skip
"""Peters, Ruder & Smith 2019, table 4: joint against separate encoding of pairs by a frozen BERT."""

CONTEXT = Parameter(
    "context", "sentence", "a sentence to label alone, or with its document's text around it, up to max_pieces",
    choices=("sentence", "document"), shapes=True,
)  # fmt: skip
"""Peters, Ruder & Smith 2019, appendix A.1: document context for the features of a frozen BERT in NER."""

WORD_TOKENIZER = Parameter(
    "word_tokenizer", "whitespace", "words of texts: moses splits off punctuation, whitespace changes nothing",
    choices=("whitespace", "moses"), shapes=True,
)  # fmt: skip
"""Peters et al. 2018: ELMo's training text is tokenised, by Moses' rules (`default_word_tokenizer`)."""

PREFIX = Parameter(
    "prefix", "own", "the prefix of each text: the encoder's own prefix, none, or its query or passage prefix",
    choices=("own", "none", "query", "passage"), shapes=True,
)  # fmt: skip
"""Wang et al. 2022 (E5), section 4: texts begin with "query: " or "passage: ", as in training."""

POOLING_KIND, OWN_POOLING = "pooling.kind", "encoder"
"""The hyperparameter and its value that select the sentence vector that the encoder was trained to give."""

FEATS = "sentence_vectors.feats"
"""The hyperparameter that adds a pair's word statistics to its vectors (`pair_statistics`)."""

INPUT_FORMAT = (PAIRING, CONTEXT, WORD_TOKENIZER, PREFIX)
"""A complete setting names these only if they differ from the defaults, because most tasks leave no choice."""


@dataclass(frozen=True)
class InputFormat:
    """The form in which an encoder gets a task's examples.

    Attributes:
        pairing: both sentences of a pair in one input ("joint"), each in its own ("separate"), or "auto": jointly
            if the encoder supports it (ELMo and Skip-thoughts do not).
        context: a sentence to label alone ("sentence"), or with the surrounding text of its document ("document").
        word_tokenizer: the step before the encoder's own tokenizer: "moses", or nothing ("whitespace").
        prefix: the prefix of each text that is a separate input (`Prompts.text`); a jointly encoded pair gets none.
        statistics: whether a separately encoded pair comes with statistics of its words (`pair_statistics`).
    """

    pairing: Pairing = "auto"
    context: Context = "sentence"
    word_tokenizer: WordTokenizer = "whitespace"
    prefix: Prefix = "own"
    statistics: bool = False


def is_separate(pairing: Pairing, can_join: bool, pooling_kind: str = "") -> bool:
    """True if each sentence of a pair is a separate input.

    Args:
        pairing: a setting's `pairing`.
        can_join: whether the two can be encoded together.
        pooling_kind: a setting's `pooling.kind`; an encoder's own pooling applies to single sentences.
    """
    return pairing == "separate" or (pairing == "auto" and (not can_join or pooling_kind == OWN_POOLING))


def input_format_of(setting: Setting, joint_pairs: bool) -> InputFormat:
    """The input format of a setting, with the defaults for hyperparameters that it does not name.

    Args:
        joint_pairs: whether the head supports jointly encoded pairs (`Head.joint_pairs`). If not, "auto" becomes
            "separate"; the same holds for an encoder's own pooling, which applies to single sentences.
    """
    pairing = cast(Pairing, PAIRING.check(setting.get(PAIRING.name, PAIRING.default)))
    if pairing == "auto" and is_separate(pairing, joint_pairs, str(setting.get(POOLING_KIND, ""))):
        pairing = "separate"
    context = CONTEXT.check(setting.get(CONTEXT.name, CONTEXT.default))
    words = WORD_TOKENIZER.check(setting.get(WORD_TOKENIZER.name, WORD_TOKENIZER.default))
    prefix = PREFIX.check(setting.get(PREFIX.name, PREFIX.default))
    return InputFormat(
        pairing, cast(Context, context), cast(WordTokenizer, words), cast(Prefix, prefix), bool(setting.get(FEATS))
    )


PoolingKind = Literal["mean", "cls", "max"]


@dataclass(frozen=True, slots=True)
class SentencePooling:
    """The pooling that an encoder was trained with: the states of a text, special tokens included → one vector.

    Attributes:
        kind: the mean over all pieces, their maximum, or the first piece's state.
        normalise: whether the vector is scaled to length 1.
        longest: the length in pieces, special tokens included, at which its makers cut a text; None if they name none.
    """

    kind: PoolingKind
    normalise: bool = False
    longest: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}, normalised" if self.normalise else self.kind


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prefixes that an encoder was trained with.

    Attributes:
        named: (name, prefix) of each, such as ("query", "query: ").
        default: the name of the prefix that its makers put before every text; "" if there is none.
    """

    named: tuple[tuple[str, str], ...] = ()
    default: str = ""

    def text(self, prefix: Prefix) -> str:
        """The prefix to put before each text.

        Args:
            prefix: "none", "query", "passage" or "own". sentence-transformers also calls "passage" "document". Without
                named prefixes, "query" and "passage" are `query: ` and `passage: `. "own" is the encoder's default;
                without a default it is the query prefix if passages also have one, as E5's makers advise for tasks
                other than retrieval, and otherwise nothing, because training also used texts without a prefix.
        """
        known = dict(self.named)
        if prefix == "none":
            return ""
        if prefix != "own":
            named = known.get(prefix) or (known.get("document") if prefix == "passage" else "")
            return named or f"{prefix}: "
        if self.default:
            return known.get(self.default, "")
        return known.get("query", "") if known.get("passage") or known.get("document") else ""


Span = tuple[int, int]
"""(start, stop) of consecutive pieces."""


class Tokenizer(Protocol):
    """Text → subword token ids ("pieces"), with the special tokens that the encoder expects.

    Attributes:
        pad_piece: the piece id of padded positions.
        max_pieces: the longest input of its encoder, special tokens included.
        joins_pairs: whether its encoder can take both sentences of a pair as one input.
        prompts: the prefixes that its encoder was trained with.
    """

    pad_piece: int
    max_pieces: int
    joins_pairs: bool
    prompts: Prompts

    def sentence(self, text: str, limit: int) -> tuple[list[int], list[int], int]:
        """(pieces, segments or [], number of pieces cut) of one sentence of at most `limit` pieces."""

    def pair(self, first: str, second: str, limit: int) -> tuple[list[int], list[int], tuple[Span, Span], int]:
        """(pieces, segments or [], each sentence's span, number of pieces cut) of a pair, encoded jointly.

        The longer sentence is truncated first.
        """

    def word(self, word: str) -> list[int]:
        """The pieces of one word in the middle of a sentence, without special tokens; never empty."""

    def frame(self, pieces: Sequence[int]) -> tuple[list[int], list[int], int]:
        """(pieces with special tokens, segments or [], number of special tokens before the first piece)."""


# Words of raw texts.
#
# ELMo was pretrained on the One Billion Word Benchmark (Chelba et al. 2013), which was tokenised by Moses' rules:
# "good." there becomes the two words "good" and ".", and "don't" becomes "don" and "'t". `moses` applies sacremoses'
# version of these rules, which needs no data files. They know English abbreviations ("Mr.", "U.S."), and also split
# the sentences inside a text.
#
# `treebank` has the rules of the Penn Treebank (tokenizer script by R. MacIntyre, 1995), as NLTK's `word_tokenize`
# applies them, without NLTK and punkt's learned abbreviations: inside a text, a period ends a sentence if a capital
# letter follows and the word before is neither an initial nor one of the titles below. Texts that are already
# tokenised, as in most data sets, stay unchanged. Nothing is lower-cased.


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
