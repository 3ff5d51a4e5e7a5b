"""The encoders: one file a name; any other Hugging Face encoder goes by `hf:`, other kinds by their family's word.

A named encoder's file exports `reference(kind)`, which says where its weights lie for a kind of task, and `SUMMARY`.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

from meltpoint.adapters.families.huggingface import sizes
from meltpoint.adapters.families.huggingface.files import check_folder
from meltpoint.adapters.families.huggingface.files import fingerprint as files_fingerprint
from meltpoint.adapters.families.huggingface.location import locate
from meltpoint.adapters.families.reference import EncoderReference
from meltpoint.adapters.families.unknown import HUB_ID, unknown_encoder
from meltpoint.tasks.core import registry
from meltpoint.tasks.core.task import Kind

if TYPE_CHECKING:
    from meltpoint.adapters.encoder import Encoder

__all__ = [
    "FAMILIES", "EncoderReference", "check", "fingerprint", "load", "longest_input", "names", "resolve", "state_size",
    "summary", "weights_without_embeddings",
]  # fmt: skip

FAMILIES = {"elmo": "meltpoint.adapters.families.elmo", "skipthoughts": "meltpoint.adapters.families.skip_thoughts"}
"""Word before the colon → the package that exports `reference(source, kind)`, and `load`, `fingerprint`, `state_size`,
`longest_input` and `weights_without_embeddings` of a reference."""


def names() -> list[str]:
    """The named encoders, as the command line writes them."""
    return [name.replace("_", "-") for name in registry.names(sys.modules[__name__])]


def summary(word: str) -> str:
    """One line about a named encoder, for `meltpoint list encoders`."""
    return cast(str, _module(word).SUMMARY)


def resolve(word: str, kind: Kind) -> EncoderReference:
    """Check an encoder's word and say where its weights lie, without reading them.

    Args:
        word: a name, `hf:ID`, `hf:ID@REVISION`, `hf:FOLDER`, `elmo:FOLDER` or `skipthoughts:FOLDER`.
        kind: the kind of task it is for; `bert-base` is cased for sequence labelling.

    Raises:
        ValueError: an unknown name, or a folder without an encoder in it; one line with the remedy.
    """
    family, _, source = word.partition(":")
    if family == "hf":
        return _resolve_hugging_face(source)
    if family in FAMILIES:
        return cast(EncoderReference, _family(family).reference(source, kind))
    return cast(EncoderReference, _module(word).reference(kind))


def check(reference: EncoderReference) -> None:
    """Refuse an encoder that could not be loaded, downloaded first where need be.

    Weights, tokenizer and configuration of a `hf:` encoder are read and compared, once a process. Those of a name are
    pinned, so that looking at its files is enough; of other families the files' headers are read.

    Raises:
        ValueError: the files cannot be had, hold no encoder, or do not belong together; one line that says what it is.
    """
    if reference.family in FAMILIES:
        _family(reference.family).weights_without_embeddings(reference)
        return
    folder, _ = locate(reference)
    if ":" in reference.word:
        from meltpoint.adapters.families.huggingface import pretrained  # transformers takes seconds to import

        pretrained.check(folder, reference.word)


def load(reference: EncoderReference) -> Encoder:
    """Load an encoder's weights and tokenizer, in float32, on the CPU.

    Raises:
        ValueError: the files cannot be had, are not the expected ones, or hold no encoder; one line with the remedy.
    """
    if reference.family in FAMILIES:
        return cast("Encoder", _family(reference.family).load(reference))
    from meltpoint.adapters.families.huggingface import (
        encoder as huggingface,  # transformers takes seconds to import: only who loads pays for it
    )

    return huggingface.load(reference)


def fingerprint(reference: EncoderReference) -> str:
    """sha256 (hex, 16 characters) of all files that an encoder is loaded from, downloaded first where need be.

    Raises:
        ValueError: the files cannot be had, or are not the expected ones; one line with the remedy.
    """
    if reference.family in FAMILIES:
        return cast(str, _family(reference.family).fingerprint(reference))
    return files_fingerprint(reference, locate(reference)[0])


def weights_without_embeddings(reference: EncoderReference) -> int:
    """How many weights a forward pass multiplies by, look-up tables not counted."""
    if reference.family in FAMILIES:
        return cast(int, _family(reference.family).weights_without_embeddings(reference))
    return sizes.weights_without_embeddings(locate(reference)[0])


def state_size(reference: EncoderReference) -> int:
    """How many numbers a state has, without loading the encoder.

    Raises:
        ValueError: its configuration does not say.
    """
    if reference.family in FAMILIES:
        return cast(int, _family(reference.family).state_size(reference))
    return sizes.state_size(locate(reference)[0])


def longest_input(reference: EncoderReference) -> int | None:
    """How many pieces an encoder takes, without loading it; None where its files do not say."""
    if reference.family in FAMILIES:
        return cast(int, _family(reference.family).longest_input(reference))
    return sizes.longest_input(locate(reference)[0])


def _family(family: str) -> ModuleType:
    """A family's package."""
    return importlib.import_module(FAMILIES[family])


def _module(word: str) -> ModuleType:
    """The file of a named encoder."""
    if word not in names():
        raise unknown_encoder(word, names(), ("hf", *FAMILIES))
    return importlib.import_module(f"{__name__}.{word.replace('-', '_')}")


def _resolve_hugging_face(source: str) -> EncoderReference:
    """`hf:`: a folder where there is one or where it can be nothing else; the hub's id otherwise."""
    if not source.strip():
        raise ValueError("'hf:' needs a hub id or a folder behind it, as in hf:google-bert/bert-base-uncased.")
    folder = Path(source).expanduser()
    if folder.is_dir() or source.startswith((".", "~")) or not HUB_ID.fullmatch(source):
        absolute = check_folder(folder.resolve())
        return EncoderReference(f"hf:{absolute}", str(absolute))
    identifier, _, revision = source.partition("@")
    return EncoderReference(f"hf:{source}", identifier, revision or None)
