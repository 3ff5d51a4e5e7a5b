"""The check of a cell's `native.pooler` against its encoder, and the note on a checkpoint without its weights."""

from __future__ import annotations

from meltpoint.adapters import encoders, heads
from meltpoint.adapters.encoders import EncoderReference
from meltpoint.search_spaces.space import Space
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.task import Kind

POOLER, PRETRAINED, NONE = "native.pooler", "pretrained", "none"


def pooler_notes(reference: EncoderReference, head: str, kind: Kind, space: Space) -> tuple[str, ...]:
    """The notes on the pooler of a cell whose head is its encoder's own, for tables; the encoder's files are read.

    Raises:
        ValueError: the space leaves out a pooler that the head does not have.
    """
    native = encoders.native_head(reference) if heads.get(head).is_native else None
    if native is None:
        return ()
    if not native.has_pooler(kind):
        if _may_be(space, NONE):
            where = "for labels of words" if kinds.get(kind).labels_words else f"of {reference.word}"
            raise ValueError(f"{POOLER} is none, but the head {where} has no pooler to leave out; take pretrained.")
        return ()
    if native.ships_pooler(kind) or not _may_be(space, PRETRAINED):
        return ()
    return (f"{reference.word} ships no weights of its pooler; {POOLER} = {PRETRAINED} begins with a fresh one",)


def _may_be(space: Space, value: str) -> bool:
    """True if a setting of the space may name a value of `native.pooler`, or leaves it at that default."""
    parameter = space.parameters.get(POOLER)
    return value == PRETRAINED if parameter is None else parameter.match(value) is not None
