"""The pooling and the prefixes of texts that sentence encoders (all-MiniLM, E5, BGE, GTE) were trained with.

Imports no torch: an encoder is resolved and listed in processes that load none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meltpoint.adapters.data.pairing import Prefix

PoolingKind = Literal["mean", "cls", "max"]


@dataclass(frozen=True, slots=True)
class SentencePooling:
    """The pooling that an encoder was trained with: the states of a text, special tokens included → one vector.

    Attributes:
        kind: the mean over all pieces, their maximum, or the first piece's state.
        normalise: whether the vector is scaled to length 1.
        longest: the pieces, special tokens included, at which its makers cut a text; None where they name no such.
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
        default: the name of the one that its makers put before every text; "" if there is none.
    """

    named: tuple[tuple[str, str], ...] = ()
    default: str = ""

    def text(self, prefix: Prefix) -> str:
        """The text that is put before each text.

        Args:
            prefix: "none", "query" or "passage", which sentence-transformers also calls "document" (`query: ` and
                `passage: ` where the encoder names no other), or "own": the encoder's default; without one its query
                prefix if passages have one too, as E5's makers advise for tasks other than retrieval; else nothing,
                since texts without a prefix were trained on as well.
        """
        known = dict(self.named)
        if prefix == "none":
            return ""
        if prefix != "own":
            named = known.get(prefix) or (known.get("document") if prefix == "passage" else "")
            return named or f"{prefix}: "
        if self.default:
            return known.get(self.default, "")
        return known.get("query", "") if known.get("passage") else ""
