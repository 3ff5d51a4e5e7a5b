"""Tokenised train and dev splits of a task, for benchmarks that run the training loop without a sweep."""

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
    """Tokenise both splits; inputs have at most `max_pieces` subword tokens, or the encoder's maximum if it is less.

    Args:
        dev_rows: the number of leading dev examples; None for all.

    Raises:
        ValueError: the data is missing or invalid.
    """
    data, limit = load_training_data(spec), min(max_pieces, encoder.max_pieces)
    gold = data.dev[:dev_rows]
    train, dev = (encode_split(data.task.kind, split, encoder.tokenizer, limit) for split in (data.train, gold))
    return EncodedData(data.task, train, dev, gold)
