"""Work that nobody needs is not done, counted in floating-point operations.

Gradual unfreezing saves the backward pass below the lowest thawed group, a head that reads [CLS] most of the top layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.data.unpadding import places_of
from meltpoint.adapters.encoder import Encoder

ROWS, PIECES = 2, 7
DIM, WIDE, LAYERS = 32, 64, 2  # tests/adapters/conftest.py, SIZES


def thaw_from(encoder: Encoder, lowest: int) -> None:
    """Freeze the groups below `lowest`, as the loop does: no `requires_grad`, no gradient."""
    for index, group in enumerate(encoder.layer_groups()):
        for parameter in group.parameters:
            parameter.requires_grad_(index >= lowest)
            parameter.grad = None


def backward_work(encoder: Encoder, lowest: int) -> int:
    """FLOPs of a backward pass with the groups from `lowest` up thawed."""
    thaw_from(encoder, lowest)
    torch.manual_seed(0)
    pieces = torch.randint(5, 40, (ROWS, PIECES))
    batch = Batch((0, 1), pieces, torch.ones_like(pieces, dtype=torch.bool), torch.zeros_like(pieces))
    loss = encoder.train()(batch)[-1].square().sum()
    with FlopCounterMode(display=False) as counter:
        loss.backward()
    return int(counter.get_total_flops())


PRODUCT = 2 * ROWS * PIECES * DIM * DIM
"""FLOPs of one square linear layer, in one direction."""
LINEARS = 2 * (4 * PRODUCT + 2 * PRODUCT * WIDE // DIM)
"""A layer's backward pass through its linear layers: the gradients of weights and of inputs."""
ATTENTION = 4 * 2 * ROWS * PIECES * PIECES * DIM
"""Four batched products."""


@pytest.mark.parametrize("lowest", [0, 1, 2])
def test_the_backward_pass_ends_at_the_lowest_thawed_group(load_tiny: Callable[[str], Encoder], lowest: int):
    layers = LAYERS if lowest <= 1 else 1
    # The lowest thawed layer needs no gradient of its input: three products (query, key, value) are saved.
    saved = 3 * PRODUCT if lowest > 0 else 0
    assert backward_work(load_tiny("bert"), lowest) == layers * (LINEARS + ATTENTION) - saved


def test_frozen_groups_get_no_gradient(load_tiny: Callable[[str], Encoder]):
    encoder = load_tiny("bert")
    backward_work(encoder, 2)
    *frozen, thawed = encoder.layer_groups()
    assert all(parameter.grad is None for group in frozen for parameter in group.parameters)
    assert all(parameter.grad is not None for parameter in thawed.parameters)


def forward_products(encoder: Encoder, batch: Batch) -> int:
    """FLOPs of a forward pass in linear layers."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        encoder.top(batch)
    return int(counter.get_flop_counts()["Global"][torch.ops.aten.addmm])


def test_of_the_top_layer_only_keys_and_values_are_computed_for_pieces_that_no_head_reads(
    load_tiny: Callable[[str], Encoder],
):
    encoder, lengths = load_tiny("bert"), np.array([4, PIECES])
    mask = torch.arange(PIECES) < torch.from_numpy(lengths)[:, None]
    pieces = torch.randint(5, 40, (ROWS, PIECES)) * mask
    places, ascending = places_of(lengths)
    batch = Batch((0, 1), pieces, mask, torch.zeros_like(pieces), places=places, lengths=ascending)
    whole = forward_products(encoder, batch)
    alone = replace(batch, cls_only=True)
    unread = int(lengths.sum()) - ROWS
    assert whole - forward_products(encoder, alone) == 2 * unread * DIM * (2 * DIM + 2 * WIDE)
