from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from meltpoint.adapters import ops
from meltpoint.adapters.cpu import operations
from meltpoint.adapters.cpu.attention import attend
from meltpoint.adapters.cpu.unpadded_attention import attend_first, attend_unpadded
from meltpoint.adapters.data.unpadding import UNPADDED, Unpadded, places_of, rounded
from meltpoint.adapters.families.huggingface.attention import attention_forward

Triple = tuple[Tensor, Tensor, Tensor]


def heads(batch: int, pieces: int, dtype: torch.dtype = torch.float64) -> Triple:
    """Query, key and value as an encoder makes them: heads are views of (batch, pieces, heads · dim)."""
    torch.manual_seed(batch * 100 + pieces)
    made = [torch.randn(batch, pieces, 3 * 8, dtype=dtype, requires_grad=True) for _ in range(3)]
    first, second, third = (one.view(batch, pieces, 3, 8).transpose(1, 2) for one in made)
    return first, second, third


def padding_mask(batch: int, pieces: int) -> Tensor:
    """Row i lacks i pieces at its end; as transformers hands it over: expanded over the queries."""
    lengths = torch.tensor([max(1, pieces - row) for row in range(batch)])
    return (torch.arange(pieces) < lengths[:, None])[:, None, None, :].expand(batch, 1, pieces, pieces)


def window_mask(batch: int, pieces: int) -> Tensor:
    """A local window, as ModernBERT's: another mask for each query."""
    place = torch.arange(pieces)
    return ((place[:, None] - place).abs() <= 2).expand(batch, 1, pieces, pieces)


def assert_equal_with_gradients(found: Tensor, expected: Tensor, made: Triple) -> None:
    near = {"atol": 2e-5, "rtol": 2e-5} if found.dtype == torch.float32 else {}
    torch.testing.assert_close(found, expected, **near)
    weight = torch.randn_like(expected)
    for one, other in zip(
        torch.autograd.grad((found * weight).sum(), made),
        torch.autograd.grad((expected * weight).sum(), made),
        strict=True,
    ):
        torch.testing.assert_close(one, other, **near)


@pytest.mark.parametrize("mask", [None, padding_mask, window_mask])
@given(batch=st.integers(1, 4), pieces=st.sampled_from([1, 2, 7, 26, 32, 33, 64]))
def test_it_equals_torchs_own_in_result_and_gradients(
    mask: Callable[[int, int], Tensor] | None, batch: int, pieces: int
):
    made = heads(batch, pieces)
    given_mask = None if mask is None else mask(batch, pieces)
    expected = functional.scaled_dot_product_attention(*made, attn_mask=given_mask, scale=0.3)
    found = attend(*made, given_mask, 0.3, 0.0)
    assert_equal_with_gradients(found, expected, made)


def test_gradients_under_dropout_are_those_of_finite_differences():
    made = heads(2, 5)

    def seeded(*triple: Tensor) -> Tensor:
        torch.manual_seed(0)
        return attend(*triple, padding_mask(2, 5), 0.35, 0.4)

    assert torch.autograd.gradcheck(seeded, made)


def test_dropped_weights_keep_the_mean():
    query, key, value = (one.detach() for one in heads(1, 12))
    expected = attend(query, key, value, None, 0.3, 0.0)
    torch.manual_seed(0)
    mean = torch.stack([attend(query, key, value, None, 0.3, 0.5) for _ in range(4000)]).mean(0)
    torch.testing.assert_close(mean, expected, atol=0.06, rtol=0.0)


def test_a_query_that_may_see_nothing_gives_finite_numbers():
    made = heads(1, 3)
    found = attend(*made, torch.zeros(1, 1, 3, 3, dtype=torch.bool), 0.3, 0.0)
    assert all(torch.isfinite(g).all() for g in (found, *torch.autograd.grad(found.sum(), made)))


def test_in_bf16_it_is_as_close_to_the_exact_result_as_rounding_allows():
    exact = heads(4, 26)
    rough = tuple(one.detach().bfloat16() for one in exact)
    found = attend(*rough, padding_mask(4, 26), 0.35, 0.0).double()
    expected = functional.scaled_dot_product_attention(*exact, attn_mask=padding_mask(4, 26), scale=0.35)
    assert float((found - expected).detach().abs().mean()) < 2**-8


@pytest.mark.parametrize(
    "others", [{"is_causal": True}, {"position_bias": torch.zeros(1, 3, 6, 6)}, {}], ids=["causal", "bias", "long"]
)
def test_what_it_does_not_do_is_torchs(others: dict[str, object], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(operations, "attend", None)
    monkeypatch.setattr(ops, "LONGEST", 4)
    query, key, value = heads(1, 6, torch.float32)
    found, _ = attention_forward(torch.nn.Module(), query, key, value, None, **({"is_causal": False} | others))
    causal = bool(others.get("is_causal", False))
    expected = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
    torch.testing.assert_close(found, expected.transpose(1, 2))


# --- without padding ---


def unpadded_of(lengths: list[int]) -> Unpadded:
    return Unpadded(*places_of(np.array(lengths)))


def pieces_of_rows(count: int) -> Triple:
    """Query, key and value of so many pieces, one after another: (rounded pieces, heads, dim)."""
    torch.manual_seed(count)
    shape = rounded(count), 3, 8
    first, second, third = (torch.randn(shape, requires_grad=True) for _ in range(3))
    return first, second, third


def row_by_row(query: Tensor, key: Tensor, value: Tensor, lengths: list[int], scale: float) -> Tensor:
    """Attention of each row alone; rows lie one after another, the shortest first."""
    found, start = [], 0
    for length in sorted(lengths):
        own = [states[start : start + length].transpose(0, 1) for states in (query, key, value)]
        found.append(functional.scaled_dot_product_attention(own[0], own[1], own[2], scale=scale).transpose(0, 1))
        start += length
    return torch.cat([*found, query.new_zeros(len(query) - start, *query.shape[1:])])


@given(st.lists(st.integers(1, 70), min_size=1, max_size=6))
def test_without_padding_a_row_attends_to_itself_alone_in_result_and_gradients(lengths: list[int]):
    made = pieces_of_rows(sum(lengths))
    expected = row_by_row(*made, lengths, 0.3)
    found = attend_unpadded(*made, unpadded_of(lengths), 0.3, 0.0)
    assert_equal_with_gradients(found, expected, made)


@given(st.lists(st.integers(1, 70), min_size=1, max_size=6))
def test_one_query_a_row_has_the_result_and_gradients_of_the_rows_first_piece(lengths: list[int]):
    made, unpadded = pieces_of_rows(sum(lengths)), unpadded_of(lengths)
    first = unpadded.first
    assert unpadded.places[first].tolist() == [row * max(lengths) for row in range(len(lengths))]
    expected = row_by_row(*made, lengths, 0.3)[first]
    found = attend_first(made[0][first], made[1], made[2], unpadded, 0.3, 0.0)
    assert_equal_with_gradients(found, expected, made)


def test_one_query_a_row_under_dropout_keeps_the_mean():
    lengths = [3, 1, 34]
    query, key, value = (states.detach() for states in pieces_of_rows(sum(lengths)))
    unpadded = unpadded_of(lengths)
    query = query[unpadded.first]
    torch.manual_seed(0)
    draws = torch.stack([attend_first(query, key, value, unpadded, 0.35, 0.4) for _ in range(4000)])
    assert draws[0].ne(draws[1]).any()
    torch.testing.assert_close(draws.mean(0), attend_first(query, key, value, unpadded, 0.35, 0.0), atol=0.1, rtol=0.0)


@pytest.mark.parametrize("lengths", [[150, 3, 40], [150]])
def test_long_rows_without_padding_take_torchs_kernel_and_say_the_same(lengths: list[int]):
    made = pieces_of_rows(sum(lengths))
    as_given = [states.transpose(0, 1)[None] for states in made]
    more = {UNPADDED: unpadded_of(lengths)}
    found, _ = attention_forward(torch.nn.Module(), *as_given, None, scaling=0.3, **more)
    real = sum(lengths)
    torch.testing.assert_close(found[0, :real], row_by_row(*made, lengths, 0.3)[:real])
