"""A head for one kind of task, in bundles of three small members, and the batches that it is given."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from transformers import BertConfig

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.families.huggingface.pretrained import TransformersHead
from meltpoint.adapters.head import Head, HeadShape
from meltpoint.adapters.hyperparameters import Setting, Value
from meltpoint.adapters.layers.bundle import MemberRng
from meltpoint.adapters.training.optimisers import StackedAdamW
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.task import Kind

DIM, OUTPUTS = 12, 4
LENGTHS = [7, 4, 9]
PARTS = torch.tensor([[0, 1, 1, 0, 2, 2, 0] + [0] * 5, [0, 1, 2, 0] + [0] * 8, [0, 1, 1, 1, 1, 0, 2, 2, 0] + [0] * 3])
"""Which sentence of its pair each piece belongs to, special tokens and padding to none; (rows, 12)."""
CUTS = torch.tensor([4, 2, 6])
"""Where the second sentence's own input begins, for pairs that are encoded separately; (rows,)."""
STATISTICS = torch.tensor([[1, 0, 1, 0.5, 0.25, 1.25], [0, 0, 1, 0, 0, 1], [1, 1, 1, 0.75, 1, 1.5]])
"""Statistics of a pair's words; (rows, 6)."""
STARTS = [[1, 2, 4], [1], [1, 3, 4, 5, 7]]
LABELS = {
    "score": torch.tensor([0.5, 4.0, 2.5]),
    "label": torch.tensor([1, 3, 0]),
    "grade": torch.tensor([1, 3, 0]),
    "labels": torch.tensor([[0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]),
}
"""Of three rows, by what is predicted; (rows,) or (rows, labels)."""
DROPOUTS, SEEDS = (0.0, 0.3, 0.5), (5, 6, 5)


@dataclass(frozen=True)
class Case:
    """A head, one kind of task that it declares, and whether pairs are encoded separately."""

    head: type[Head]
    kind: Kind
    separate: bool = False

    def build(self, members: Sequence[int] = (0, 1, 2), settings: Sequence[Setting] | None = None) -> Head:
        """The head for some of three members, in evaluation mode, its weights where training would have them."""
        shape = head_shape(self.kind)
        own = settings or [small_setting(self.head, dropout=DROPOUTS[member]) for member in members]
        return self.head(shape, own, MemberRng([SEEDS[member] for member in members])).eval()

    def aligned(self, members: Sequence[int] = (0, 1, 2)) -> Head:
        """The same, its weights in the optimiser's buffer as in training: where they begin decides the last bits."""
        head = self.build(members)
        StackedAdamW(list(head.parameters()), torch.zeros(len(members)))
        return head

    def batch(self, rows: Sequence[int] = (0, 1, 2), width: int = 0, seed: int = 1) -> tuple[Tensor, Batch]:
        """Hidden states and a batch of one lane; see `make_batch`."""
        return make_batch(self.kind, rows, width, self.separate, seed)


def head_shape(kind: Kind) -> HeadShape:
    """The sizes for a kind: four labels, or a score from 0 to 5."""
    target = kinds.get(kind)
    limits = (0.0, 5.0) if target.is_regression else None
    return HeadShape(kind, DIM, target.outputs(0 if target.is_regression else OUTPUTS), limits, native_head())


@lru_cache
def native_head() -> TransformersHead:
    """The head of a BERT whose checkpoint is nowhere."""
    return TransformersHead(BertConfig(vocab_size=8, hidden_size=DIM, num_attention_heads=2), None)


def small_setting(head: type[Head], **changed: Value) -> dict[str, Value]:
    """A setting with a head's own defaults, its sizes made small: 8 in the place of any larger whole number."""
    own = {parameter.name: parameter.default for parameter in head.hyperparameters}
    small = {name: 8 for name, default in own.items() if type(default) is int and default > 8}
    return own | small | {"dropout": 0.0} | changed


def make_batch(
    kind: Kind, rows: Sequence[int] = (0, 1, 2), width: int = 0, separate: bool = True, seed: int = 1
) -> tuple[Tensor, Batch]:
    """Random states, (1, rows, width, dim), of three rows of different lengths (or some of them), with labels.

    Args:
        width: positions, the longest row's where it is 0.
        separate: whether pairs are encoded separately.
    """
    rows = list(rows)
    everything = torch.randn(3, 12, DIM, generator=torch.Generator().manual_seed(seed))
    width = width or max(LENGTHS[row] for row in rows)
    mask = torch.arange(width) < torch.tensor([LENGTHS[row] for row in rows])[:, None]
    states, pieces = everything[None, rows, :width], torch.ones(len(rows), width, dtype=torch.int64)
    if not kinds.get(kind).labels_words:
        labels = LABELS[kinds.get(kind).target][rows]
        pair = kind.startswith("pair")
        parts, cuts = PARTS[rows, :width] if pair else None, CUTS[rows] if pair and separate else None
        statistics = STATISTICS[rows] if cuts is not None else None
        return states, Batch(
            tuple(rows), pieces, mask, None, labels=labels, parts=parts, cuts=cuts, statistics=statistics
        )  # fmt: skip
    most = max(len(STARTS[row]) for row in rows)
    starts = torch.tensor([STARTS[row] + [0] * (most - len(STARTS[row])) for row in rows])
    words = torch.tensor([[i < len(STARTS[row]) for i in range(most)] for row in rows])
    return states, Batch(tuple(rows), pieces, mask, None, starts, words, (starts + 1) % 4 * words)


def make_lanes(case: Case) -> tuple[list[tuple[Tensor, Batch]], tuple[Tensor, Batch]]:
    """A batch for each of three members, its rows in another order in each; and all of them as one batch."""
    own = [case.batch(rows, seed=lane) for lane, rows in enumerate(((0, 1, 2), (1, 2, 0), (2, 0, 1)))]
    batches = [batch for _, batch in own]
    tensors: dict[str, Tensor] = {}
    for field in dataclasses.fields(Batch):
        if isinstance(getattr(batches[0], field.name), Tensor):
            tensors[field.name] = torch.cat([getattr(batch, field.name) for batch in batches])
    rows = tuple(row for batch in batches for row in batch.rows)
    joined = dataclasses.replace(batches[0], rows=rows, lanes=3, **tensors)
    return own, (torch.cat([states for states, _ in own]), joined)
