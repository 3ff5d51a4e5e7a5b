"""Objectives: the loss, the predictions and the probabilities of scores, for each target of a kind of task.

An objective has no weights: heads compute the scores, and may replace its loss with their own (a CRF's).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from meltpoint.tasks.core.metrics import Prediction

Limits = tuple[float, float] | None
"""The lowest and the highest score of a task, for regression; None for the others."""


@dataclass(frozen=True)
class Options:
    """The members' hyperparameters that affect loss and predictions.

    Attributes:
        gammas: gamma of the focal loss, one per member; 0 is cross-entropy.
        thresholds: the lowest probability at which a label is predicted, one per member.
        weights: class weights in the loss, (labels,) float32 per member, or None if all count equally.
    """

    gammas: tuple[float, ...]
    thresholds: tuple[float, ...]
    weights: tuple[Tensor | None, ...]

    @property
    def is_plain(self) -> bool:
        """True if every member has the loss without weights and focal gamma."""
        return not any(self.gammas) and all(weights is None for weights in self.weights)

    def kept(self, members: Sequence[int]) -> Options:
        """The options of some members, in this order."""
        return Options(
            tuple(self.gammas[member] for member in members),
            tuple(self.thresholds[member] for member in members),
            tuple(self.weights[member] for member in members),
        )


class Objective(ABC):
    """The loss, the predictions and the probabilities of a target."""

    @abstractmethod
    def loss(self, scores: Tensor, labels: Tensor, mask: Tensor | None, limits: Limits, options: Options) -> Tensor:
        """Mean loss over the rows (over the real words, for tags) of each member.

        It must be a mean for any rows, because micro-batches are weighted by their examples or words.

        Args:
            scores: (T, batch, outputs), or (T, batch, words, outputs) for tags; float32.
            labels: (T, batch), (T, batch, labels) or (T, batch, words).
            mask: (T or 1, batch, words) bool, True on real words; None except for tags.
            limits: the lowest and the highest score, for regression.
            options: the members' options; a member's loss has the same bits as alone.

        Returns:
            (T,), one per member; their sum gives every member the gradient that it has alone.
        """

    @abstractmethod
    def decode(self, scores: Tensor, mask: Tensor | None, limits: Limits, threshold: float) -> list[Prediction]:
        """One member's predictions, one per row.

        Args:
            scores: (batch, outputs), or (batch, words, outputs) for tags.
            mask: (batch, words) bool; None except for tags.
            limits: the lowest and the highest score, for regression.
            threshold: the lowest probability at which one of several labels is predicted.
        """

    def probabilities(self, scores: Tensor) -> list[list[float]] | None:
        """One member's probability of each label per row, from (batch, outputs); None if there are none."""
        return None


class OneLabel(Objective):
    """One label of several: cross-entropy of a softmax, optionally focal (Lin et al. 2017) or weighted by class.

    Both options are for classes of very different sizes. They move the probabilities away from the classes' shares, so
    the probabilities need calibration afterwards.
    """

    def loss(self, scores: Tensor, labels: Tensor, mask: Tensor | None, limits: Limits, options: Options) -> Tensor:
        """Mean cross-entropy, over rows and not over their weights; see `Objective.loss`."""
        if options.is_plain:
            return cross_entropy(scores, labels).mean(1)

        def own(scores: Tensor, labels: Tensor, member: int) -> Tensor:
            losses = focused(cross_entropy(scores, labels), options.gammas[member])
            weights = options.weights[member]
            return (losses if weights is None else losses * weights[labels]).mean(1)

        return by_member(own, scores, labels)

    def decode(self, scores: Tensor, mask: Tensor | None, limits: Limits, threshold: float) -> list[Prediction]:
        """The label ids with the highest score."""
        return list(scores.argmax(-1).tolist())

    def probabilities(self, scores: Tensor) -> list[list[float]]:
        """The softmax."""
        return list(torch.softmax(scores.double(), -1).tolist())


class Labels(Objective):
    """Any number of labels: a sigmoid and a binary cross-entropy for each label, optionally focal (Lin et al. 2017)."""

    def loss(self, scores: Tensor, labels: Tensor, mask: Tensor | None, limits: Limits, options: Options) -> Tensor:
        """Binary cross-entropy, the mean over rows and labels; see `Objective.loss`."""

        def own(scores: Tensor, labels: Tensor, member: int) -> Tensor:
            losses = functional.binary_cross_entropy_with_logits(scores, labels, reduction="none")
            return focused(losses, options.gammas[member]).mean((1, 2))

        return by_member(own, scores, labels)

    def decode(self, scores: Tensor, mask: Tensor | None, limits: Limits, threshold: float) -> list[Prediction]:
        """1 for each label whose probability is at least the threshold, 0 for the others."""
        return list((torch.sigmoid(scores.double()) >= threshold).long().tolist())

    def probabilities(self, scores: Tensor) -> list[list[float]]:
        """The sigmoid of each score; they do not sum to 1."""
        return list(torch.sigmoid(scores.double()).tolist())


class Grade(Objective):
    """One of K ordered classes: the continuation-ratio model, trained as CORN is (Shi, Cao & Raschka 2023, section 3).

    K − 1 scores give, for each class k except the highest, the probability that the label is above k if it is at least
    k: P(y > k | y ≥ k) = σ(s_k). Their products give P(y > k), which never rises with k and needs no tied weights, so
    any head works. The loss is −log P(y): the binary cross-entropies of the steps up to the label, as in CORN, summed
    for each example. (CORN divides by the number of all steps instead of examples; micro-batches need a mean over
    examples.) The statistical model is older: the sequential logit of Tutz 1991.
    """

    def loss(self, scores: Tensor, labels: Tensor, mask: Tensor | None, limits: Limits, options: Options) -> Tensor:
        """Mean negative log-likelihood; see `Objective.loss`."""
        steps = torch.arange(scores.shape[-1], device=scores.device)

        def own(scores: Tensor, labels: Tensor, member: int) -> Tensor:
            is_above = (labels[..., None] > steps).to(scores.dtype)
            counts = (labels[..., None] >= steps).to(scores.dtype)
            losses = functional.binary_cross_entropy_with_logits(scores, is_above, reduction="none")
            return (losses * counts).sum(-1).mean(1)

        return by_member(own, scores, labels)

    def decode(self, scores: Tensor, mask: Tensor | None, limits: Limits, threshold: float) -> list[Prediction]:
        """The median class of each row: the number of k for which P(y > k) is above one half."""
        return list((_above(scores) > 0.5).sum(-1).tolist())

    def probabilities(self, scores: Tensor) -> list[list[float]]:
        """P(y > k − 1) − P(y > k) for each class k."""
        above = _above(scores)
        ends = torch.ones_like(above[..., :1])
        return list((torch.cat([ends, above], -1) - torch.cat([above, 0 * ends], -1)).tolist())


class Score(Objective):
    """One number in a range: the squared error of the scaled score.

    The score is scaled to [-1, 1] for training, so that a fresh head predicts the middle of the range and the same
    learning rate suits classification and regression.
    """

    def loss(self, scores: Tensor, labels: Tensor, mask: Tensor | None, limits: Limits, options: Options) -> Tensor:
        """Mean squared error of the scaled score; see `Objective.loss`."""
        assert limits is not None, "a regression has a range"
        low, high = limits
        target = (labels - (low + high) / 2) / ((high - low) / 2)
        return (scores.squeeze(-1) - target).square().mean(1)

    def decode(self, scores: Tensor, mask: Tensor | None, limits: Limits, threshold: float) -> list[Prediction]:
        """The scores in the task's own range."""
        assert limits is not None, "a regression has a range"
        low, high = limits
        return list((scores.squeeze(-1).double() * ((high - low) / 2) + (low + high) / 2).tolist())


class Tags(Objective):
    """A tag for each word: cross-entropy of a softmax at each word."""

    def loss(self, scores: Tensor, labels: Tensor, mask: Tensor | None, limits: Limits, options: Options) -> Tensor:
        """Mean cross-entropy over the real words; see `Objective.loss`."""
        assert mask is not None, "tags are of words"
        return cross_entropy(scores, labels.masked_fill(~mask, IGNORED)).sum((1, 2)) / mask.sum((1, 2)).clamp(min=1)

    def decode(self, scores: Tensor, mask: Tensor | None, limits: Limits, threshold: float) -> list[Prediction]:
        """The tag with the highest score for each word."""
        assert mask is not None, "tags are of words"
        tags, real = scores.argmax(-1).cpu(), mask.cpu()  # once a batch: on a GPU, the host waits for each copy
        return [row[own].tolist() for row, own in zip(tags, real, strict=True)]


OBJECTIVES: Mapping[str, Objective] = {
    "label": OneLabel(), "labels": Labels(), "grade": Grade(), "score": Score(), "tags": Tags(), "classes": Tags(),
}  # fmt: skip
"""Target of a kind (`tasks.core.kinds.Target`) → its objective; a class for each word is a tag without spans."""


def by_member(loss: Callable[[Tensor, Tensor, int], Tensor], scores: Tensor, labels: Tensor) -> Tensor:
    """The members' losses, (T,), computed one member after another.

    Vectorised functions such as sigmoid round the last elements of a tensor differently from the others, so a member's
    last bits, and its gradient's, would depend on its neighbours.

    Args:
        loss: (scores (1, …), labels (1, …), member) → (1,).
    """
    members = range(len(scores))
    return torch.cat([loss(scores[m : m + 1], labels[m : m + 1], m) for m in members])


IGNORED = -100  # torch's own value for a target without a loss


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy per element: (…, outputs) and (…) → (…); 0 where the label is `IGNORED`."""
    flat = functional.cross_entropy(scores.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="none")
    return flat.view(labels.shape)


SMALLEST = 1e-12
"""The smallest 1 − p: below it a power of less than 1 has no finite slope."""


def focused(losses: Tensor, gamma: float) -> Tensor:
    """(1 − p)^gamma · −log p, from −log p: the focal loss of Lin et al. 2017, equation 4; unchanged if gamma is 0."""
    return losses if gamma == 0 else (-torch.expm1(-losses)).clamp(min=SMALLEST) ** gamma * losses


def _above(scores: Tensor) -> Tensor:
    """P(y > k) for each k except the highest: (batch, K − 1) float64."""
    return torch.sigmoid(scores.double()).cumprod(-1)
