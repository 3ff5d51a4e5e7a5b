"""Layers over the positions of a row, for every member of a bundle, and between the two sentences of a pair.

Self-attention, a transformer, convolutions; sentences taken from a row, aligned softly, compared as vectors.

Self-attention within a row and attentive pooling compute in float32 even under autocast: their scores are unscaled sums
of hundreds of products, and bf16 has 8 bits. Padding does not change any layer's result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from meltpoint.adapters.data.batch import Batch, mapped
from meltpoint.adapters.layers.affine import Affine, exact, pool_rows
from meltpoint.adapters.layers.bundle import Bundle, Layer, lanes_of, normal, shares


def attend_to_itself(states: Tensor, mask: Tensor) -> Tensor:
    """Attention within a row: c_i = Σ_j softmax_j(x_i · x_j) x_j over the real tokens j, including i.

    The bi-attention of McCann et al. 2017, section 5, where both texts are the same. As in AllenNLP only padding is
    masked, not the diagonal.

    Args:
        states: x, (T, batch, pieces, dim) of any float type.
        mask: (lanes, batch, pieces) bool, True on real pieces.

    Returns:
        c, (T, batch, pieces, dim) float32; undefined on padding.
    """
    with torch.autocast(states.device.type, enabled=False):
        return pool_rows(_attended, states, mask)


def _attended(states: Tensor, mask: Tensor) -> Tensor:
    own = exact(states)
    scores = (own @ own.transpose(2, 3)).masked_fill(~mask[:, :, None], float("-inf"))
    return torch.softmax(scores, -1) @ own


class AttentivePooling(nn.Module):
    """Σ_i softmax_i(w · x_i) x_i over the real pieces, w learned (McCann et al. 2017, section 5).

    AllenNLP adds a bias to w · x_i, which the softmax cancels; this layer has none.

    Args:
        inputs: size of a state.
        bundle: the members. Initial weights have the variance of torch.nn.Linear's, 1 / (3 inputs), as in AllenNLP.
    """

    def __init__(self, inputs: int, bundle: Bundle) -> None:
        super().__init__()
        self.weight = bundle.parameter(1, inputs, fill=normal((3 * inputs) ** -0.5))

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """(T, batch, pieces, inputs) of any float type → (T, batch, inputs) float32."""
        with torch.autocast(states.device.type, enabled=False):
            return pool_rows(_weighted, states, mask, self.weight)


def _weighted(states: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
    own = exact(states)
    scores = (own @ weight[:, :, :, None])[..., 0].masked_fill(~mask, float("-inf"))
    return (torch.softmax(scores, -1)[:, :, None] @ own)[:, :, 0]


class Transformer(nn.Module):
    """Sinusoidal positions, then layers of self-attention and a feed-forward layer.

    Each layer normalises the sum of a sub-layer and its input (Vaswani et al. 2017, section 3.1), or, with
    `norm_first`, the input alone, and the last states once more (Xiong et al. 2020, "On Layer Normalization in the
    Transformer Architecture"). Dropout acts on the output of each sub-layer and on the sum of states and positions
    (Vaswani et al. 2017, section 5.4). With `norm_first` that sum passes through every layer, so it has no dropout:
    under a maximum over positions it made evaluation differ from training (docs/results/sim_transformer.md).
    Initialisation: Kaiming (He et al. 2015; arXiv 1907.05338 uses it for stacked heads).

    Args:
        dim: size of a state; a multiple of `heads`, and even.
        bundle: the members; their `dropout` applies.
        layers: number of layers.
        heads: attention heads of each layer.
        feed_forward: units of each layer's hidden layer.
        norm_first: whether each sub-layer reads normalised states.
    """

    def __init__(
        self, dim: int, bundle: Bundle, layers: int, heads: int, feed_forward: int, norm_first: bool
    ) -> None:  # fmt: skip
        super().__init__()
        self.dropout = None if norm_first else bundle.dropout()
        self.layers = nn.ModuleList(
            TransformerLayer(dim, bundle, heads, feed_forward, norm_first) for _ in range(layers)
        )
        self.norm = LayerNorm(dim, bundle) if norm_first else None

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """(T, batch, positions, dim) → the same shape, arbitrary on padding.

        Args:
            states: the states before positions are added.
            mask: (lanes, batch, positions) bool, True on real positions.
        """
        states = states + positions(states.shape[2], states.shape[3], states.device)
        if self.dropout is not None:
            states = self.dropout(states)
        for layer in self.layers:
            states = layer(states, mask)
        return states if self.norm is None else self.norm(states)


class TransformerLayer(nn.Module):
    """Self-attention and a feed-forward layer with a ReLU; arguments as in `Transformer`."""

    def __init__(self, dim: int, bundle: Bundle, heads: int, feed_forward: int, norm_first: bool) -> None:
        super().__init__()
        self.heads, self.norm_first = heads, norm_first
        self.projections = Affine(dim, 3 * dim, bundle)
        self.output = Affine(dim, dim, bundle)
        self.first_norm, self.second_norm = LayerNorm(dim, bundle), LayerNorm(dim, bundle)
        self.hidden = Affine(dim, feed_forward, bundle, "relu")
        self.back = Affine(feed_forward, dim, bundle)
        self.dropout = bundle.dropout()

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """(T, batch, positions, dim) → the same shape; the mask is as in `Transformer`."""
        if self.norm_first:
            states = states + self._attention(self.first_norm(states), mask)
            return states + self._feed_forward(self.second_norm(states))
        states = self.first_norm(states + self._attention(states, mask))
        return self.second_norm(states + self._feed_forward(states))

    def _attention(self, states: Tensor, mask: Tensor) -> Tensor:
        return self.dropout(self.output(self._attended(states, mask)))

    def _feed_forward(self, states: Tensor) -> Tensor:
        return self.dropout(self.back(functional.relu(self.hidden(states))))

    def _attended(self, states: Tensor, mask: Tensor) -> Tensor:
        """Every position's mix of all real positions: (T, batch, positions, dim).

        On a CPU this runs one member at a time, to keep the bundle's promise: a batched bf16 product's rounding depends
        on its batch.
        """
        projected, masks = self.projections(states), mask.expand(len(states), -1, -1)
        return torch.cat([self._mixed(*share) for share in shares(projected, masks)])

    def _mixed(self, projected: Tensor, mask: Tensor) -> Tensor:
        """(members, batch, positions, 3 · dim) and (members, batch, positions) → (members, batch, positions, dim)."""
        members, batch, count, _ = projected.shape
        parts = projected.view(members * batch, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)  # each (members · batch, heads, positions, dim / heads)
        keys = mask.flatten(0, 1)[:, None, None].expand(-1, -1, count, -1)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=keys)
        return mixed.transpose(1, 2).reshape(members, batch, count, -1)


class LayerNorm(Layer):
    """Layer normalisation (Ba, Kiros & Hinton 2016) with a scale and shift per member; float32 even under autocast."""

    def __init__(self, dim: int, bundle: Bundle) -> None:
        super().__init__()
        self.weight = bundle.parameter(dim, fill=lambda own, _: nn.init.ones_(own))
        self.bias = bundle.parameter(dim)

    def forward(self, states: Tensor) -> Tensor:
        """(T, batch, positions, dim) of any float type → the same shape."""
        exact = states.to(torch.promote_types(states.dtype, torch.float32))
        normed = functional.layer_norm(exact, exact.shape[-1:])
        return torch.addcmul(self.bias[:, None, None], normed, self.weight[:, None, None])


def positions(count: int, dim: int, device: torch.device) -> Tensor:
    """Vaswani et al. 2017, section 3.5: sines at even indices, cosines at odd ones, (count, dim) float32."""
    places = torch.arange(count, device=device, dtype=torch.float32)[:, None]
    rates = 10_000 ** (-torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim)
    return torch.stack([(places * rates).sin(), (places * rates).cos()], -1).flatten(1)


def windows(states: Tensor, size: int) -> Tensor:
    """Each token's state concatenated with its neighbours'; zeros beyond the first and the last token.

    Args:
        states: (…, pieces, dim).
        size: tokens in a window; an even window has one more token after its middle than before it.

    Returns:
        (…, pieces, size * dim), the window's states one after another.
    """
    before = (size - 1) // 2
    padded = functional.pad(states, (0, 0, before, size - 1 - before))
    return torch.cat([padded.narrow(-2, offset, states.shape[-2]) for offset in range(size)], -1)


class GroupedConvolution(nn.Module):
    """Convolutions side by side, each over its own channels, without biases; the caller pads with zeros.

    Computed as windows and a batched product, one per member and group, so that the gradient is also a product.

    Args:
        inputs: channels that a group reads.
        outputs: channels that a group returns.
        size: subword tokens in a window.
        groups: number of convolutions.
        bundle: the members.
        std: standard deviation of the initial weights.
    """

    def __init__(self, inputs: int, outputs: int, size: int, groups: int, bundle: Bundle, std: float) -> None:
        super().__init__()
        self.size = size
        self.weight = bundle.parameter(groups, outputs, size * inputs, fill=normal(std))

    def forward(self, states: Tensor) -> Tensor:
        """(T, groups, batch, pieces, inputs) → (T, groups, batch, pieces, outputs)."""
        rows = windows(states, self.size).flatten(2, 3).flatten(0, 1)  # (T * groups, batch * pieces, size * inputs)
        found = torch.bmm(rows, self.weight.flatten(0, 1).transpose(1, 2))
        return found.view(*states.shape[:-1], -1)


class Sentence(NamedTuple):
    """One of the two sentences of every pair in a batch.

    Attributes:
        states: (T or 1, batch, longest, dim), 0 where masked.
        mask: (lanes, batch, longest) bool, True on the sentence's own tokens. An empty sentence has one zero state with
            a mask of True, so that no softmax, mean or maximum is empty.
    """

    states: Tensor
    mask: Tensor


def sentences(states: Tensor, batch: Batch) -> tuple[Sentence, Sentence]:
    """The first and the second sentences of all pairs, each padded to the longest on its side.

    On a GPU, this waits once for the device, to read the two longest lengths.

    Args:
        states: (T or 1, batch, pieces, dim).
        batch: pairs; `parts` gives each piece's sentence, and a sentence's pieces are contiguous.
    """
    assert batch.parts is not None, "a batch of pairs has `parts`"
    parts = lanes_of(batch.parts, batch.lanes)
    inside = torch.stack([parts == 1, parts == 2])  # (2, lanes, batch, pieces)
    lengths = inside.sum(-1)
    first, second = lengths.amax((1, 2)).clamp(min=1).tolist()
    return _sentence(states, inside[0], lengths[0], first), _sentence(states, inside[1], lengths[1], second)


def _sentence(states: Tensor, inside: Tensor, lengths: Tensor, longest: int) -> Sentence:
    """One sentence of every pair, from the mask of its tokens: (lanes, batch, pieces)."""
    bundles, rows, pieces, dim = states.shape
    device = states.device
    start = inside.int().argmax(-1, keepdim=True)  # the first piece inside; (lanes, batch, 1)
    row = torch.arange(bundles * rows, device=device).view(bundles, rows, 1)
    index = torch.arange(longest, device=device)
    there = (start + index).clamp(max=pieces - 1) + row * pieces  # (bundles, batch, longest)
    back = (torch.arange(pieces, device=device) - start).clamp(0, longest - 1) + row * longest
    own = index < lengths[..., None]
    is_real, has_gone = (part.expand(bundles, -1, -1).reshape(-1, 1) for part in (own, inside))
    picked = mapped(
        states.reshape(-1, dim),
        lambda rows: rows.index_select(0, there.flatten()).mul_(is_real),
        lambda gradient: gradient.index_select(0, back.flatten()).mul_(has_gone),
    )
    return Sentence(picked.view(bundles, rows, longest, dim), index < lengths[..., None].clamp(min=1))


def on_both(read: Callable[[Sentence], Tensor], one: Sentence, two: Sentence) -> tuple[Tensor, Tensor]:
    """Apply `read` to each sentence; the results may have extra positions at the end.

    A GPU reads both at once, as rows of one batch, because a recurrence's time depends on its steps. A CPU reads one
    after the other, because the shorter sentence needs fewer steps.
    """
    if not one.states.is_cuda:
        return read(one), read(two)
    rows = one.states.shape[1]
    found = read(side_by_side(one, two))
    return found[:, :rows], found[:, rows:]


def read_both(reader: nn.Module, one: Sentence, two: Sentence) -> tuple[Sentence, Sentence]:
    """Pass both sentences through a module that takes states, (T or 1, batch, positions, size), and their mask."""
    first, second = on_both(lambda own: reader(*own), one, two)
    return (
        Sentence(first[:, :, : one.mask.shape[2]], one.mask),
        Sentence(second[:, :, : two.mask.shape[2]], two.mask),
    )  # fmt: skip


def side_by_side(one: Sentence, two: Sentence) -> Sentence:
    """Two sentences as rows of one batch: (T or 1, 2 * batch, longest of both, dim)."""
    longest = max(one.states.shape[2], two.states.shape[2])
    states = [functional.pad(own.states, (0, 0, 0, longest - own.states.shape[2])) for own in (one, two)]
    masks = [functional.pad(own.mask, (0, longest - own.mask.shape[2])) for own in (one, two)]
    return Sentence(torch.cat(states, 1), torch.cat(masks, 1))


def enhance(one: Sentence, two: Sentence) -> tuple[Sentence, Sentence]:
    """Each state with its alignment in the other sentence, their difference, and their product.

    Chen et al. 2017, section 3.2, equations 11 to 15. Computed in float32 even under autocast: the alignment's scores
    are products over a whole state and may be in the hundreds, where bf16 has only whole numbers.

    Returns:
        Both sentences with states of (T or 1, batch, longest, 4 * dim): [a; ã; a − ã; a ∗ ã]. Padding is aligned with
        nothing, and its states have no meaning.
    """
    with torch.autocast(one.states.device.type, enabled=False):
        masks = [own.mask.expand(len(one.states), -1, -1) for own in (one, two)]
        found = [_enhanced(*share) for share in shares(one.states, two.states, *masks)]
    first, second = (torch.cat(states) for states in zip(*found, strict=True))
    return Sentence(first, one.mask), Sentence(second, two.mask)


def _enhanced(one: Tensor, two: Tensor, one_mask: Tensor, two_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Some members' enhanced states, from (members, batch, longest, dim) and (members, batch, longest)."""
    one, two = exact(one), exact(two)
    scores = one @ two.transpose(2, 3)  # eq. 11: (members, batch, longest of one, longest of two)
    aligned_one = _softmax(scores, two_mask) @ two  # eq. 12
    aligned_two = _softmax(scores.transpose(2, 3), one_mask) @ one  # eq. 13
    return _enhancement(one, aligned_one), _enhancement(two, aligned_two)


def _softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax weights over the last dimension where a (members, batch, positions) mask is True."""
    return scores.masked_fill(~mask[:, :, None], float("-inf")).softmax(-1)


def _enhancement(states: Tensor, aligned: Tensor) -> Tensor:
    """[a; ã; a − ã; a ∗ ã], equations 14 and 15."""
    return torch.cat([states, aligned, states - aligned, states * aligned], -1)


KIROS, GLUE = "kiros", "glue"
PARTS = {KIROS: 2, GLUE: 4}
"""The size of a pair's features, in vectors."""


def compared(first: Tensor, second: Tensor, pair: str) -> Tensor:
    """(T or 1, batch, dim), twice → (T or 1, batch, 2 or 4 · dim).

    Args:
        pair: [|u − v|; u ∗ v] (`kiros`: Kiros et al. 2015, section 3.2), or u and v before it (`glue`: Wang et al.
            2018, section 4).
    """
    own = [first, second] if pair == GLUE else []
    return torch.cat([*own, (first - second).abs(), first * second], -1)
