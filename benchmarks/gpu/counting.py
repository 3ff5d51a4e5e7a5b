"""FLOPs and bytes of a BERT, counted by hand: the floors below which no training step can go.

d is the size of a state, f that of the feed-forward layer, n the pieces of an input; a multiply-add is 2 FLOPs.
"""

from __future__ import annotations

from meltpoint.benchmarks.gpu.sizes import Size

BACKWARD = 2
"""Forward passes that a backward pass costs: one product for the inputs' gradients, one for the weights'."""

WEIGHT_BYTES = 42
"""A weight under autocast and AdamW: read in fp32 (4), its bf16 copy written (2), read forwards and backwards (2 + 2),
its gradient written (4); AdamW reads weight, gradient and two moments (16) and writes weight and moments (12)."""


def forward_flops(size: Size) -> int:
    """Of one example: queries, keys, values and output 8nd²; scores and their use 4n²d; feed-forward 4ndf; a layer."""
    n, d, f = size.length, size.dim, size.feed_forward
    return size.layers * (8 * n * d**2 + 4 * n**2 * d + 4 * n * d * f)


def training_flops(size: Size) -> int:
    """Of one example, forwards and backwards."""
    return (1 + BACKWARD) * forward_flops(size)


def weights(size: Size) -> int:
    """Parameters of the encoder without a pooler, biases and layer norms included."""
    d, f = size.dim, size.feed_forward
    embeddings = (size.vocabulary + size.positions + 2) * d + 2 * d
    layer = 4 * (d * d + d) + (d * f + f) + (f * d + d) + 2 * 2 * d
    return embeddings + size.layers * layer


def activation_bytes(size: Size) -> int:
    """Of one example in bf16: each product's inputs and outputs pass through memory once forwards, twice backwards.

    A piece and layer: d in and 3d out of the three projections, 3d in and d out of the attention (whose n² scores stay
    in the chip's own memory), d and d at its output, d and f, f and d in the feed-forward layer; whatever lies
    between products is thought of as fused into them.
    """
    numbers = 12 * size.dim + 2 * size.feed_forward
    return (1 + BACKWARD) * 2 * size.layers * size.length * numbers


def step_bytes(size: Size) -> int:
    """Of one training step."""
    return weights(size) * WEIGHT_BYTES + size.batch * activation_bytes(size)


def floor_seconds(size: Size, flops_per_second: float, bytes_per_second: float) -> float:
    """The time below which no training step can go: what takes longer of arithmetic and memory."""
    arithmetic = size.batch * training_flops(size) / flops_per_second
    return max(arithmetic, step_bytes(size) / bytes_per_second)
