"""The registry of encoders: one file per named encoder; others are named `hf:…` or by their family's prefix.

A named encoder's file exports `SUMMARY` and `REFERENCE`, the location of its weights; or, if the location depends on
the kind of task, a function `reference(kind)`. `NAME@REVISION` is its files at another revision of the hub.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, cast

from meltpoint.adapters.data.input_format import Prompts, SentencePooling, Tokenizer
from meltpoint.adapters.families import HUB_ID, check_short_name, encoder_word, unknown_encoder
from meltpoint.adapters.families import EncoderReference as EncoderReference
from meltpoint.adapters.families.huggingface import configuration, files
from meltpoint.adapters.families.huggingface.files import locate
from meltpoint.tasks.core import kinds, registry
from meltpoint.tasks.core.files import exists, expanded
from meltpoint.tasks.core.task import Kind

if TYPE_CHECKING:
    from meltpoint.adapters.encoder import Encoder
    from meltpoint.adapters.families.huggingface.pretrained import TransformersHead

FAMILIES = {"elmo": "meltpoint.adapters.families.elmo", "skipthoughts": "meltpoint.adapters.families.skip_thoughts"}
"""Prefix before the colon → the package that exports `TRAITS`, `reference(source, kind)`, and, for a reference, `load`,
`fingerprint`, `load_tokenizer`, `state_size` and `weights_without_embeddings`."""


TRANSFORMERS = EncoderReference("hf:", "")
"""The traits of transformers' encoders."""


def names() -> list[str]:
    """The named encoders, as written on the command line."""
    return [name.replace("_", "-") for name in registry.names(sys.modules[__name__])]


def summary(word: str) -> str:
    """One line about a named encoder, for `meltpoint list encoders`."""
    return cast(str, _module(word).SUMMARY)


def resolve(word: str, kind: Kind) -> EncoderReference:
    """Resolve an encoder's name to the location of its weights, without reading them.

    Args:
        word: a name, `NAME@REVISION`, `hf:ID`, `hf:ID@REVISION`, `hf:FOLDER`, `elmo:FOLDER` or `skipthoughts:FOLDER`,
            optionally after a short name (`families`), which the reference drops.
        kind: the kind of task that it is for; `bert-base` is cased for sequence labelling.

    Raises:
        ValueError: an unknown name, or a folder without an encoder in it; one line with the remedy.
    """
    check_short_name(word, names())
    word = encoder_word(word)
    family, _, source = word.partition(":")
    if family == "hf":
        return _resolve_hugging_face(source)
    if family in FAMILIES:
        return cast(EncoderReference, _family(family).reference(source, kind))
    return _named(word, kind)


def traits(word: str) -> EncoderReference:
    """A reference with the traits of an encoder, from its name alone, since its files may be on another machine."""
    family, colon, _ = encoder_word(word).partition(":")
    if family in FAMILIES:
        return cast(EncoderReference, _family(family).TRAITS)
    return TRANSFORMERS if colon else resolve(word, "sentence_classification")


def check(reference: EncoderReference) -> None:
    """Check that an encoder can be loaded; it is downloaded first if necessary.

    For `hf:…` and `NAME@REVISION`, weights, tokenizer and configuration are read and compared, once per process. A
    named encoder is pinned to a revision, so its files are only checked for presence and completeness. For other
    families, the files' headers are read.

    Raises:
        ValueError: the files are not available, hold no encoder, or do not belong together; one line with the reason.
    """
    if reference.family in FAMILIES:
        _family(reference.family).weights_without_embeddings(reference)
        return
    folder, _ = locate(reference)
    if ":" in reference.word or "@" in reference.word:
        from meltpoint.adapters.families.huggingface import pretrained  # transformers takes seconds to import

        pretrained.check(folder, reference.word)


def load(reference: EncoderReference) -> Encoder:
    """Load an encoder's weights and tokenizer, in float32, on the CPU.

    Raises:
        ValueError: the files are not available, not the expected ones, or hold no encoder; one line with the remedy.
    """
    if reference.family in FAMILIES:
        return cast("Encoder", _family(reference.family).load(reference))
    from meltpoint.adapters.families.huggingface import encoder  # transformers takes seconds to import

    return encoder.load(reference)


def fingerprint(reference: EncoderReference) -> str:
    """sha256 (first 16 hex digits) of all files that an encoder is loaded from, downloaded first if necessary.

    Raises:
        ValueError: the files are not available, or not the expected ones; one line with the remedy.
    """
    if reference.family in FAMILIES:
        return cast(str, _family(reference.family).fingerprint(reference))
    return files.fingerprint(reference, locate(reference)[0])


def revision(reference: EncoderReference) -> str:
    """`ID@COMMIT` of a hub encoder, downloaded first if necessary; "" for a folder.

    Raises:
        ValueError: the files are not available; one line with the remedy.
    """
    return "" if reference.is_folder or reference.family in FAMILIES else locate(reference)[1]


def weights_without_embeddings(reference: EncoderReference) -> int:
    """The number of weights that a forward pass multiplies by, without embedding tables."""
    if reference.family in FAMILIES:
        return cast(int, _family(reference.family).weights_without_embeddings(reference))
    return files.weights_without_embeddings(locate(reference)[0])


def state_size(reference: EncoderReference) -> int:
    """The size of a hidden state, read from the encoder's files without loading it."""
    if reference.family in FAMILIES:
        return cast(int, _family(reference.family).state_size(reference))
    return files.state_size(locate(reference)[0], reference.word)


def layer_count(reference: EncoderReference) -> int:
    """The number of layers above the embeddings; 0 if unknown, as for families that always run whole."""
    return 0 if reference.family in FAMILIES else files.layer_count(locate(reference)[0], reference.word)


def load_tokenizer(reference: EncoderReference) -> Tokenizer:
    """An encoder's tokenizer without its weights, for counting pieces: it gives as many as the loaded encoder's.

    Raises:
        ValueError: it cannot be read; one line with the remedy.
    """
    if reference.family in FAMILIES:
        return cast("Tokenizer", _family(reference.family).load_tokenizer(reference))
    from meltpoint.adapters.families.huggingface import pretrained  # transformers takes seconds to import

    return pretrained.load_tokenizer(reference)


def native_head(reference: EncoderReference) -> TransformersHead | None:
    """The classification head of an encoder's family, without loading the encoder, which is downloaded if necessary.

    Returns:
        None for families outside transformers.
    """
    if reference.family in FAMILIES:
        return None
    from meltpoint.adapters.families.huggingface.pretrained import TransformersHead  # transformers takes seconds

    folder = locate(reference)[0]
    return TransformersHead(configuration.supported_config(folder, reference.word), folder)


def pooling(reference: EncoderReference) -> SentencePooling | None:
    """The pooling that an encoder was trained with; None if it has none. A hub encoder is downloaded if necessary.

    Raises:
        ValueError: the files are not available, or broken; one line with the remedy.
    """
    if reference.pooling is not None or reference.family in FAMILIES:
        return reference.pooling
    return configuration.read_pooling(locate(reference)[0])


def unread_files(reference: EncoderReference, kind: Kind) -> tuple[str, ...]:
    """The declarations of an encoder's folder that are not read for a kind of task, one line each, for tables.

    Raises:
        ValueError: the files are not available, or broken; one line with the remedy.
    """
    if reference.family in FAMILIES:
        return ()
    folder, word = locate(reference)[0], reference.public_word
    notes = []
    if not kinds.get(kind).labels_words and configuration.is_unread_sentence_encoder(folder):
        notes.append(f"{word} is read as a plain encoder: its modules.json is not of a Transformer and one pooling")
    if configuration.read_config(folder).get("auto_map"):
        notes.append(f"{word} names its own code (auto_map), which is never run: transformers' class reads it")
    return tuple(notes)


def knows_pooling(reference: EncoderReference) -> bool:
    """True if a reference records whether its encoder ships its own pooling, as all but `hf:ID` do."""
    return reference.is_folder or ":" not in reference.word


def with_pooling(reference: EncoderReference) -> EncoderReference:
    """The reference with the encoder's own pooling, for which a hub encoder is downloaded if necessary.

    Raises:
        ValueError: the files are not available, or broken; one line with the remedy.
    """
    return reference if knows_pooling(reference) else replace(reference, pooling=pooling(reference))


def prompts(reference: EncoderReference) -> Prompts:
    """The prefixes of an encoder's makers, by name; none for families without them.

    Raises:
        ValueError: the files are not available, or broken; one line with the remedy.
    """
    if reference.family in FAMILIES:
        return Prompts()
    return configuration.read_prompts(locate(reference)[0], reference.prompts)


def stated_licence(reference: EncoderReference) -> str | None:
    """The licence that the model card in an encoder's folder states; None without a card or a stated licence.

    Raises:
        ValueError: the encoder's files are not available; one line with the remedy.
    """
    if reference.family in FAMILIES:
        return None
    return files.licence_of(locate(reference)[0])


def _family(family: str) -> ModuleType:
    """Import a family's package."""
    return importlib.import_module(FAMILIES[family])


def _named(word: str, kind: Kind) -> EncoderReference:
    """The reference of a named encoder, or of its files on the hub at another revision."""
    name, _, revision = word.partition("@")
    module = _module(name if revision and name in names() else word)
    found: EncoderReference = module.REFERENCE if hasattr(module, "REFERENCE") else module.reference(kind)
    if not revision:
        return found
    assert found.hub_id is not None, "every named encoder is on the hub"
    return replace(found, word=word, source=found.hub_id, revision=revision, sha256=None, copy_of=None)


def _module(word: str) -> ModuleType:
    """Import the module of a named encoder."""
    if word not in names():
        raise unknown_encoder(word, names(), ("hf", *FAMILIES))
    return importlib.import_module(f"{__name__}.{word.replace('-', '_')}")


def _resolve_hugging_face(source: str) -> EncoderReference:
    """Resolve `hf:SOURCE`: a path if it exists or `SOURCE` cannot be a hub id, otherwise a hub id."""
    if not source.strip():
        raise ValueError("'hf:' needs a hub id or a folder after it, as in hf:google-bert/bert-base-uncased.")
    folder = expanded(source)
    if exists(folder) or source.startswith((".", "~")) or not HUB_ID.fullmatch(source):
        absolute = files.check_folder(folder.resolve())
        return EncoderReference(f"hf:{absolute}", str(absolute), pooling=configuration.read_pooling(absolute))
    identifier, _, revision = source.partition("@")
    return EncoderReference(f"hf:{source}", identifier, revision or None)
