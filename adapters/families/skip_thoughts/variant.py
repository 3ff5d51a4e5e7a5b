"""The variants of Skip-thought vectors: the published models to use, with or without `<eos>`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from meltpoint.tasks.core.files import expanded, is_file

FAMILY = "skipthoughts"
MODELS = {"uni": ("uni",), "bi": ("bi",), "combine": ("uni", "bi")}
"""Name → the models whose vectors are concatenated, in the order of the authors' `encode`."""
COMBINE, EOS = "combine", "eos"
FILE = "variant.txt"
"""Written by Meltpoint beside the published files when it saves an encoder: the encoder's variant."""


@dataclass(frozen=True)
class Variant:
    """The vectors of one model or of both, with or without the end-of-sentence token.

    Attributes:
        name: a key of `MODELS`.
        eos: whether `<eos>` is appended to every text; it was in training, but by the authors' default is not when
            vectors are computed.
    """

    name: str = COMBINE
    eos: bool = False

    @classmethod
    def parse(cls, source: str) -> tuple[Variant, Path]:
        """(variant, absolute folder) of `FOLDER`, `FOLDER#NAME` or `FOLDER#NAME+eos`.

        Raises:
            ValueError: the part after `#` is no variant.
        """
        named, mark, text = source.rpartition("#")
        folder = expanded(named if mark else source).resolve()
        if not mark:
            text = (folder / FILE).read_text(encoding="utf-8").strip() if is_file(folder / FILE) else COMBINE
        name, plus, token = text.partition("+")
        if name not in MODELS or (plus and token != EOS):
            choices = ", ".join(MODELS)
            raise ValueError(f"'skipthoughts:{source}': after # write {choices}, optionally with +eos; not '{text}'.")
        return cls(name, bool(plus)), folder

    def __str__(self) -> str:
        return self.name + f"+{EOS}" * self.eos

    @property
    def models(self) -> tuple[str, ...]:
        """The models that its vectors are computed with."""
        return MODELS[self.name]
