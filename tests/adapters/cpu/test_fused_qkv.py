"""Queries, keys and values by one product: the same attention as BERT's own, in result, gradients and dropout."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertSelfAttention

from meltpoint.adapters.cpu import fused_qkv as kernels
from meltpoint.adapters.data.unpadding import UNPADDED, Unpadded, places_of, rounded
from meltpoint.adapters.families.huggingface import fused_qkv
from meltpoint.adapters.families.huggingface.attention import register

pytestmark = pytest.mark.usefixtures("kernels")

DIM = 32
LENGTHS = st.lists(st.integers(1, 70), min_size=1, max_size=6)


def pair(dtype: torch.dtype = torch.float32) -> tuple[nn.Module, nn.Module]:
    """BERT's own attention, and one that was adopted, with the same weights."""
    torch.manual_seed(0)
    config = BertConfig(hidden_size=DIM, num_attention_heads=4, attn_implementation=register())
    plain = BertSelfAttention(config).to(dtype)
    adopted = copy.deepcopy(plain)
    assert fused_qkv.adopt(adopted)
    return plain, adopted


def batch_of(lengths: list[int], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Unpadded]:
    """States (1, rounded pieces, DIM) of rows that lie one after another."""
    states = torch.randn(1, rounded(sum(lengths)), DIM, dtype=dtype, requires_grad=True)
    return states, Unpadded(*places_of(np.array(lengths)))


def attended(attention: nn.Module, states: Tensor, unpadded: Unpadded) -> Tensor:
    found, weights = attention(states, **{UNPADDED: unpadded})
    assert weights is None
    result: Tensor = found[0, : len(unpadded.places)]
    return result


def gradients(attention: nn.Module, states: Tensor, unpadded: Unpadded) -> list[Tensor]:
    """By the states and by every weight, of a sum that tells them apart."""
    found = attended(attention, states, unpadded)
    weight = torch.linspace(-1, 1, found.numel(), dtype=found.dtype).view_as(found)
    return list(torch.autograd.grad((found * weight).sum(), [states, *attention.parameters()]))


@given(LENGTHS)
def test_it_says_what_berts_own_attention_says_in_result_and_gradients(lengths: list[int]):
    plain, adopted = (attention.eval() for attention in pair())
    states, unpadded = batch_of(lengths)
    near = {"atol": 2e-5, "rtol": 2e-5}
    torch.testing.assert_close(attended(adopted, states, unpadded), attended(plain, states, unpadded), **near)
    for one, other in zip(
        gradients(adopted, states, unpadded), gradients(plain, states, unpadded), strict=True
    ):  # fmt: skip
        torch.testing.assert_close(one, other, **near)


def test_dropout_draws_the_same_weights_from_the_same_seed():
    states, unpadded = batch_of([3, 40, 17, 9])
    found = []
    for attention in pair():
        attention.train()
        torch.manual_seed(7)
        found.append(attended(attention, states, unpadded))
    torch.testing.assert_close(found[0], found[1])
    torch.manual_seed(8)
    assert not torch.allclose(attended(attention, states, unpadded), found[1])


def test_under_autocast_it_stays_as_close_as_berts_own():
    plain, adopted = (attention.eval() for attention in pair(torch.float32))
    states, unpadded = batch_of([12, 40, 17, 9], torch.float32)
    exact = attended(plain, states, unpadded)
    with torch.autocast("cpu", torch.bfloat16):
        rough, own = attended(adopted, states, unpadded), attended(plain, states, unpadded)
    assert rough.dtype == torch.bfloat16
    assert (rough - exact).abs().max() <= 1.5 * (own - exact).abs().max() + 1e-3


def test_padded_batches_and_long_rows_go_berts_own_way(monkeypatch: pytest.MonkeyPatch):
    plain, adopted = (attention.eval() for attention in pair())
    monkeypatch.setattr(kernels, "attend_qkv", None)
    padded = torch.randn(2, 5, DIM)
    assert torch.equal(adopted(padded)[0], plain(padded)[0])
    states, unpadded = batch_of([150, 3])
    assert torch.equal(attended(adopted, states, unpadded), attended(plain, states, unpadded))


def test_what_is_not_made_as_berts_is_left_alone():
    plain, _ = pair()
    plain.key = nn.Linear(DIM, DIM, bias=False)
    own = type(plain)
    assert not fused_qkv.adopt(plain)
    assert not fused_qkv.adopt(nn.Linear(2, 2))
    assert type(plain) is own
