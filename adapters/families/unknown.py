"""The error for an unknown encoder, with a suggestion: the name, hub id or folder that was probably meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path

from meltpoint.tasks.core.files import expanded, is_folder

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
    return ValueError(f"Unknown encoder '{word}'.{hint and f' Did you mean {hint}?'} There is: {known}.")


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
