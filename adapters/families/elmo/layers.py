"""ELMo's layers: the characters of words, their tokenizer and CNN, and the bidirectional language model.

A word's piece id is a digest of its characters, the same in every process, because cached features are keyed by pieces.
The mapping from ids to characters is kept per process, not per tokenizer, since a worker keeps tokenised splits longer
than encoders.

`torch.nn.LSTM` has a projection but no clipping. The backward pass is written by hand, because autograd's graph of a
dozen small operations per step costs more than the arithmetic.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional

from meltpoint.adapters.data.input_format import Prompts, Span
from meltpoint.adapters.families.elmo.files import WORD_LENGTH, CharacterOptions, LstmOptions

Spelling = tuple[int, ...]
"""A word's characters, including the markers of its beginning and end; 3 to 50 of them, 2 for the empty word."""

# allennlp.data.token_indexers.elmo_indexer.ELMoCharacterMapper; 0 to 255 are bytes. (AllenNLP adds 1 to each, so that
# 0 can mask a word; here the batch masks words, and a character's id is its row in the released table.)
SENTENCE_BEGINS, SENTENCE_ENDS, WORD_BEGINS, WORD_ENDS, PADDING = range(256, 261)
CHARACTERS = 261

BEFORE: Spelling = (WORD_BEGINS, SENTENCE_BEGINS, WORD_ENDS)
"""`<S>`, read before each sentence."""
AFTER: Spelling = (WORD_BEGINS, SENTENCE_ENDS, WORD_ENDS)
"""`</S>`, read after each sentence."""

_SPELLINGS: dict[int, Spelling] = {}


def spell(word: str) -> Spelling:
    """A word's characters: at most 48 bytes, as in AllenNLP, even if that splits a multi-byte letter."""
    if word in ("<S>", "</S>"):
        return BEFORE if word == "<S>" else AFTER
    return (WORD_BEGINS, *word.encode("utf-8", "ignore")[: WORD_LENGTH - 2], WORD_ENDS)


@cache
def piece_of(word: str) -> int:
    """The piece id of a word: 63 bits of the BLAKE2b digest of its characters.

    Among a million words, two share a piece with a probability of 5e-8.
    """
    spelling = spell(word)
    digest = hashlib.blake2b(np.array(spelling, dtype="<i2").tobytes(), digest_size=8).digest()
    piece = int.from_bytes(digest, "little") >> 1
    known = _SPELLINGS.setdefault(piece, spelling)
    assert known == spelling, f"two words have the same digest: {known} and {spelling}"
    return piece


def spelling_of(piece: int) -> Spelling:
    """The characters of a piece id that `piece_of` returned in this process."""
    assert piece in _SPELLINGS, f"piece {piece} belongs to no word that this process has tokenised"
    return _SPELLINGS[piece]


def as_tensor(spellings: Sequence[Spelling], length: int) -> Tensor:
    """Spellings, padded: (words, length) int64."""
    rows = np.full((len(spellings), length), PADDING, dtype=np.int64)
    for row, spelling in zip(rows, spellings, strict=True):
        row[: len(spelling)] = spelling
    return torch.from_numpy(rows)


class ElmoTokenizer:
    """Splits a text at white space (`str.split`), without lower-casing and special tokens.

    ELMo was trained on tokenised text: "good ." is two frequent words, "good." is one rare word. Raw text therefore
    passes through a word tokenizer first (`input_format.separate_words`).
    """

    pad_piece = 0
    max_pieces = 1000
    """An LSTM has no longest input, but the memory for its gradients grows with each word; no task has longer texts."""
    joins_pairs = False
    prompts = Prompts()

    def sentence(self, text: str, limit: int) -> tuple[list[int], list[int], int]:
        """(pieces, [], number of words cut) of at most `limit` words; a text without words is one empty word."""
        words = text.split() or [""]
        return [piece_of(word) for word in words[:limit]], [], max(0, len(words) - limit)

    def pair(self, first: str, second: str, limit: int) -> tuple[list[int], list[int], tuple[Span, Span], int]:
        """Refuse a pair: ELMo encodes the sentences of a pair separately.

        Raises:
            ValueError: always.
        """
        raise ValueError("ELMo reads one sentence at a time; use pairing: separate, or auto.")

    def word(self, word: str) -> list[int]:
        """The single piece of a word, including any white space in it."""
        return [piece_of(word)]

    def frame(self, pieces: Sequence[int]) -> tuple[list[int], list[int], int]:
        """(the pieces unchanged, [], 0): the encoder itself adds `<S>` and `</S>`."""
        return list(pieces), [], 0


CHUNK = 64
"""Words per pass: short words are not padded to the longest word, and the activations of a pass fit into the cache."""


class Highway(nn.Module):
    """y = c ∘ relu(W_t x + b_t) + (1 - c) ∘ x with c = sigmoid(W_c x + b_c) (Srivastava et al. 2015, eq. 3).

    The gate is called `carry` as in the released files, although it multiplies the transformed part.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.transform = nn.Linear(size, size)
        self.carry = nn.Linear(size, size)

    def forward(self, words: Tensor) -> Tensor:
        """(words, size) → (words, size)."""
        moved: Tensor = words + self.carry(words).sigmoid() * (self.transform(words).relu() - words)
        return moved


class CharacterCNN(nn.Module):
    """Context-independent word vectors from characters (Kim et al. 2016; Jozefowicz et al. 2016, section 3).

    Args:
        options: the sizes of its layers.
        dim: size of a word's vector.
    """

    def __init__(self, options: CharacterOptions, dim: int) -> None:
        super().__init__()
        size = options.embedding.dim
        filters = sum(number for _, number in options.filters)
        self.characters = nn.Parameter(torch.randn(CHARACTERS, size))
        self.convolutions = nn.ModuleList(nn.Conv1d(size, number, width) for width, number in options.filters)
        self.activation = torch.relu if options.activation == "relu" else torch.tanh
        self.highways = nn.ModuleList(Highway(filters) for _ in range(options.n_highway))
        self.projection = nn.Linear(filters, dim)
        self._widest = max(width for width, _ in options.filters)

    def forward(self, spellings: Sequence[Spelling]) -> Tensor:
        """The words' vectors, in their order: (words, dim)."""
        order = sorted(range(len(spellings)), key=lambda number: len(spellings[number]))
        chunks = [order[start : start + CHUNK] for start in range(0, len(order), CHUNK)]
        filtered = torch.cat([self._filtered([spellings[number] for number in chunk]) for chunk in chunks])
        for highway in self.highways:
            filtered = highway(filtered)
        place = torch.empty(len(order), dtype=torch.int64)
        place[torch.tensor(order)] = torch.arange(len(order))
        projected: Tensor = self.projection(filtered)
        return projected.index_select(0, place.to(projected.device))

    def _filtered(self, spellings: Sequence[Spelling]) -> Tensor:
        """Each filter's maximum over a word: (words, filters).

        Words are defined with 50 characters, including padding. All windows of padding alone have the same value, so
        one such window per filter suffices.
        """
        length = min(WORD_LENGTH, max(map(len, spellings)) + self._widest)
        read = functional.embedding(as_tensor(spellings, length).to(self.characters.device), self.characters)
        read = read.transpose(1, 2)
        return self.activation(torch.cat([filters(read).amax(-1) for filters in self.convolutions], -1))


class Clips(NamedTuple):
    """The largest absolute values of a memory cell and of an output; infinity for no clipping."""

    memory: float = math.inf
    output: float = math.inf


def rows_at(lengths: Sequence[int]) -> list[int]:
    """The number of unfinished rows at each step; rows are ordered by length, the longest first."""
    assert all(one >= two for one, two in pairwise(lengths)), "the longest row comes first"
    ending = [0] * (lengths[0] + 1)
    for length in lengths:
        ending[length] += 1
    return [len(lengths) - ended for ended in accumulate(ending)][:-1]


class ProjectedLSTM(torch.autograd.Function):
    """G independent LSTMs, each left to right over rows of different lengths.

    Sak et al. 2014, section 2 (without peepholes), and TensorFlow's `LSTMCell` with `num_proj`, `cell_clip` and
    `proj_clip`, with its order of gates: input, new, forget, output. With a_t = W [x_t; h_{t-1}] + b:
        c_t = clip(σ(a_f) ∘ c_{t-1} + σ(a_i) ∘ tanh(a_n));   h_t = clip(P (σ(a_o) ∘ tanh(c_t)))
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, inputs: Tensor, kernel: Tensor, bias: Tensor, projection: Tensor, lengths: Sequence[int],
        clips: Clips, keeps: bool,
    ) -> Tensor:  # fmt: skip
        """Run every LSTM over its rows.

        Args:
            ctx: autograd's context.
            inputs: (G, steps, batch, inputs).
            kernel: (G, inputs + size, 4 * cells).
            bias: (G, 4 * cells).
            projection: (G, cells, size).
            lengths: the rows' lengths, the longest first; the first is `steps`.
            clips: limits of memory and output.
            keeps: whether to keep all memories for the backward pass (the function cannot tell, because autograd is
                always off inside it).

        Returns:
            The output of every step, (G, steps, batch, size), 0 beyond a row's end.
        """
        groups, steps, batch, width = inputs.shape
        cells, size = projection.shape[1:]
        active = rows_at(lengths)
        # One product over all steps' inputs; each step adds the recurrent product and activates its gates in place.
        gates = torch.baddbmm(bias[:, None], inputs.flatten(1, 2), kernel[:, :width]).view(groups, steps, batch, 4, -1)
        across = kernel[:, width:]
        outputs = inputs.new_zeros(groups, steps + 1, batch, size)
        memory = inputs.new_zeros(groups, steps + 1 if keeps else 1, batch, cells)
        for step, rows in enumerate(active):
            gate = gates[:, step, :rows]
            gate.flatten(2).baddbmm_(outputs[:, step, :rows], across)
            inner, new, forget, outer = gate[:, :, 0].sigmoid_(), gate[:, :, 1].tanh_(), *_sigmoid(gate[:, :, 2:])
            now = memory[:, (step + 1) * keeps, :rows]
            torch.mul(memory[:, step * keeps, :rows], forget, out=now).addcmul_(inner, new)
            now.clamp_(-clips.memory, clips.memory)
            projected = torch.bmm(now.tanh().mul_(outer), projection)
            torch.clamp(projected, -clips.output, clips.output, out=outputs[:, step + 1, :rows])
        ctx.save_for_backward(inputs, kernel, projection, gates, memory, outputs)
        ctx.active, ctx.clips = active, clips  # type: ignore[attr-defined]
        return outputs[:, 1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Backpropagation through time; each weight's gradient is one product over all steps, at the end."""
        inputs, kernel, projection, gates, memory, outputs = ctx.saved_tensors  # type: ignore[attr-defined]
        clips: Clips = ctx.clips  # type: ignore[attr-defined]
        width = inputs.shape[-1]
        back, lift = kernel[:, width:].transpose(1, 2), projection.transpose(1, 2)
        scores, produced = torch.zeros_like(gates), torch.zeros_like(memory[:, 1:])
        projected = torch.zeros_like(outputs[:, 1:])
        carried, returned = torch.zeros_like(memory[:, 0]), torch.zeros_like(outputs[:, 0])
        for step, rows in reversed(list(enumerate(ctx.active))):  # type: ignore[attr-defined]
            inner, new, forget, outer = gates[:, step, :rows].unbind(2)
            before, cells = memory[:, step, :rows], memory[:, step + 1, :rows]
            score, held, here = scores[:, step, :rows], carried[:, :rows], projected[:, step, :rows]
            torch.add(gradient[:, step, :rows], returned[:, :rows], out=here)
            here.masked_fill_(outputs[:, step + 1, :rows].abs() >= clips.output, 0)  # clipped values have no gradient
            lifted, reached = torch.bmm(here, lift), cells.tanh()
            torch.mul(outer, reached, out=produced[:, step, :rows])
            held += _through_tanh(lifted * outer, reached)
            held.masked_fill_(cells.abs() >= clips.memory, 0)
            score[:, :, 0] = _through_sigmoid(held * new, inner)
            score[:, :, 1] = _through_tanh(held * inner, new)
            score[:, :, 2] = _through_sigmoid(held * before, forget)
            score[:, :, 3] = _through_sigmoid(lifted * reached, outer)
            held *= forget
            returned[:, :rows] = torch.bmm(score.flatten(2), back)
        flat, needs = scores.flatten(3).flatten(1, 2), ctx.needs_input_grad  # type: ignore[attr-defined]
        into = torch.bmm(flat, kernel[:, :width].transpose(1, 2)).view_as(inputs) if needs[0] else None
        if not any(needs[1:4]):
            return into, *[None] * 6
        given = torch.cat([inputs, outputs[:, :-1]], -1).flatten(1, 2)
        weights = torch.bmm(given.transpose(1, 2), flat)
        lifting = torch.bmm(produced.flatten(1, 2).transpose(1, 2), projected.flatten(1, 2))
        return into, weights, flat.sum(1), lifting, *[None] * 3


_through_sigmoid, _through_tanh = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward
"""(gradient of the output, the output) → gradient of the input, in one operation."""


def _sigmoid(gates: Tensor) -> tuple[Tensor, Tensor]:
    """Two adjacent gates, activated in place."""
    one, two = gates.sigmoid_().unbind(2)
    return one, two


FORGET_BIAS = 1.0
"""TensorFlow's LSTMCell adds it to the forget gate's pre-activation; the released biases do not include it."""


class Layer(nn.Module):
    """One layer with both directions; its parameters have the layout of the released files.

    Attributes:
        kernel: (2, 2 * size, 4 * cells), the weights of the input and of the previous output; gates: input, new,
            forget, output.
        forward_bias, backward_bias: (4 * cells,); separate vectors, so that weight decay skips them.
        projection: (2, cells, size).
    """

    def __init__(self, size: int, cells: int, clips: Clips) -> None:
        super().__init__()
        self.clips = clips
        self.kernel = nn.Parameter(torch.randn(2, 2 * size, 4 * cells) / math.sqrt(2 * size))
        self.forward_bias = nn.Parameter(torch.zeros(4 * cells))
        self.backward_bias = nn.Parameter(torch.zeros(4 * cells))
        self.projection = nn.Parameter(torch.randn(2, cells, size) / math.sqrt(cells))

    def forward(self, inputs: Tensor, lengths: Sequence[int]) -> Tensor:
        """(2, steps, batch, size) → (2, steps, batch, size).

        On a CPU the directions run one after the other, so that the weights stay in the cache; on a GPU they share each
        matrix product.
        """
        bias = torch.stack([self.forward_bias, self.backward_bias]).view(2, 4, -1)
        opened = (bias + bias.new_tensor([0.0, 0.0, FORGET_BIAS, 0.0])[:, None]).flatten(1)
        shares = 1 if inputs.is_cuda else 2
        given = zip(*(part.chunk(shares) for part in (inputs, self.kernel, opened, self.projection)), strict=True)
        keeps = torch.is_grad_enabled() and any(one.requires_grad for one in (inputs, *self.parameters()))
        return torch.cat(
            [ProjectedLSTM.apply(*tensors, lengths, self.clips, keeps) for tensors in given]  # type: ignore[no-untyped-call]
        )


class LanguageModel(nn.Module):
    """All layers of the language model.

    Dropout is applied to each layer's input, as in ELMo's training (allenai/bilm-tf, training.py: `DropoutWrapper`
    around `ResidualWrapper`, so that the skip connection gets the dropped input), and not to the top layer's output,
    where the head has its own dropout.
    """

    def __init__(self, options: LstmOptions) -> None:
        super().__init__()
        clips = Clips(options.cell_clip or math.inf, options.proj_clip or math.inf)
        layers = (Layer(options.projection_dim, options.dim, clips) for _ in range(options.n_layers))
        self.layers = nn.ModuleList(layers)
        self.dropout = nn.Dropout(0.0)
        self.skips = options.use_skip_connections

    def forward(self, inputs: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        """Run both directions over rows.

        Args:
            inputs: (2, steps, batch, size): the rows' words, and the same words reversed within each row.
            lengths: the rows' lengths, the longest first.

        Returns:
            Each layer's states, (2, steps, batch, size), with the second direction in reversed order.
        """
        states, layers = inputs, []
        for number, layer in enumerate(self.layers):
            given = self.dropout(states)
            states = layer(given, lengths)
            if self.skips and number:
                states = states + given
            layers.append(states)
        return layers
