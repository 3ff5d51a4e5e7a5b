"""Which of the published vectors an encoder's word asks for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FAMILY = "skipthoughts"
MODELS = {"uni": ("uni",), "bi": ("bi",), "combine": ("uni", "bi")}
"""Name → the models whose vectors are put one after the other, in the order of the authors' `encode`."""
COMBINE, EOS = "combine", "eos"
FILE = "variant.txt"
"""Beside the published files, in folders that Meltpoint wrote: the variant that they were written from."""


@dataclass(frozen=True)
class Variant:
    """The vectors of one model or of both, with or without the end-of-sentence token.

    Attributes:
        name: a key of `MODELS`.
        eos: whether every text ends with the token `<eos>`, which it did in training and, by the authors' default,
            does not when vectors are computed.
    """

    name: str = COMBINE
    eos: bool = False

    @classmethod
    def parse(cls, source: str) -> tuple[Variant, Path]:
        """(variant, absolute folder) of `FOLDER`, `FOLDER#NAME` or `FOLDER#NAME+eos`.

        Raises:
            ValueError: what stands behind `#` is no variant.
        """
        named, mark, said = source.rpartition("#")
        folder = Path(named if mark else source).expanduser().resolve()
        if not mark:
            said = (folder / FILE).read_text(encoding="utf-8").strip() if (folder / FILE).is_file() else COMBINE
        name, plus, token = said.partition("+")
        if name not in MODELS or (plus and token != EOS):
            choices = ", ".join(MODELS)
            raise ValueError(f"'skipthoughts:{source}': behind # stands {choices}, and perhaps +eos; not '{said}'.")
        return cls(name, bool(plus)), folder

    def __str__(self) -> str:
        return self.name + f"+{EOS}" * self.eos

    @property
    def models(self) -> tuple[str, ...]:
        """The models whose vectors it has."""
        return MODELS[self.name]
