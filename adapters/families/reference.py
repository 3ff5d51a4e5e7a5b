"""Reference of an encoder: its short name, its location, its traits, and the refusal of an unknown one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meltpoint.adapters.data.input_format import SentencePooling
from meltpoint.adapters.families.huggingface import configuration
from meltpoint.tasks.core.files import expanded, is_folder
from meltpoint.tasks.core.task import Kind

NAMED = re.compile(r"(?P<name>[^=:/#\\]*)=(?P<word>.*)", re.DOTALL)
"""A folder may have `=` in its path: what stands before it is a name only where no path or family begins there."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")


def short_name(text: str) -> str:
    """The name by which a sweep knows an encoder: the one before the `=`, or the word itself."""
    found = NAMED.fullmatch(text)
    return found["name"] if found else text


def encoder_word(text: str) -> str:
    """The word that says where the encoder lies, without the name before it."""
    found = NAMED.fullmatch(text)
    return found["word"] if found else text


def check_short_name(text: str, named: list[str]) -> None:
    """Refuse a short name that files cannot have, or that is an encoder's already.

    Args:
        text: `NAME=ENCODER`, or any other word, which is not looked at.
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
        raise ValueError(f"--encoder {text}: '{found['name']}' is an encoder's own name; take another one.")


@dataclass(frozen=True)
class FamilyTraits:
    """The traits that all encoders of a family have, for those whose files lie elsewhere.

    Attributes:
        joins_pairs, has_words: as in `EncoderReference`.
        has_pooling: whether it was trained to give one vector a sentence, and its files say how, as all-MiniLM's do.
        of_transformers: whether transformers builds classification heads on it.
    """

    joins_pairs: bool = True
    has_words: bool = True
    has_pooling: bool = False
    of_transformers: bool = True

    def has_native_head(self, kind: Kind) -> bool:
        """True for the families of transformers; few of them have none, and their files say so."""
        return self.of_transformers


@dataclass(frozen=True, slots=True)
class EncoderReference:
    """A named encoder, resolved and checked but not loaded.

    Attributes:
        word: its name on the command line, with a relative folder made absolute; stable between runs.
        source: the hub id, or an absolute folder.
        revision: the hub's commit or branch; None for a folder, and for the newest commit of a hub id.
        sha256: the expected hash of the weights file; None if it is not checked.
        joins_pairs: whether it can take both sentences of a pair as one input.
        has_words: whether it has a state for each word; if not, it has one vector per sentence, at the first piece.
        has_sentence_state: whether its first piece's state stands for the whole sentence, as BERT's [CLS] does.
        reads_words: whether it takes what lies between white space for words, so that raw text needs a word tokenizer.
        copy_of: the hub id whose files a folder holds; None where that is not known.
        pooling: the pooling that it was trained with, by its folder or its named encoder; of an encoder on the hub that
            is not downloaded yet, `encoders.pooling` says it.
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

    @property
    def has_pooling(self) -> bool:
        """True if it has a pooling of its own; of an encoder on the hub, once `encoders.with_pooling` has read it."""
        return self.pooling is not None

    def has_native_head(self, kind: Kind) -> bool:
        """True if the head `native` serves it: transformers builds a classification head on encoders of its kind.

        Reads at most config.json, without importing transformers, and downloads nothing: an encoder of the hub is taken
        to have one; when it is there and loaded, transformers says so if it has not.
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
        """The encoder's id on the hub, where it is known."""
        return self.copy_of if self.is_folder else self.source

    @property
    def is_folder(self) -> bool:
        """True if the source is a local folder; hub ids are never absolute paths."""
        return Path(self.source).is_absolute()


HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?(@[\w./-]+)?")
"""The form of an id of the Hugging Face hub, `NAME` or `OWNER/NAME`, perhaps with `@REVISION`."""

NEAR, NEAR_ID = 0.8, 0.88
"""The smallest similarity (difflib's ratio) for a suggestion; the higher one is for words with the parts of a hub id.

`bert-bas` (0.94) and `bert_base` (0.89) are misspellings of `bert-base`; `roberta-base` (0.86) is another encoder.
"""


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
    if is_folder(expanded(word)):
        return f"{_family_of(expanded(word))}:{word}"
    cutoff = NEAR_ID if re.search(r"[-_/@]", word) else NEAR
    near = [name for name in named if word and name.startswith(word.lower())]
    near = near or difflib.get_close_matches(word.lower(), named, n=3, cutoff=cutoff)
    if near:
        return " or ".join(near)
    return f"hf:{word}" if HUB_ID.fullmatch(word) else ""


def _family_of(folder: Path) -> str:
    """The family whose files a folder holds; "hf" if it is none of the others."""
    if (folder / "options.json").is_file():
        return "elmo"
    return "skipthoughts" if (folder / "dictionary.txt").is_file() else "hf"
