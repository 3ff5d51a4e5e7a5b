"""The word tokenizer of a cell: the space's own, or the default for its encoder and task, fixed in every setting."""

from __future__ import annotations

from dataclasses import replace

from meltpoint.adapters.data.pairing import WORD_TOKENIZER
from meltpoint.adapters.data.word_tokenizer import default_word_tokenizer
from meltpoint.adapters.encoders import EncoderReference
from meltpoint.search_spaces.ranges import Fixed
from meltpoint.search_spaces.space import Space
from meltpoint.tasks.core.task import Task

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
