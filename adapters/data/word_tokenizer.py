"""Word tokenizers: raw text → words separated by spaces, for encoders that read words.

ELMo was pretrained on the One Billion Word Benchmark (Chelba et al. 2013), which was tokenised by Moses' rules: "good."
there is the two words "good" and ".", and "don't" is "don" and "'t". `moses` is those rules in sacremoses, which needs
no data files. They know English abbreviations ("Mr.", "U.S."), and also split the sentences inside a text.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from meltpoint.adapters.data.pairing import WordTokenizer

if TYPE_CHECKING:
    from sacremoses import MosesTokenizer


def default_word_tokenizer(reads_words: bool, tokenised: bool) -> WordTokenizer:
    """The word tokenizer of a cell whose search space names none.

    Args:
        reads_words: whether the encoder takes what lies between white space for words (`EncoderReference.reads_words`).
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
    """The tokenizer, once a process: making it takes a tenth of a second."""
    from sacremoses import MosesTokenizer  # imported here because its tables of characters are slow to read

    return MosesTokenizer(lang="en")
