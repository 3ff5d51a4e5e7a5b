"""The base class of heads, which map a bundle's hidden states to scores, a loss and predictions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.data.input_format import SentencePooling
from meltpoint.adapters.hyperparameters import CLASS_WEIGHTS, FOCAL_GAMMA, OF_TARGET, THRESHOLD, Parameter, Setting
from meltpoint.adapters.layers.bundle import Bundle, Layer, MemberRng, keep_members, lanes_of, value
from meltpoint.adapters.objectives import OBJECTIVES, Options
from meltpoint.tasks.core import kinds as task_kinds
from meltpoint.tasks.core.kinds import TaskKind
from meltpoint.tasks.core.metrics import Prediction
from meltpoint.tasks.core.task import KINDS, Kind, Label

Reads = Literal["first", "all"]
"""The states that determine a head's scores: only [CLS]'s or each word's first piece's, or every piece's."""


class FamilyHead(Protocol):
    """The classification head that an encoder's family puts on its encoders (`heads/native.py`)."""

    def build(
        self, kind: Kind, outputs: int, pooler: str, generators: Sequence[torch.Generator]
    ) -> list[nn.Module]:  # fmt: skip
        """The initial head: one plain torch module per generator, identical except for initial weights.

        A module maps states, (batch, pieces, dim), and their mask, (batch, pieces) bool, to scores, (batch, outputs) or
        (batch, pieces, outputs) for sequence labelling.

        Args:
            kind: the task's kind.
            outputs: size of the scores.
            pooler: "pretrained", "fresh" or "none": the source of the encoder's pooler's initial weights.
            generators: the generators of the initial weights.

        Raises:
            ValueError: the family has no such head; one line with the remedy.
        """

    def reads(self, kind: Kind) -> Reads:
        """The states that determine its scores, as in `Head.reads`."""


@dataclass(frozen=True)
class HeadShape:
    """The sizes of a head's input and output, and the head of the encoder's family.

    Attributes:
        kind: the task's kind.
        dim: size of a hidden state of the encoder.
        outputs: label count, or 1 for regression.
        label_range: lowest and highest score, for regression only.
        native: the head of the encoder's family; None if it has none.
        pooling: the encoder's own pooling; None if it has none.
        joins_pairs: whether the encoder can take both sentences of a pair as one input.
        class_weights: the task's class weights, one per class; () for none.
    """

    kind: Kind
    dim: int
    outputs: int
    label_range: tuple[float, float] | None = None
    native: FamilyHead | None = None
    pooling: SentencePooling | None = None
    joins_pairs: bool = True
    class_weights: tuple[float, ...] = ()

    @property
    def of_kind(self) -> TaskKind:
        """The task's kind: the contents of its examples, and its target."""
        return task_kinds.get(self.kind)


class Head(Layer, ABC):
    """A task model on top of an encoder, for the T trials of a bundle; `layers.bundle` has its obligations to them.

    A head is a subclass with the class attributes below, `compose` and `forward`; `heads/mlp.py` is an example. The
    base class provides the loss and the predictions of the kind's objective; a CRF overrides them.

    Attributes:
        kinds: the kinds of task that it can serve.
        hyperparameters: its own, in addition to the common ones, prefixed with the head's (family) name and a dot.
        summary: one line for `meltpoint list heads`.
        reads: "first" if the scores depend only on [CLS] or each word's first subword token, so that a batch may hold
            no other hidden states; "all" if they depend on every token. The class attribute holds for most encoders; if
            the encoder decides (`native`), the instance attribute holds.
        separate_pairs: True if it supports pairs whose sentences are encoded separately; it then tells them apart by
            `Batch.parts`. A head that reads only [CLS] cannot.
        joint_pairs: True if it supports pairs whose sentences are encoded together.
        is_native: True if it is the head of the encoder's family, and needs `HeadShape.native`.
        is_linear: True if its scores are one linear layer, `scores`, on `vectors`, so that a solver can fit it.
        static: False if `forward` or `loss` reads numbers from the device, which a CUDA graph cannot.
        outputs: size of its scores, by default the task's; a head with other scores (a distribution over scores) sets
            it in `compose`, and computes `loss` and `decode` itself.
        objective: the loss and the predictions of the task's kind.

    Args:
        shape: the sizes of its input and output.
        settings: one per member; they agree on everything that shapes the computation.
        rng: the members' random numbers.
    """

    kinds: ClassVar[tuple[Kind, ...]] = KINDS
    hyperparameters: ClassVar[tuple[Parameter, ...]] = ()
    summary: ClassVar[str] = ""
    reads: Reads = "all"
    separate_pairs: ClassVar[bool] = False
    joint_pairs: ClassVar[bool] = True
    is_native: ClassVar[bool] = False
    is_linear: ClassVar[bool] = False
    static: ClassVar[bool] = True

    def __init__(self, shape: HeadShape, settings: Sequence[Setting], rng: MemberRng) -> None:
        super().__init__()
        self.shape = shape
        self.outputs = shape.outputs
        self.objective = OBJECTIVES[shape.of_kind.target]
        self.options = self._options(settings)
        self.rng = rng
        self.compose(Bundle(settings, rng))

    @abstractmethod
    def compose(self, bundle: Bundle) -> None:
        """Create the head's layers for every member of a bundle; called once, when the head is created."""

    @abstractmethod
    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """Compute scores from hidden states, which stay unchanged.

        Args:
            states: (T or 1, batch, pieces, dim), one layer or a mix of all; 1 if all members read the same states.
            batch: the batch that the states belong to; its tensors' first dimension is lanes × batch, which
                `layers.bundle.lanes_of` splits.

        Returns:
            (T, batch, outputs), or (T, batch, words, outputs) for sequence labelling; float32.
        """

    def vectors(self, states: Tensor, batch: Batch) -> Tensor:
        """The vectors under a linear head's score layer, from `forward`'s arguments.

        Returns:
            (T or 1, batch, size), or (T or 1, batch, words, size) for sequence labelling.
        """
        raise NotImplementedError

    def loss(self, scores: Tensor, batch: Batch) -> Tensor:
        """Mean loss over the batch's examples (or real words), by the kind's objective (`adapters/objectives.py`).

        A head's own loss must also be such a mean, because micro-batches are weighted by their examples or words.

        Returns:
            (T,), one per member; their sum gives every member the gradient that it has alone.
        """
        assert batch.labels is not None, "the loss needs labels"
        labels = lanes_of(batch.labels, batch.lanes).expand(scores.shape[0], *(-1 for _ in batch.labels.shape))
        mask = None if batch.word_mask is None else lanes_of(batch.word_mask, batch.lanes)
        return self.objective.loss(scores, labels, mask, self.shape.label_range, self.options)

    def decode(self, scores: Tensor, batch: Batch, member: int) -> list[Prediction]:
        """One member's predictions, one per row, in the batch's order.

        Args:
            scores: the member's scores, (batch, outputs) or (batch, words, outputs).
            batch: a batch of one lane.
            member: the member's index.
        """
        return self.objective.decode(
            scores, batch.word_mask, self.shape.label_range, self.options.thresholds[member]
        )  # fmt: skip

    def probabilities(self, scores: Tensor, batch: Batch) -> list[list[float]] | None:
        """One member's probability of each label, per row; None for kinds without probabilities."""
        return self.objective.probabilities(scores)

    def weigh(self, labels: Sequence[Label]) -> None:
        """Set the class weights for members whose setting uses them.

        Balanced weights are n / (classes · examples of the class), as in scikit-learn: their mean over train is 1.

        Args:
            labels: the labels of all training examples.
        """
        if not set(self.weighting) - {"none"}:
            return
        counts = Counter(label for label in labels if isinstance(label, int))
        every = range(self.shape.outputs)
        total = sum(counts.values())
        balanced = torch.tensor([total / (len(every) * counts[label]) if counts[label] else 0.0 for label in every])
        given = torch.tensor(self.shape.class_weights or [1.0] * len(every))
        device = next(self.parameters()).device
        found = {"none": None, "balanced": balanced.to(device), "task": given.to(device)}
        self.options = replace(self.options, weights=tuple(found[name] for name in self.weighting))

    def _options(self, settings: Sequence[Setting]) -> Options:
        """The members' hyperparameters of the kind's loss and predictions; others at their defaults."""
        own = OF_TARGET.get(self.shape.of_kind.target, ())
        read = [[value(one, p) if p in own else p.default for p in (FOCAL_GAMMA, THRESHOLD)] for one in settings]
        self.weighting = tuple(str(value(one, CLASS_WEIGHTS)) if CLASS_WEIGHTS in own else "none" for one in settings)
        gammas, thresholds = zip(*read, strict=True)
        return Options(tuple(map(float, gammas)), tuple(map(float, thresholds)), (None,) * len(settings))

    def keep(self, members: Sequence[int]) -> None:
        """Continue with some members, in this order: parameters, dropout ratios and random numbers.

        The parameters stay the same objects; if an optimiser holds them, call its own `keep` after this one.
        """
        keep_members(self, members)
        self.rng.keep(members)
        self.options = self.options.kept(members)
        self.weighting = tuple(self.weighting[member] for member in members)
