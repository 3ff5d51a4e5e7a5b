"""BiMPM's matching layer (Wang, Hamza & Florian 2017, section 3.2): cosines of each state with the other sentence's.

A matching is l cosines, f_m(v, u; W)_k = cosine(W_k ∘ v, W_k ∘ u) (eqs. 3-4). Full matching (eq. 5): u is the state
that has read the whole other sentence. Max-pooling (eq. 6): the best u. Attentive (eqs. 7-9): u is the mean of the
other's states, weighted by their plain cosines with v. Max-attentive: u is the state with the highest plain cosine.

Cosines come from products that W enters squared, Σ_d W²_kd v_d u_d, and the roots of Σ_d W²_kd v²_d and Σ_d W²_kd u²_d,
so no state is copied for each perspective. The backward pass recomputes intermediate results; only the states and, for
the best cosines, the indices of the winning pairs are saved. G counts the sets of weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.hyperparameters import Parameter
from meltpoint.adapters.layers.affine import Affine, Scores, elementwise, state_at
from meltpoint.adapters.layers.attention import Sentence, read_both, sentences
from meltpoint.adapters.layers.bundle import Bundle, Layer, normal, shares
from meltpoint.adapters.layers.lstm import BiLSTM

_NOTHING = 1e-12
"""The squared norm up to which a vector counts as zero; its cosines and their gradients are 0."""


def inverse_root(squared_norms: Tensor) -> Tensor:
    """1 over the root; 0 for a vector of zeros."""
    nothing = squared_norms <= _NOTHING
    return squared_norms.masked_fill(nothing, 1.0).rsqrt().masked_fill(nothing, 0.0)


def products(one: Tensor, two: Tensor, squared: Tensor) -> Tensor:
    """Σ_d W²_kd v_d u_d of states in pairs.

    Args:
        one, two: (G, batch, longest, size); the second's longest may be 1.
        squared: (G, l, size).

    Returns:
        (G, batch, longest, l).
    """
    return _Products.apply(one, two, squared)  # type: ignore[no-any-return, no-untyped-call]


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, one: Tensor, two: Tensor, squared: Tensor) -> Tensor:
        ctx.save_for_backward(one, two, squared)
        found = torch.bmm((one * two).flatten(1, 2), squared.transpose(1, 2))
        return found.view(*one.shape[:3], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        one, two, squared = ctx.saved_tensors  # type: ignore[attr-defined]
        flat = gradient.flatten(1, 2)
        through = torch.bmm(flat, squared).view(one.shape)
        for_two = (through * one).sum_to_size(two.shape)
        for_squared = torch.bmm(flat.transpose(1, 2), (one * two).flatten(1, 2))
        return through.mul_(two), for_two, for_squared


def best_cosines(
    one: Tensor, two: Tensor, squared: Tensor, one_root: Tensor, two_root: Tensor, both: Tensor
) -> tuple[Tensor, Tensor]:
    """Each position's best cosine with any real position of the other sentence, for each perspective.

    Args:
        one, two: states, (G, batch, p, size) and (G, batch, q, size).
        squared: (G, l, size), the perspectives' squared weights.
        one_root, two_root: (G, batch, p, l) and (G, batch, q, l), 1 over each state's norm for each perspective.
        both: (G, batch, p, q) bool, True where both positions are real.

    Returns:
        (G, batch, p, l) and (G, batch, q, l); 0 where masked and where the other sentence has no position.
    """
    roots = [root.permute(3, 0, 1, 2).flatten(1, 2).contiguous() for root in (one_root, two_root)]
    first, second = _Best.apply(one, two, squared, *roots, both.flatten(0, 1))  # type: ignore[no-untyped-call]
    return (
        first.view(-1, *one.shape[:3]).permute(1, 2, 3, 0),
        second.view(-1, *two.shape[:3]).permute(1, 2, 3, 0),
    )


class _Best(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, one: Tensor, two: Tensor, squared: Tensor, one_root: Tensor, two_root: Tensor, both: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The best of each row and column.

        Args:
            ctx: autograd's.
            one, two: (G, batch, p, size) and (G, batch, q, size).
            squared: (G, l, size).
            one_root, two_root: (l, G · batch, p) and (l, G · batch, q), 1 over each state's norm.
            both: (G · batch, p, q) bool, True where both positions are real.

        Returns:
            (l, G · batch, p) and (l, G · batch, q).
        """
        cosines = one.new_empty(len(one_root), *both.shape)
        back = two.flatten(0, 1).transpose(1, 2)
        for own, weight in zip(cosines, squared.unbind(1), strict=True):
            torch.bmm((one * weight[:, None, None]).flatten(0, 1), back, out=own)
        cosines.mul_(one_root[..., None]).mul_(two_root[:, :, None]).masked_fill_(~both, float("-inf"))
        (best_one, at_one), (best_two, at_two) = cosines.max(-1), cosines.max(-2)
        best_one, best_two = best_one.masked_fill(~both.any(-1), 0.0), best_two.masked_fill(~both.any(-2), 0.0)
        ctx.save_for_backward(one, two, squared, one_root, two_root, both, best_one, best_two, at_one, at_two)
        return best_one, best_two

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, for_one: Tensor, for_two: Tensor) -> tuple[Tensor | None, ...]:
        """Propagate through the winning pairs."""
        saved: tuple[Tensor, ...] = ctx.saved_tensors  # type: ignore[attr-defined]
        one, two, squared, one_root, two_root, both, best_one, best_two, at_one, at_two = saved
        for_one, for_two = for_one * both.any(-1), for_two * both.any(-2)
        dots = _won(for_one, for_two, at_one, at_two).mul_(one_root[..., None]).mul_(two_root[:, :, None])
        # A cosine is linear in each root: the root's gradient is the cosine's gradient times the cosine, over the root.
        roots = _won(for_one * best_one, for_two * best_two, at_one, at_two)
        for_roots = [_over(roots.sum(-1), one_root), _over(roots.sum(-2), two_root)]
        return *_through_products(dots, one, two, squared), *for_roots, None


def _won(for_one: Tensor, for_two: Tensor, at_one: Tensor, at_two: Tensor) -> Tensor:
    """Gradients at their pairs' positions: (l, N, p), (l, N, q) and the winners' indices → (l, N, p, q)."""
    found = for_one.new_zeros(*for_one.shape, for_two.shape[-1])
    found.scatter_(-1, at_one[..., None], for_one[..., None])
    return found.scatter_add_(-2, at_two[:, :, None], for_two[:, :, None])


def _over(numbers: Tensor, root: Tensor) -> Tensor:
    """`numbers` over `root`; 0 where the root is 0, for zero vectors and padding."""
    return (numbers / root).masked_fill(root == 0, 0.0)


def _through_products(dots: Tensor, one: Tensor, two: Tensor, squared: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of every product, (l, G · batch, p, q) → gradients of states and squared weights."""
    for_one, for_two, for_squared = torch.zeros_like(one), torch.zeros_like(two), torch.empty_like(squared)
    flat = two.flatten(0, 1)
    for number, own in enumerate(dots):
        weight = squared[:, number, None, None]
        reached = torch.bmm(own, flat).view(one.shape)
        for_one.addcmul_(reached, weight)
        for_squared[:, number] = reached.mul_(one).sum((1, 2))
        for_two.view(flat.shape).baddbmm_(own.transpose(1, 2), (one * weight).flatten(0, 1))
    return for_one, for_two, for_squared


PERSPECTIVES = Parameter("bimpm.perspectives", 20, "cosines per matching, each with own weights", 1, 512, shapes=True)
HIDDEN_SIZE = Parameter("bimpm.hidden_size", 100, "units of each direction of BiMPM's BiLSTMs", 1, 4096, shapes=True)
FIRST_BILSTM = Parameter(
    "bimpm.first_bilstm", True, "whether a BiLSTM reads the encoder's states before they are matched", shapes=True
)
"""The sizes are from Wang, Hamza & Florian 2017, section 4.1."""

MATCHINGS = ("full", "maxpooling", "attentive", "max_attentive")
"""A direction's matchings, in the order of its weights and of the result."""


class Matching(nn.Module):
    """The optional first (context) BiLSTM, and four matchings in both directions of both sentences.

    The forward direction matches the forward LSTM's states, and the backward direction the backward LSTM's, each with
    its own weights (W1 … W8, which both sentences share). Without the BiLSTM (arXiv 1907.05338, experiment C, which
    gives no details), both directions match the encoder's whole states, since a transformer's state has read both
    sides; the directions then differ only in full matching, against the other sentence's last state or its first.

    Dropout acts on the BiLSTM's input and on the states that are matched. Initialisation: Kaiming (He et al. 2015).

    Args:
        inputs: size of a state of the encoder.
        bundle: the members; their `dropout` and the parameters above apply.

    Attributes:
        dim: size of the result, 8 · l.
    """

    def __init__(self, inputs: int, bundle: Bundle) -> None:
        super().__init__()
        hidden, perspectives = bundle.size(HIDDEN_SIZE), bundle.size(PERSPECTIVES)
        self.dim = 2 * len(MATCHINGS) * perspectives
        self.bilstm = BiLSTM(inputs, bundle, hidden, 1) if bundle.size(FIRST_BILSTM) else None
        self.dropout = bundle.dropout()
        size = inputs if self.bilstm is None else hidden
        self.weight = bundle.parameter(2, len(MATCHINGS), perspectives, size, fill=normal(size**-0.5))

    def forward(self, states: Tensor, batch: Batch) -> tuple[Sentence, Sentence]:
        """Each sentence's matchings with the other: (T, batch, longest, dim) float32, 0 where masked.

        Args:
            states: (T or 1, batch, pieces, inputs) of any float type.
            batch: pairs.
        """
        first, second = sentences(states, batch)
        if self.bilstm is not None:
            first, second = read_both(self.bilstm, first, second)
        pair = [Sentence(self.dropout(own.states), own.mask) for own in (first, second)]
        with torch.autocast(states.device.type, enabled=False):
            sides = [_directions(own, self.bilstm is None) for own in pair]
            one, two = by_members(sides[0], sides[1], self.weight)
        return Sentence(one, first.mask), Sentence(two, second.mask)


class Prediction(Layer):
    """The prediction layer (section 3.1): two fully connected layers, the hidden one half as wide as its input.

    Args:
        inputs: size of a pair's vector.
        outputs: size of the scores.
        bundle: the members; their `dropout` acts before both layers.
        nonlinearity: the function between them; the authors use tanh.
    """

    def __init__(
        self, inputs: int, outputs: int, bundle: Bundle, nonlinearity: Literal["tanh", "relu"] = "tanh"
    ) -> None:
        super().__init__()
        self.nonlinearity = nonlinearity
        self.dropout = bundle.dropout()
        self.hidden = Affine(inputs, inputs // 2, bundle, nonlinearity)
        self.scores = Scores(inputs // 2, outputs, bundle)

    def forward(self, states: Tensor) -> Tensor:
        """(T, batch, inputs) → (T, batch, outputs) float32."""
        hidden = self.hidden(self.dropout(states))
        return self.scores(elementwise(torch.tanh, hidden) if self.nonlinearity == "tanh" else hidden.relu())


def ends(states: Tensor, mask: Tensor) -> Tensor:
    """The final states of a BiLSTM: the forward half's last real state ⊕ the backward half's first state.

    Args:
        states: (T, batch, positions, 2 * hidden).
        mask: (lanes, batch, positions) bool.

    Returns:
        (T, batch, 2 * hidden).
    """
    onward, backward = states.chunk(2, -1)
    return torch.cat([state_at(onward, mask.sum(-1) - 1), backward[:, :, 0]], -1)


Side = tuple[Tensor, Tensor, Tensor]
"""A sentence ready for matching: states (G, batch, longest, size), the state that full matching is against
(G, batch, size), and the mask (G, batch, longest). G counts directions of members."""


def _directions(sentence: Sentence, whole: bool) -> list[Tensor]:
    """A side's tensors, with dimensions (T or 1 or lanes, directions or 1) instead of G.

    Args:
        sentence: the sentence to match.
        whole: True if both directions match the whole states; otherwise each direction matches its half.
    """
    states, mask = sentence
    onward, backward = (states, states) if whole else states.chunk(2, -1)
    seen = states[:, None] if whole else torch.stack([onward, backward], 1)
    return [seen, torch.stack([state_at(onward, mask.sum(-1) - 1), backward[:, :, 0]], 1), mask[:, None]]


def by_members(one: Sequence[Tensor], two: Sequence[Tensor], weight: Tensor) -> list[Tensor]:
    """Apply `match` for every member.

    Args:
        one, two: `_directions` of the sentences.
        weight: (T, directions, matchings, l, size).

    Returns:
        Each sentence's (T, batch, longest, directions · matchings · l).
    """
    tensors = [own.expand(*weight.shape[:2], *own.shape[2:]) for own in (*one, *two)]
    found = []
    for *own, mine in shares(*tensors, weight):
        flat = [tensor.flatten(0, 1) for tensor in own]
        matched = match((flat[0], flat[1], flat[2]), (flat[3], flat[4], flat[5]), mine.flatten(0, 1))
        apart = [side.view(*mine.shape[:2], *side.shape[1:]) for side in matched]
        found.append([torch.cat(side.unbind(1), -1) for side in apart])
    return [torch.cat(side) for side in zip(*found, strict=True)]


def match(one: Side, two: Side, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The four matchings of both sentences, for each direction of each member separately.

    Args:
        one, two: the sentences.
        weight: (G, matchings, l, size).

    Returns:
        Each sentence's (G, batch, longest, matchings · l), float32 (or float64), 0 where masked.
    """
    squared = weight * weight
    first, second = _Sized.of(one, squared), _Sized.of(two, squared)
    alike = (first.states @ second.states.transpose(2, 3)) * first.root * second.root.transpose(2, 3)  # α of eq. 7
    both = first.mask[..., None] & second.mask[:, :, None]
    best = best_cosines(
        first.states, second.states, squared[:, 1], first.roots[:, :, :, 1], second.roots[:, :, :, 1], both
    )
    return (
        _match_one(first, second, alike, best[0], squared),
        _match_one(second, first, alike.transpose(2, 3), best[1], squared),
    )


class _Sized(NamedTuple):
    """A sentence in one direction, and the norms of its states.

    Attributes:
        states: (G, batch, longest, size), at least float32, 0 where masked.
        mask: (G, batch, longest) bool.
        root: (G, batch, longest, 1), 1 over each state's norm.
        roots: (G, batch, longest, matchings, l), the same for each perspective.
        end: (G, batch, 1, size), the state that full matching is against; end_roots: (G, batch, 1, l), its `roots`.
    """

    states: Tensor
    mask: Tensor
    root: Tensor
    roots: Tensor
    end: Tensor
    end_roots: Tensor

    @classmethod
    def of(cls, side: Side, squared: Tensor) -> _Sized:
        """Cast to at least float32: bf16 has 8 bits, too few to tell the cosines of similar words apart."""
        states, end, mask = side
        exact = torch.promote_types(states.dtype, torch.float32)
        # In separate memory: a product's last bits may depend on its factors' alignment.
        states = states.to(exact).masked_fill(~mask[..., None], 0.0).contiguous()
        end = end.to(exact)[:, :, None].contiguous()
        root = inverse_root((states * states).sum(-1, keepdim=True))
        roots = inverse_root(products(states, states, squared.flatten(1, 2)))
        end_roots = inverse_root(products(end, end, squared[:, 0]))
        return cls(states, mask, root, roots.view(*mask.shape, *squared.shape[1:3]), end, end_roots)


def _match_one(own: _Sized, other: _Sized, alike: Tensor, best: Tensor, squared: Tensor) -> Tensor:
    """One sentence's matchings with the other: (G, batch, longest, matchings · l).

    Args:
        own, other: the sentences.
        alike: (G, batch, longest, other's longest), the states' cosines α, 0 where either is masked.
        best: (G, batch, longest, l), the max-pooling matching.
        squared: (G, matchings, l, size).
    """
    roots = own.roots.unbind(3)
    full = products(own.states, other.end, squared[:, 0]) * roots[0] * other.end_roots
    mean = attentive(alike, other.states)
    mean_roots = inverse_root(products(mean, mean, squared[:, 2]))
    attended = products(own.states, mean, squared[:, 2]) * roots[2] * mean_roots
    chosen = most_alike(alike, other.mask)
    picked_roots = chosen @ other.roots[:, :, :, 3]
    max_attended = products(own.states, chosen @ other.states, squared[:, 3]) * roots[3] * picked_roots
    return torch.cat([full, best, attended, max_attended], -1).masked_fill(~own.mask[..., None], 0.0)


def attentive(alike: Tensor, states: Tensor) -> Tensor:
    """The other sentence's states weighted by their cosines and summed (eqs. 7-8).

    Equation 8 divides the sum by the sum of the cosines. A cosine ignores scale, so only the divisor's sign affects the
    matching. The code uses only this sign, because the quotient would overflow if the cosines sum to almost 0.

    Args:
        alike: (G, batch, longest, other's longest).
        states: (G, batch, other's longest, size).
    """
    negative = alike.detach().sum(-1, keepdim=True) < 0
    return torch.where(negative, -alike, alike) @ states


def most_alike(alike: Tensor, mask: Tensor) -> Tensor:
    """1 for the other sentence's state with the highest cosine (max-attentive matching), otherwise 0.

    It is the factor of a product, because the gradient of `gather` would scatter element by element.

    Args:
        alike: (G, batch, longest, other's longest).
        mask: (G, batch, other's longest).
    """
    best = alike.detach().masked_fill(~mask[:, :, None], float("-inf")).argmax(-1, keepdim=True)
    return torch.zeros_like(alike).scatter_(-1, best, 1.0)
