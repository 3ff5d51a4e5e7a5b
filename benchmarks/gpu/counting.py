"""FLOPs and bytes of a BERT, counted analytically: lower bounds of the time of a training step.

d is the hidden size, f that of the feed-forward layer, n the subword tokens of an input; a multiply-add is 2 FLOPs.
"""

from __future__ import annotations

from meltpoint.benchmarks.gpu.sizes import Size

BACKWARD = 2
"""The cost of a backward pass in forward passes: one product each for the gradients of inputs and weights."""

WEIGHT_BYTES = 42
"""Bytes per weight and step under autocast and AdamW: read in fp32 (4), its bf16 copy written (2), read forwards and
backwards (2 + 2), its gradient written (4); AdamW reads weight, gradient and two moments (16) and writes weight and
moments (12)."""


def forward_flops(size: Size) -> int:
    """FLOPs of one example's forward pass: per layer 8nd² (q, k, v, output), 4n²d (attention), 4ndf (feed-forward)."""
    n, d, f = size.length, size.dim, size.feed_forward
    return size.layers * (8 * n * d**2 + 4 * n**2 * d + 4 * n * d * f)


def training_flops(size: Size) -> int:
    """FLOPs of the forward and backward pass of one example."""
    return (1 + BACKWARD) * forward_flops(size)


def weights(size: Size) -> int:
    """The number of parameters of the encoder without pooler, including biases and layer norms."""
    d, f = size.dim, size.feed_forward
    embeddings = (size.vocabulary + size.positions + 2) * d + 2 * d
    layer = 4 * (d * d + d) + (d * f + f) + (f * d + d) + 2 * 2 * d
    return embeddings + size.layers * layer


def activation_bytes(size: Size) -> int:
    """Bytes of one example's activations in bf16: inputs and outputs of each product, once forwards, twice backwards.

    Per token and layer: d in and 3d out of the three projections, 3d in and d out of the attention (whose n² scores
    stay in on-chip memory), d and d at its output, d and f, f and d in the feed-forward layer; operations between
    products count as fused into them.
    """
    numbers = 12 * size.dim + 2 * size.feed_forward
    return (1 + BACKWARD) * 2 * size.layers * size.length * numbers


def step_bytes(size: Size) -> int:
    """Bytes of memory traffic of one training step."""
    return weights(size) * WEIGHT_BYTES + size.batch * activation_bytes(size)


def floor_seconds(size: Size, flops_per_second: float, bytes_per_second: float) -> float:
    """A lower bound of the time of a training step: the larger of arithmetic and memory time."""
    arithmetic = size.batch * training_flops(size) / flops_per_second
    return max(arithmetic, step_bytes(size) / bytes_per_second)
