"""Which encoder × head × kind of task there can be: refused before the first trial, with the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meltpoint.adapters import heads
from meltpoint.adapters.encoders import EncoderReference
from meltpoint.tasks.core.task import Kind

if TYPE_CHECKING:
    from meltpoint.adapters.head import Head


def check_possible(reference: EncoderReference, head: str, kind: Kind, pairing: str = "auto") -> None:
    """Refuse a cell that could never train.

    Args:
        reference: the encoder, resolved.
        head: its word.
        kind: the task's kind.
        pairing: how a setting wants pairs read; "auto" where it leaves it open.

    Raises:
        ValueError: the head does not serve the kind, or not as the encoder reads pairs; names the heads that do.
    """
    trouble = _trouble(reference, heads.get(head, kind), kind)
    if trouble:
        able = [name for name in heads.names() if kind in heads.get(name).kinds]
        able = [name for name in able if not _trouble(reference, heads.get(name), kind)]
        raise ValueError(f"Head '{head}' {trouble}; take --head {' or '.join(able)}.")
    if pairing == "joint" and kind.startswith("pair") and not reference.joins_pairs:
        word = reference.word
        raise ValueError(f"pairing is joint, but {word} reads one sentence at a time; take separate, or auto.")


def _trouble(reference: EncoderReference, head: type[Head], kind: Kind) -> str:
    """Why a head that serves the kind cannot serve it on an encoder; "" where it can."""
    if not reference.has_words and head.reads != "first":
        return f"reads a state of each word, and {reference.word} has one vector a sentence"
    if kind.startswith("pair") and not reference.joins_pairs and not head.separate_pairs:
        return f"reads both sentences of a pair as one, and {reference.word} reads one at a time"
    return ""
