"""A task's train and dev split as a given encoder's pieces, for what runs the loop without the service."""

from __future__ import annotations

from meltpoint.adapters.data.tokenising import encode_split
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.training.trial_state import EncodedData
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec

MAX_PIECES = 128


def encoded(
    encoder: Encoder, spec: DataSpec, max_pieces: int = MAX_PIECES, dev_rows: int | None = None
) -> EncodedData:  # fmt: skip
    """Both splits; inputs have as many pieces as asked for, or as the encoder takes.

    Args:
        dev_rows: how many of dev's first examples; None is all.

    Raises:
        ValueError: the data are not there, or not as the task has them.
    """
    data, limit = load_training_data(spec), min(max_pieces, encoder.max_pieces)
    gold = data.dev[:dev_rows]
    train, dev = (encode_split(data.task.kind, split, encoder.tokenizer, limit) for split in (data.train, gold))
    return EncodedData(data.task, train, dev, gold)
