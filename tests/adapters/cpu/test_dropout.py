from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from meltpoint.adapters.cpu.dropout import keep
from meltpoint.adapters.layers.quick_dropout import QuickDropout, replace_dropouts

pytestmark = pytest.mark.usefixtures("kernels")


@given(st.floats(0.01, 0.9), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_a_mask_is_zeros_and_ones_of_the_shape_and_type_asked_for(ratio: float, shape: list[int]):
    mask, scale = keep(tuple(shape), ratio, torch.bfloat16)
    assert mask.shape == tuple(shape)
    assert mask.dtype == torch.bfloat16
    assert set(mask.flatten().tolist()) <= {0.0, 1.0}
    assert scale == pytest.approx(1 / (1 - ratio), rel=1e-3)


@pytest.mark.parametrize("ratio", [0.05, 0.1, 0.5, 0.8])
def test_the_share_dropped_is_the_ratio_within_five_standard_errors(ratio: float):
    torch.manual_seed(0)
    count = 1_000_003
    mask, scale = keep((count,), ratio, torch.float32)
    kept = float(mask.double().mean())
    assert abs(kept - (1 - ratio)) < 5 * (ratio * (1 - ratio) / count) ** 0.5 + 2**-17
    assert kept * scale == pytest.approx(1.0, abs=0.01)


def test_neighbours_from_one_draw_are_dropped_independently():
    torch.manual_seed(0)
    mask, _ = keep((100_000, 4), 0.3, torch.float64)
    correlation = torch.corrcoef(mask.T)
    assert float((correlation - torch.eye(4)).abs().max()) < 5 / 100_000**0.5


def test_the_seed_decides_the_mask():
    dropout = QuickDropout(0.5).train()
    states = torch.ones(64, 64)
    torch.manual_seed(3)
    first = dropout(states)
    second = dropout(states)
    torch.manual_seed(3)
    assert torch.equal(dropout(states), first)
    assert not torch.equal(first, second)


def test_the_gradient_passes_where_the_state_was_kept_and_with_the_same_scale():
    states = torch.randn(33, 7, requires_grad=True)
    dropped = QuickDropout(0.4).train()(states)
    dropped.sum().backward()
    assert torch.equal(states.grad != 0, dropped != 0)
    torch.testing.assert_close(states.grad * states, dropped)


def test_a_bf16_state_is_scaled_without_rounding_the_scale_first():
    states = torch.full((1000,), 3.0, dtype=torch.bfloat16)
    dropped = QuickDropout(0.1).train()(states)
    assert set(dropped.tolist()) == {0.0, float(torch.tensor(3.0 / 0.9).bfloat16())}


@pytest.mark.parametrize("ratio", [0.0, 1e-7, 1.0])
def test_ratios_that_need_no_mask_act_as_in_torch(ratio: float):
    states = torch.randn(50)
    found = QuickDropout(ratio).train()(states)
    assert torch.equal(found, torch.zeros(50) if ratio == 1.0 else states)


def test_evaluation_drops_nothing():
    states = torch.randn(50)
    assert QuickDropout(0.9).eval()(states) is states


def test_only_plain_dropouts_are_replaced_and_their_ratio_stays():
    model = nn.Sequential(nn.Dropout(0.3), nn.Sequential(nn.Dropout(0.2), nn.AlphaDropout(0.1)), nn.Linear(2, 2))
    replace_dropouts(model)
    assert [type(m).__name__ for m in model.modules()][1:] == [
        "QuickDropout", "Sequential", "QuickDropout", "AlphaDropout", "Linear",
    ]  # fmt: skip
    assert (model[0].p, model[1][0].p, model[1][1].p) == (0.3, 0.2, 0.1)
