"""Where an encoder's weights come from, before any of them is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class EncoderReference:
    """An encoder as the command line names it, resolved and checked, but not loaded.

    Attributes:
        word: its word on the command line, with a relative folder made absolute; stable between runs.
        source: the hub's id, or an absolute folder.
        revision: the hub's commit or branch; None for a folder, and for a hub id whose newest commit is meant.
        sha256: what the weights file must hash to, or None where anything is taken.
        joins_pairs: whether it reads both sentences of a pair as one input.
        has_words: whether it has a state for each word; else one vector a sentence, at its first piece.
    """

    word: str
    source: str
    revision: str | None = None
    sha256: str | None = None
    joins_pairs: bool = True
    has_words: bool = True

    @property
    def family(self) -> str:
        """Which layout its files have: what stands before the word's colon; "hf", the hub's, for a name."""
        return self.word.partition(":")[0] if ":" in self.word else "hf"

    @property
    def is_folder(self) -> bool:
        """Whether the weights lie in a folder of this machine; hub ids are never absolute paths."""
        return Path(self.source).is_absolute()
