"""The notes of a trial on its inputs: those that the length limit cut, the limit, and the option that raises it."""

from __future__ import annotations

from meltpoint.adapters.data.lengths import cut_notes
from meltpoint.adapters.training.trial_state import EncodedData
from meltpoint.tasks.core.wording import some


def input_notes(data: EncodedData, max_pieces: int, longest: int) -> list[str]:
    """One line for each thing that happened to the inputs of a split.

    Args:
        data: train and dev, tokenised.
        max_pieces: the setting's; in a setting of an earlier version it may be more than the encoder takes.
        longest: the longest input that the encoder takes, special tokens included.
    """
    own = f"the encoder's longest input, {some(longest, 'piece')}"
    notes = [] if max_pieces <= longest else [f"max_pieces = {max_pieces} was read as {own}"]
    for split in (data.train, data.dev):
        found = cut_notes(split, min(max_pieces, longest), longest)
        if split.alone:
            found.append(f"{split.alone} of {some(split.examples, 'sentence')} without a neighbour in the document")
        notes += [f"{split.name}: {note}" for note in found]
    return notes
