"""`EncoderReference`: the resolved location of an encoder's weights, before any of them is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from meltpoint.adapters.data.sentence_pooling import SentencePooling
from meltpoint.adapters.families.huggingface import supported
from meltpoint.tasks.core.task import Kind


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
        return not self.is_folder or supported.has_native_head(Path(self.source), kind)

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
