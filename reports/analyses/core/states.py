"""Hidden states of finalists, and probes on them.

P1: "the mean of the hidden activations of BERT-base of each token / word piece of the sequence(s)". Every position of
the input except padding counts, including special tokens; pairs are encoded jointly if the encoder supports it.

P1 specifies only logistic regression, and linear regression for STS-B. Our choices: states are scaled to mean 0 and
variance 1 on train; the logistic regression has scikit-learn's default penalty (L2, C = 1) and runs to convergence.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from meltpoint.adapters import encoders
from meltpoint.adapters.data.batch import Batch, EncodedSplit
from meltpoint.adapters.data.batching import evaluation_batches, inputs
from meltpoint.adapters.data.input_format import InputFormat, default_word_tokenizer
from meltpoint.adapters.data.tokenising import encode_split
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.features.reading import at_rest
from meltpoint.reports.analyses.core.analysis import AnalysisOptions
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.export import order_of
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.worker.finalist_scoring import restore
from meltpoint.sweeps.worker.worker import WEIGHTS
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.metrics import METRICS
from meltpoint.tasks.core.scoring import value
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import Example, Label, Task, TrainingData
from meltpoint.tasks.core.wording import some


def needed_finalist(options: AnalysisOptions, cell: CellSummary) -> TrialRecord:
    """The cell's final with stored weights.

    Raises:
        ValueError: there is none.
    """
    assert options.ledger is not None, "a sweep has a folder"
    final = cell.kept
    if final is None or not (options.ledger.checkpoint(final.id) / WEIGHTS).exists():
        raise ValueError(f"Cell '{cell.name}' has no finalist with weights; finish the sweep, or leave its task out.")
    return final


States: TypeAlias = NDArray[np.float32]

BATCH = 32
MAX_PIECES = 128  # for every stage, so that frozen and fine-tuned states are of the same inputs

PRETRAINED = "pretrained"
STAGES = {"fine_tuning": "fine-tuned", "stack_and_finetune": "stacked, then fine-tuned"}
"""Modes that train the encoder → the name of their states."""


@dataclass(frozen=True)
class EncoderStage:
    """An encoder before or after training.

    Attributes:
        name: `pretrained`, `fine-tuned`, or `stacked, then fine-tuned`.
        note: the origin of its weights.
    """

    name: str
    encoder: Encoder
    note: str


def every_input(options: AnalysisOptions) -> list[tuple[str, TrainingData]]:
    """The (encoder, data) pairs to analyse, for an analysis that reads every kind of task.

    Raises:
        ValueError: data is missing, or an example has no label.
    """
    return [(encoder, _with_labels(options, task)) for encoder, task in options.pairs()]


def load_inputs(
    options: AnalysisOptions, with_finalists: bool = False
) -> tuple[list[tuple[str, TrainingData]], list[str]]:
    """The (encoder, data) pairs to analyse, and notes on the tasks that are left out.

    All inputs are validated here, before any states are computed. A sweep's word-labelling tasks have no mean state and
    are left out, unless they are given by name.

    Args:
        with_finalists: whether every cell that tunes an encoder must have a finalist with weights.

    Raises:
        ValueError: data is missing, the task labels words, or a finalist is missing.
    """
    pairs = options.pairs()
    left_out = [] if options.tasks else [pair for pair in pairs if _labels_words(options, *pair)]
    # If nothing else is left, `_labelled` raises the error.
    chosen = [pair for pair in pairs if pair not in left_out] or pairs
    inputs = [(encoder, _labelled(options, task)) for encoder, task in chosen]
    if with_finalists:
        for encoder, data in inputs:
            for cell in _tuned_cells(options, encoder, data):
                needed_finalist(options, cell)
    why = "it labels words, or has several labels per text"
    return inputs, [f"{task} is left out: {why}." for task in dict.fromkeys(task for _, task in left_out)]


def _labels_words(options: AnalysisOptions, encoder: str, task: str) -> bool:
    found = (kinds.get(cell.header.kind) for cell in options.cells(encoder, task))
    return any(kind.labels_words or kind.has_labels for kind in found)


def _labelled(options: AnalysisOptions, task: str) -> TrainingData:
    data = _with_labels(options, task)
    if data.task.of_kind.has_labels:
        raise ValueError(f"{task} has several labels per text; the layer analyses take one. Leave it out with --task.")
    if data.task.of_kind.labels_words:
        raise ValueError(f"{task} labels words; the layer analyses take sentences or pairs. Leave it out with --task.")
    return data


def _with_labels(options: AnalysisOptions, task: str) -> TrainingData:
    data = load_training_data(options.data(task))
    if any(example.label is None for example in (*data.train, *data.dev)):
        raise ValueError(f"{task} has examples without labels in train or dev; the analyses need them all.")
    return replace(data, dev=data.all_dev)  # epochs alone are scored on a sample


def stages(options: AnalysisOptions, encoder_name: str, data: TrainingData) -> Iterator[EncoderStage]:
    """Yield the pretrained encoder, then each finalist's encoder.

    Raises:
        ValueError: the encoder cannot be loaded.
    """
    encoder = encoders.load(encoders.resolve(options.encoder_word(encoder_name), data.task.kind))
    yield EncoderStage(PRETRAINED, encoder, f"{PRETRAINED}: {encoder_name}, weights {encoder.fingerprint}")
    for cell in _tuned_cells(options, encoder_name, data):
        yield _finalist(options, cell)


def _tuned_cells(options: AnalysisOptions, encoder_name: str, data: TrainingData) -> list[CellSummary]:
    """The sweep's cells whose finalists have trained encoders."""
    return [cell for cell in options.cells(encoder_name, data.task.name) if cell.header.mode in STAGES]


def _finalist(options: AnalysisOptions, cell: CellSummary) -> EncoderStage:
    assert options.sweep is not None, "cells are of a sweep"
    assert options.ledger is not None, "a sweep has a folder"
    final, stage = needed_finalist(options, cell), STAGES[cell.header.mode]
    stage += f", {cell.header.variant}" if cell.header.variant else ""
    order = order_of(options.sweep.spec, final, options.ledger).model_copy(update={"gpus": 0.0})
    if options.data_dir is not None:  # the data has moved; its fingerprint is checked
        order = order.model_copy(update={"data": replace(order.data, data_dir=options.data_dir)})
    note = f"{stage}: the finalist of {cell.name} with the best dev, seed {final.seed}"
    return EncoderStage(stage, restore([order]).model.encoder, note)


@torch.no_grad()
def split_states(encoder: Encoder, task: Task, examples: list[Example]) -> States:
    """The mean states of a split's examples, over each row's positions without padding, embeddings first.

    An encoder without a state for each word has its vectors at the first position of each sentence.

    The encoder runs in float32, on a GPU if one is available, even for a finalist trained in bf16: the stages then
    differ only in their weights, not in machine-dependent rounding (`precision: auto`). Only means are kept.

    Returns:
        (layers, examples, dim) float32.
    """
    has_words = encoders.traits(f"{encoder.family}:").has_words
    split = _encoded(encoder, task, examples)
    means = np.empty((encoder.layers, split.examples, encoder.dim), dtype=np.float32)
    for batch, layers in _read(encoder, task, split):
        mask = (batch.piece_mask if has_words else _firsts(batch))[..., None]  # (batch, pieces, 1)
        places = [split.rows[row].example for row in batch.rows]
        for layer, states in enumerate(layers):
            total = (states * mask).sum(dim=1) / mask.sum(dim=1)  # (batch, dim)
            means[layer, places] = total.float().cpu().numpy()
    return means


@torch.no_grad()
def word_states(encoder: Encoder, task: Task, examples: list[Example]) -> States:
    """The states of the words of a split that labels words, at each word's first piece: the mean of all layers.

    Returns:
        (1, words, dim) float32, sentence after sentence.
    """
    split = _encoded(encoder, task, examples)
    firsts = np.cumsum([0, *split.word_counts])
    found = np.empty((1, firsts[-1], encoder.dim), dtype=np.float32)
    for batch, layers in _read(encoder, task, split):
        assert batch.word_starts is not None, "a task that labels words"
        mean = torch.stack(list(layers)).mean(dim=0)  # (batch, pieces, dim)
        for row, states, starts in zip(batch.rows, mean, batch.word_starts, strict=True):
            own = split.rows[row]
            place, words = firsts[own.example] + own.offset, len(own.word_starts)
            found[0, place : place + words] = states[starts[:words]].float().cpu().numpy()
    return found


def _encoded(encoder: Encoder, task: Task, examples: list[Example]) -> EncodedSplit:
    words = default_word_tokenizer(encoders.traits(f"{encoder.family}:").reads_words, task.tokenised)
    limit = min(MAX_PIECES, encoder.max_pieces)
    return encode_split(task.kind, examples, encoder.tokenizer, limit, InputFormat(word_tokenizer=words))


def _read(encoder: Encoder, task: Task, split: EncodedSplit) -> Iterator[tuple[Batch, Iterable[Tensor]]]:
    """Each batch with its layers, embeddings first, each (batch, pieces, dim).

    The caller turns gradients off, since an encoder may compute a layer only when it is asked for.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with at_rest(encoder, device):
        for batch in evaluation_batches(inputs(split), task.kind, encoder.tokenizer.pad_piece, BATCH):
            moved = batch.to(device)
            yield moved, encoder.read(moved)


def _firsts(batch: Batch) -> Tensor:
    """True at the first position of each sentence: (batch, pieces)."""
    found = torch.zeros_like(batch.piece_mask)
    found[:, 0] = True
    if batch.cuts is not None:
        found[torch.arange(len(found), device=found.device), batch.cuts] = True
    return found


ITERATIONS = 2000


def probe(task: Task, train: States, train_labels: Sequence[Label], dev: States, dev_labels: Sequence[Label]) -> float:
    """Fit a linear model to train and return the task's metric on dev.

    Args:
        train, dev: (examples, dim) of one layer.

    Raises:
        ValueError: all training examples have one label.
    """
    if len(set(train_labels)) < 2:
        raise ValueError(f"the training examples of {task.name} all have one label; take more: --max-train-examples.")
    # scikit-learn takes a second to import.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    linear = LinearRegression() if task.of_kind.is_regression else LogisticRegression(max_iter=ITERATIONS)
    model = make_pipeline(StandardScaler(), linear)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)  # scores of models that have not converged are meaningless
        try:
            model.fit(train.astype(np.float64), list(train_labels))
        except ConvergenceWarning:
            raise ValueError(
                f"{task.name}: a linear model did not converge in {some(ITERATIONS, 'iteration')}; take more examples: "
                "--max-train-examples."
            ) from None
    return _metric(task, dev_labels, model.predict(dev.astype(np.float64)).tolist(), model, dev)


def constant(task: Task, train_labels: Sequence[Label], dev_labels: Sequence[Label]) -> float:
    """The task's metric for always predicting train's most frequent label, or its mean: a baseline without states."""
    labels: Any = train_labels
    guess: Any = float(np.mean(labels)) if task.of_kind.is_regression else int(np.bincount(labels).argmax())
    shares = () if task.of_kind.is_regression else np.bincount(labels, minlength=len(task.labels)) / len(labels)
    return value(task.metric, task, list(dev_labels), [guess] * len(dev_labels), [list(shares)] * len(dev_labels))


def _metric(task: Task, gold: Sequence[Label], predicted: Sequence[Any], model: Any, states: NDArray[Any]) -> float:
    """The task's metric, of the model's probabilities if it is one of these; labels that train lacks have none."""
    shares = np.zeros((len(gold), len(task.labels)))
    if METRICS[task.metric.partition(".")[0]].of_probabilities:
        shares[:, model.classes_.astype(int)] = model.predict_proba(states.astype(np.float64))
    return value(task.metric, task, list(gold), list(predicted), shares.tolist())
