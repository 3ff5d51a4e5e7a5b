"""What the layer analyses measure: each example's mean state at each layer, of encoders as loaded and as fine-tuned.

P1: "the mean of the hidden activations of BERT-base of each token / word piece of the sequence(s)". Every real position
of the input counts, special tokens too; pairs are read jointly where the encoder can.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from meltpoint.adapters import encoders
from meltpoint.adapters.data.batch import EncodedSplit
from meltpoint.adapters.data.batching import evaluation_batches, inputs
from meltpoint.adapters.data.tokenising import encode_split
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.exported_model import load_folder
from meltpoint.adapters.features.encoding import at_rest
from meltpoint.reports.analyses.core.analysis import Options
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.export import order_of
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.sweeps.worker.finalist_scoring import restore
from meltpoint.sweeps.worker.worker import WEIGHTS
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import Example, Kind, TrainingData

States: TypeAlias = NDArray[np.float32]

BATCH = 32
MAX_PIECES = 128  # the default of `max_pieces`, so that frozen and fine-tuned states are of the same inputs

PRETRAINED = "pretrained"
STAGES = {"fine_tuning": "fine-tuned", "stack_and_finetune": "stacked, then fine-tuned"}
"""Modes that change the encoder, and what their states are called."""


@dataclass(frozen=True)
class FirstPhaseCheckpoint:
    """One state of an encoder.

    Attributes:
        name: `pretrained`, `fine-tuned`, or `stacked, then fine-tuned`.
        note: where its weights come from.
    """

    name: str
    encoder: Encoder
    note: str


def opened(options: Options) -> tuple[list[tuple[str, TrainingData]], list[str]]:
    """(encoder, data) of everything to look at, and what a table must say of what is left out.

    All that can be refused is refused here, before any state is read. A sweep's tasks that label words have no mean
    state and are left out, unless they are asked for by name.

    Raises:
        ValueError: data are missing, or the task labels words; a cell has no finalist with weights; or the exported
            folder is of another task, of a frozen encoder, or no exported model.
    """
    pairs = options.pairs()
    left_out = [] if options.tasks else [pair for pair in pairs if _labels_words(options, *pair)]
    # Where nothing else is left, `_labelled` says why.
    chosen = [pair for pair in pairs if pair not in left_out] or pairs
    found = [(encoder, _labelled(options, task)) for encoder, task in chosen]
    for word, data in found:
        for cell in _tuned_cells(options, word, data):
            _weights(options, cell)
    if options.model is not None:
        _exported(options.model, found[0][1].task.name)
    return found, [f"{task} is left out: it labels words." for task in dict.fromkeys(t for _, t in left_out)]


def _labels_words(options: Options, encoder: str, task: str) -> bool:
    return any(cell.header.kind == "sequence_labelling" for cell in options.cells(encoder, task))


def _labelled(options: Options, task: str) -> TrainingData:
    data = load_training_data(options.data(task))
    if data.task.kind == "sequence_labelling":
        raise ValueError(f"{task} labels words; the layer analyses take sentences or pairs. Leave it out with --task.")
    if any(example.label is None for example in (*data.train, *data.dev)):
        raise ValueError(f"{task} has examples without labels in train or dev; the layer analyses need them all.")
    return data


def stages(options: Options, word: str, data: TrainingData) -> Iterator[FirstPhaseCheckpoint]:
    """An encoder as loaded, then as each finalist of the sweep (or the exported folder) has it, one at a time.

    Raises:
        ValueError: the encoder cannot be had.
    """
    encoder = encoders.load(encoders.resolve(word, data.task.kind))
    yield FirstPhaseCheckpoint(PRETRAINED, encoder, f"{PRETRAINED}: {word}, weights {encoder.fingerprint}")
    if options.model is not None:
        yield _exported(options.model, data.task.name)
    for cell in _tuned_cells(options, word, data):
        yield _finalist(options, cell)


def _tuned_cells(options: Options, word: str, data: TrainingData) -> list[CellSummary]:
    """The sweep's cells whose finalists have encoders of their own; none where a folder stands for them."""
    if options.model is not None:
        return []
    return [cell for cell in options.cells(word, data.task.name) if cell.header.mode in STAGES]


def _exported(folder: Path, task: str) -> FirstPhaseCheckpoint:
    exported = load_folder(folder)
    if exported.task.name != task:
        raise ValueError(f"--model {folder} was trained on {exported.task.name}, not on {task}; name its task.")
    mode, seed = exported.facts["mode"], exported.facts.get("seed")
    if mode not in STAGES:
        raise ValueError(f"--model {folder} is of {mode}, which leaves the encoder as it was; take a tuned one.")
    return FirstPhaseCheckpoint(STAGES[mode], exported.model.encoder, f"{STAGES[mode]}: {folder.name}, seed {seed}")


def _weights(options: Options, cell: CellSummary) -> TrialRecord:
    """The finalist whose weights are kept."""
    assert options.ledger is not None, "a sweep has a folder"
    final = cell.kept
    if final is None or not (options.ledger.checkpoint(final.id) / WEIGHTS).exists():
        name = cell_name(*cell.header.key)
        raise ValueError(f"Cell '{name}' has no finalist with weights; finish the sweep, or leave its task out.")
    return final


def _finalist(options: Options, cell: CellSummary) -> FirstPhaseCheckpoint:
    assert options.sweep is not None, "cells are of a sweep"
    assert options.ledger is not None, "a sweep has a folder"
    name, final = cell_name(*cell.header.key), _weights(options, cell)
    order = order_of(options.sweep.spec, final, options.ledger)
    if options.data_dir is not None:  # the data moved; their fingerprint is checked
        order = order.model_copy(update={"data": replace(order.data, data_dir=options.data_dir)})
    trainer = restore([order])
    stage = STAGES[cell.header.mode]
    return FirstPhaseCheckpoint(
        stage, trainer.model.encoder, f"{stage}: the finalist of {name} with the best dev, seed {final.seed}"
    )


def split_states(encoder: Encoder, kind: Kind, examples: list[Example]) -> States:
    """The mean states of a split's examples: (layers, examples, dim) float32, embeddings first."""
    limit = min(MAX_PIECES, encoder.max_pieces)
    return mean_states(encoder, encode_split(kind, examples, encoder.tokenizer, limit), kind)


@torch.no_grad()
def mean_states(encoder: Encoder, split: EncodedSplit, kind: Kind) -> States:
    """The mean over each row's real positions, at each layer: (layers, examples, dim) float32.

    The encoder runs in float32, on the GPU where there is one; only means are kept. A finalist that trained in bf16 is
    read by the float32 weights that its checkpoint and its exported folder hold (`Encoder.in_float32`): what differs
    between stages is then the weights alone, and not the rounding, which `precision: auto` leaves to the machine.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    means = np.empty((encoder.layers, split.examples, encoder.dim), dtype=np.float32)
    with at_rest(encoder, device), encoder.in_float32():
        for batch in evaluation_batches(inputs(split), kind, encoder.tokenizer.pad_piece, BATCH):
            batch = batch.to(device)
            mask = batch.piece_mask[..., None]  # (batch, pieces, 1)
            places = [split.rows[row].example for row in batch.rows]
            for layer, states in enumerate(encoder.read(batch)):
                total = (states * mask).sum(dim=1) / mask.sum(dim=1)  # (batch, dim)
                means[layer, places] = total.float().cpu().numpy()
    return means
