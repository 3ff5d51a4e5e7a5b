"""BiMPM's matching layer (Wang, Hamza & Florian 2017, section 3.2): cosines of each state with the other sentence's.

A matching is l cosines, f_m(v, u; W)_k = cosine(W_k ∘ v, W_k ∘ u) (eqs. 3-4). Full matching (eq. 5): u is the state
that has read the whole other sentence. Max-pooling (eq. 6): the best u. Attentive (eqs. 7-9): u is the mean of the
other's states, weighted by their plain cosines with v. Max-attentive: u is the one whose plain cosine is the highest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.hyperparameters import Parameter
from meltpoint.adapters.layers.affine import Affine, Scores, elementwise
from meltpoint.adapters.layers.bundle import Bundle, shares
from meltpoint.adapters.layers.cosines import best_cosines, inverse_root, products
from meltpoint.adapters.layers.lstm import BiLSTM
from meltpoint.adapters.layers.pairs import Sentence, on_both, sentences

PERSPECTIVES = Parameter("bimpm.perspectives", 20, "cosines a matching, each with its own weights", 1, 512, shapes=True)
HIDDEN_SIZE = Parameter("bimpm.hidden_size", 100, "units of each direction of BiMPM's BiLSTMs", 1, 4096, shapes=True)
FIRST_BILSTM = Parameter(
    "bimpm.first_bilstm", True, "whether a BiLSTM reads the encoder's states before they are matched", shapes=True
)
"""The sizes are those of Wang, Hamza & Florian 2017, section 4.1."""

MATCHINGS = ("full", "maxpooling", "attentive", "max_attentive")
"""A direction's matchings, in the order of its weights and of the result."""


class Matching(nn.Module):
    """The first (context) BiLSTM, where it is wanted, and four matchings in both directions of both sentences.

    The onward direction matches the states of the onward LSTM, the other one those of the backward LSTM, each with
    weights of its own (W1 … W8, which both sentences share). Without the BiLSTM (arXiv 1907.05338, experiment C; how is
    not said) both directions match the encoder's whole states, since a transformer's state has read both sides; what
    is left of a direction is that full matching is against the other sentence's last state, or its first.

    Dropout acts on the BiLSTM's input and on the states that are matched. Initialisation: Kaiming (He et al. 2015).

    Args:
        inputs: size of a state of the encoder.
        bundle: the members; their `dropout` and the parameters above are taken.

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

        def fill(own: Tensor, generator: torch.Generator) -> None:
            nn.init.normal_(own, std=size**-0.5, generator=generator)

        self.weight = bundle.parameter(2, len(MATCHINGS), perspectives, size, fill=fill)

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


class Prediction(nn.Module):
    """The prediction layer (section 3.1): two fully connected layers, the hidden one half as wide as its input.

    Args:
        inputs: size of a pair's vector.
        outputs: size of the scores.
        bundle: the members; their `dropout` acts before both layers.
        nonlinearity: between them; the authors' is the tanh.
    """

    __call__: Callable[..., Tensor]

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


def read_both(reader: nn.Module, one: Sentence, two: Sentence) -> tuple[Sentence, Sentence]:
    """Both sentences through a module that takes states, (T or 1, batch, positions, size), and their mask."""
    first, second = on_both(lambda own: reader(*own), one, two)
    return (
        Sentence(first[:, :, : one.mask.shape[2]], one.mask),
        Sentence(second[:, :, : two.mask.shape[2]], two.mask),
    )  # fmt: skip


def ends(states: Tensor, mask: Tensor) -> Tensor:
    """The final states of a BiLSTM: the onward half's last real state ⊕ the backward half's first one.

    Args:
        states: (T, batch, positions, 2 * hidden).
        mask: (lanes, batch, positions) bool.

    Returns:
        (T, batch, 2 * hidden).
    """
    onward, backward = states.chunk(2, -1)
    return torch.cat([_last(onward, mask), backward[:, :, 0]], -1)


def _last(states: Tensor, mask: Tensor) -> Tensor:
    last = (mask.sum(-1) - 1)[:, :, None, None]  # (lanes, batch, 1, 1)
    return states.gather(2, last.expand(len(states), -1, -1, states.shape[-1])).squeeze(2)


Side = tuple[Tensor, Tensor, Tensor]
"""A sentence as it is matched: states (G, batch, longest, size), the state that full matching is against
(G, batch, size), and the mask (G, batch, longest). G counts directions of members."""


def _directions(sentence: Sentence, whole: bool) -> list[Tensor]:
    """A side's tensors with (T or 1 or lanes, directions or 1) where it has G.

    Args:
        sentence: the sentence that is matched.
        whole: True where both directions match the whole states; else each one its half of them.
    """
    states, mask = sentence
    onward, backward = (states, states) if whole else states.chunk(2, -1)
    seen = states[:, None] if whole else torch.stack([onward, backward], 1)
    return [seen, torch.stack([_last(onward, mask), backward[:, :, 0]], 1), mask[:, None]]


def by_members(one: Sequence[Tensor], two: Sequence[Tensor], weight: Tensor) -> list[Tensor]:
    """`match` of every member.

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
    """The four matchings of both sentences, each direction of each member by itself.

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
        roots: (G, batch, longest, matchings, l), the same under each perspective.
        end: (G, batch, 1, size), the state that full matching is against; end_roots: (G, batch, 1, l), as above.
    """

    states: Tensor
    mask: Tensor
    root: Tensor
    roots: Tensor
    end: Tensor
    end_roots: Tensor

    @classmethod
    def of(cls, side: Side, squared: Tensor) -> _Sized:
        """Cast to at least float32: bf16 has 8 bits, and the cosines of near words would be equal."""
        states, end, mask = side
        exact = torch.promote_types(states.dtype, torch.float32)
        # In memory of their own: a product's last bits may depend on where its factors begin.
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

    Equation 8 divides the sum by that of the cosines. A cosine knows no scale, so all that the division does to the
    matching is its sign, and the sign alone is taken: where the cosines sum to almost 0, the quotient would overflow.

    Args:
        alike: (G, batch, longest, other's longest).
        states: (G, batch, other's longest, size).
    """
    negative = alike.detach().sum(-1, keepdim=True) < 0
    return torch.where(negative, -alike, alike) @ states


def most_alike(alike: Tensor, mask: Tensor) -> Tensor:
    """1 for the other sentence's state with the highest cosine (max-attentive matching), else 0.

    A factor of a product, because the gradient of `gather` would scatter element by element.

    Args:
        alike: (G, batch, longest, other's longest).
        mask: (G, batch, other's longest).
    """
    best = alike.detach().masked_fill(~mask[:, :, None], float("-inf")).argmax(-1, keepdim=True)
    return torch.zeros_like(alike).scatter_(-1, best, 1.0)
