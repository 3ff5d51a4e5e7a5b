"""Rules by which an encoder and a task complete a search space: its word tokenizer and its pooling."""

from __future__ import annotations

from dataclasses import replace

from meltpoint.adapters import encoders, heads, modes
from meltpoint.adapters.data.input_format import OWN_POOLING, POOLING_KIND, WORD_TOKENIZER
from meltpoint.adapters.data.word_tokenizer import default_word_tokenizer
from meltpoint.adapters.encoders import EncoderReference
from meltpoint.adapters.multiplier_table import DefaultHead
from meltpoint.search_spaces.ranges import Fixed
from meltpoint.search_spaces.space import Space
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.task import Kind, Task

SOURCE = "the rules of ELMo's training text (Chelba et al. 2013), for a task whose texts are not tokenised"


def with_word_tokenizer(space: Space, reference: EncoderReference, task: Task) -> Space:
    """A cell's space in which each setting names its word tokenizer, where that is not the parameter's default.

    So the rule is in the identity, in MLflow and in an exported setting, whatever the task says later.

    Args:
        space: the cell's, with overrides; one that names a word tokenizer stays as it is, and so does an exported
            setting, which leaves out a word tokenizer only where none was used.
        reference: the encoder.
        task: the task, which says whether its texts are tokenised.
    """
    name = WORD_TOKENIZER.name
    chosen = default_word_tokenizer(reference.reads_words, task.tokenised)
    is_settled = name in space.parameters or name not in space.allowed or bool(space.provenance)
    if is_settled or chosen == WORD_TOKENIZER.default:
        return space
    return replace(
        space, parameters={**space.parameters, name: Fixed(chosen, source=SOURCE)},
        sources={**space.sources, name: "the task"},
    )  # fmt: skip


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


POOLING_SOURCE = "the encoder's own, since its pooling is why the cell has this head"


def with_own_pooling(space: Space, mode: str, head: DefaultHead) -> Space:
    """A cell's space in which each setting names the encoder's own pooling, where the head was chosen for it.

    Args:
        space: the cell's, with overrides; one that names `pooling.kind`, as the shipped ones do, stays as it is, and so
            does an exported setting.
        mode: the cell's mode.
        head: the cell's head, with the source of the choice.
    """
    if head != modes.get(mode).default_heads.pooled or POOLING_KIND in space.parameters or space.provenance:
        return space
    return replace(
        space, parameters={**space.parameters, POOLING_KIND: Fixed(OWN_POOLING, source=POOLING_SOURCE)},
        sources={**space.sources, POOLING_KIND: "the encoder"},
    )  # fmt: skip
