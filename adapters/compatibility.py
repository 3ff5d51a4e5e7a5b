"""Compatibility of encoder, head and kind of task; impossible cells are refused before the first trial."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meltpoint.adapters import heads, modes
from meltpoint.adapters.encoders import EncoderReference, pooling
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.task import Kind

if TYPE_CHECKING:
    from meltpoint.adapters.head import Head


def check_possible(reference: EncoderReference, head: str, kind: Kind, pairing: str = "auto") -> None:
    """Refuse a cell whose encoder, head and kind of task cannot be combined.

    Args:
        reference: the encoder, resolved.
        head: the head's name.
        kind: the task's kind.
        pairing: the setting's `pairing`; "auto" if it leaves the choice open.

    Raises:
        ValueError: the head does not support the kind, or does not support it with this encoder; the message names the
            heads that do.
    """
    reason = _incompatibility(reference, heads.get(head, kind), kind)
    if reason:
        able = [name for name in heads.names() if kind in heads.get(name).kinds]
        able = [name for name in able if not _incompatibility(reference, heads.get(name), kind)]
        raise ValueError(f"Head '{head}' {reason}; use --head {' or '.join(able)}.")
    if pairing == "joint" and kinds.get(kind).is_pair and not reference.joins_pairs:
        word = reference.word
        raise ValueError(f"pairing is joint, but {word} reads one sentence at a time; use separate or auto.")


def check_mode(reference: EncoderReference, mode: str, head: str) -> None:
    """Refuse a mode that does not support the encoder's family or the head.

    Raises:
        ValueError: one line with the remedy.
    """
    adaptation = modes.get(mode)
    if adaptation.families and reference.family not in adaptation.families:
        others = [name for name in modes.names() if not modes.get(name).families]
        raise ValueError(
            f"Mode '{mode}' needs an encoder of transformers, which {reference.word} is not; use --mode "
            f"{','.join(others)}."
        )
    if adaptation.fits_head and not heads.get(head).is_linear:
        able = [name for name in heads.names() if heads.get(name).is_linear]
        raise ValueError(f"Mode '{mode}' fits a linear head, which {head} is not; use --head {' or '.join(able)}.")


def check_own_pooling(reference: EncoderReference) -> None:
    """Refuse `pooling.kind: encoder` for an encoder that ships no pooling; a hub encoder must be downloaded already.

    Raises:
        ValueError: the encoder ships no readable pooling; one line with the remedy.
    """
    if pooling(reference) is None:
        raise ValueError(
            f"pooling.kind is encoder, but {reference.word} ships no mean, cls or max pooling that Meltpoint reads "
            "(modules.json, 1_Pooling/config.json); use --set pooling.kind=mean."
        )


def _incompatibility(reference: EncoderReference, head: type[Head], kind: Kind) -> str:
    """The reason why a head that supports the kind cannot be used with an encoder; "" if it can."""
    if head.is_native and not reference.has_native_head(kind):
        return f"is the head that transformers builds on an encoder, but transformers has none for {reference.word}"
    if not reference.has_words and head.reads != "first":
        return f"reads a state of each word, but {reference.word} has one vector per sentence"
    if head.reads == "first" and not kinds.get(kind).labels_words and not reference.has_sentence_state:
        return f"reads the first state only, but {reference.word}'s first state is a word's, not the sentence's"
    if kinds.get(kind).is_pair and not reference.joins_pairs and not head.separate_pairs:
        return f"reads both sentences of a pair as one, but {reference.word} reads one at a time"
    return ""
