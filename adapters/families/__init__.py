"""Families of pretrained encoders, and the reference of an encoder: its short name, location and traits."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meltpoint.adapters.data.input_format import Prompts, SentencePooling
from meltpoint.adapters.families.huggingface import configuration
from meltpoint.tasks.core.files import expanded, is_folder
from meltpoint.tasks.core.task import Kind

NAMED = re.compile(r"(?P<name>[^=:/#\\]*)=(?P<word>.*)", re.DOTALL)
"""A folder may have `=` in its path; the text before `=` is a name only if no path or family begins there."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")


def short_name(text: str) -> str:
    """An encoder's name in a sweep: the text before the `=`, or the whole word."""
    found = NAMED.fullmatch(text)
    return found["name"] if found else text


def encoder_word(text: str) -> str:
    """The encoder name that gives its location, without the short name before it."""
    found = NAMED.fullmatch(text)
    return found["word"] if found else text


def check_short_name(text: str, named: list[str]) -> None:
    """Refuse a short name that is not valid in file names, or that an encoder already has.

    Args:
        text: `NAME=ENCODER`; other words are not checked.
        named: the named encoders.

    Raises:
        ValueError: one line with the remedy.
    """
    found = NAMED.fullmatch(text)
    if found is None:
        return
    if not NAME.fullmatch(found["name"]):
        raise ValueError(
            f"--encoder {text}: the name before '=' takes letters, digits, '_' and '-', at most 40 of them, as in "
            "l3=hf:FOLDER."
        )
    if found["name"] in named:
        raise ValueError(f"--encoder {text}: '{found['name']}' is the name of an encoder; choose another.")


@dataclass(frozen=True, slots=True)
class EncoderReference:
    """A named encoder, resolved and checked but not loaded.

    Attributes:
        word: its name on the command line, with a relative folder made absolute; stable between runs.
        source: the hub id, or an absolute folder.
        revision: the hub's commit, branch or tag; None for a folder, and for the newest commit of a hub id.
        sha256: the expected hash of the weights file; None if it is not checked.
        joins_pairs: whether it can take both sentences of a pair as one input.
        has_words: whether it has a state for each word; if not, it has one vector per sentence, at the first piece.
        has_sentence_state: whether its first piece's state represents the whole sentence, as BERT's [CLS] does.
        reads_words: whether it splits words at white space, so that raw text needs a word tokenizer.
        copy_of: the hub id whose files a folder holds; None if unknown.
        pooling: the pooling that it was trained with, according to its folder or its named encoder; for a hub encoder
            that is not downloaded yet, use `encoders.pooling`.
        prompts: the prefixes of a named encoder whose files declare none, as its makers' model card describes them.
    """

    word: str
    source: str
    revision: str | None = None
    sha256: str | None = None
    joins_pairs: bool = True
    has_words: bool = True
    has_sentence_state: bool = True
    reads_words: bool = False
    pooling: SentencePooling | None = None
    copy_of: str | None = None
    prompts: Prompts | None = None

    @property
    def public_word(self) -> str:
        """The word without the folders of this machine, for notes that are published with a model."""
        return f"{self.family}:{Path(self.source).name}" if self.is_folder else self.word

    @property
    def has_pooling(self) -> bool:
        """True if it ships its own pooling; for a hub encoder, only after `encoders.with_pooling` has read it."""
        return self.pooling is not None

    def has_native_head(self, kind: Kind) -> bool:
        """True if the head `native` serves it: transformers builds a classification head on encoders of its kind.

        Reads at most config.json, without importing transformers, and downloads nothing: a hub encoder is assumed to
        have such a head; if it has none, loading it fails in transformers.
        """
        if self.family != "hf":
            return False
        return not self.is_folder or configuration.has_native_head(Path(self.source), kind)

    @property
    def family(self) -> str:
        """The family, which determines the files' format: the prefix before the colon; "hf" for a plain name."""
        return self.word.partition(":")[0] if ":" in self.word else "hf"

    @property
    def hub_id(self) -> str | None:
        """The encoder's id on the hub, if known."""
        return self.copy_of if self.is_folder else self.source

    @property
    def is_folder(self) -> bool:
        """True if the source is a local folder; hub ids are never absolute paths."""
        return Path(self.source).is_absolute()


HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?(@[\w./-]+)?")
"""The form of a Hugging Face hub id: `NAME` or `OWNER/NAME`, optionally with `@REVISION`."""

NEAR = 0.88
"""The smallest similarity (difflib's ratio) for a suggestion: `bert_base` (0.89) is a misspelling of `bert-base`;
`roberta-base` (0.86) is another encoder."""


def unknown_encoder(word: str, named: Sequence[str], families: Sequence[str]) -> ValueError:
    """The error for a word that is neither a named encoder nor begins with a family's prefix.

    Args:
        word: the user's input.
        named: the named encoders.
        families: the prefixes of all other encoders: "hf", "elmo", ….
    """
    hint = _hint(word, named, families)
    known = ", ".join(sorted([*named, "hf:ID", *(f"{family}:FOLDER" for family in families)]))
    return ValueError(f"Unknown encoder '{word}'.{hint and f' Did you mean {hint}?'} Choose from: {known}.")


def _hint(word: str, named: Sequence[str], families: Sequence[str]) -> str:
    """The suggestion; "" if nothing is similar."""
    family, colon, source = word.partition(":")
    if colon:
        near = difflib.get_close_matches(family.lower(), families, n=1)
        return f"{near[0]}:{source}" if near else ""
    near = difflib.get_close_matches(word.lower(), named, n=3, cutoff=NEAR)
    if near and not is_folder(expanded(word)):
        return " or ".join(near)
    return f"hf:{word}" if HUB_ID.fullmatch(word) or is_folder(expanded(word)) else ""
