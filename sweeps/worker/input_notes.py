"""The notes of a trial on its inputs: those that the length limit cut, the limit, and the option that raises it."""

from __future__ import annotations

from meltpoint.adapters.data.batch import EncodedSplit
from meltpoint.adapters.training.trial_state import EncodedData
from meltpoint.tasks.core.counts import some


def input_notes(data: EncodedData, max_pieces: int, longest: int) -> list[str]:
    """One line for each thing that happened to the inputs of a split.

    Args:
        data: train and dev, tokenised.
        max_pieces: the setting's.
        longest: the longest input that the encoder takes, special tokens included.
    """
    limit = f"max_pieces = {max_pieces}" if max_pieces < longest else f"the encoder's longest input, {longest} pieces"
    remedy = f"; --set max_pieces={min(2 * max_pieces, longest)} reads more" if max_pieces < longest else ""
    notes = [] if max_pieces <= longest else [f"max_pieces = {max_pieces} was read as {limit}"]
    for split in (data.train, data.dev):
        notes += [f"{split.name}: {note}" for note in _of_split(split, limit, remedy)]
    return notes


def _of_split(split: EncodedSplit, limit: str, remedy: str) -> list[str]:
    of = f"of {some(split.examples, 'sentence' if split.word_counts else 'example')}"
    notes = []
    if split.truncated:
        what = "with a word cut to" if split.word_counts else "cut to"
        notes.append(f"{split.truncated} {of} {what} {limit}{remedy}")
    if split.windowed:
        notes.append(f"{split.windowed} {of} split into windows of {limit}, no word lost")
    if split.alone:
        notes.append(f"{split.alone} {of} without a neighbour in the document")
    return notes
