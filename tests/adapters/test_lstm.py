"""The recurrences of a bundle against torch.nn.LSTM, and the hand-written gradients against finite differences."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from meltpoint.adapters.layers import lstm
from meltpoint.adapters.layers.bundle import Bundle, MemberRng
from meltpoint.adapters.layers.lstm import (
    BiLSTM,
    Recurrence,
    Weights,
    all_at_once,
    member_by_member,
    reversal,
    reverse,
)  # fmt: skip

TRIALS, STEPS, ROWS, SIZE, HIDDEN = 3, 4, 2, 3, 2


def random_weights(seed: int = 0) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(4 * HIDDEN, SIZE), (4 * HIDDEN, HIDDEN), (4 * HIDDEN,), (4 * HIDDEN,)]
    made = [torch.randn(TRIALS, *s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]
    return (made[0], made[1], made[2], made[3])


def test_the_recurrences_gradient_is_that_of_finite_differences():
    torch.manual_seed(0)
    projected = torch.randn(STEPS, TRIALS, ROWS, 4 * HIDDEN, dtype=torch.float64, requires_grad=True)
    recurrent = torch.randn(TRIALS, HIDDEN, 4 * HIDDEN, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(Recurrence.apply, (projected, recurrent))


def test_the_reversals_gradient_is_that_of_finite_differences():
    states = torch.randn(1, 5, 2, 2, dtype=torch.float64, requires_grad=True)
    order = reversal(torch.tensor([[[True] * 5, [True] * 3 + [False] * 2]]))
    assert torch.autograd.gradcheck(lambda given: reverse(given, order), states)


@pytest.mark.parametrize("shared", [True, False])
def test_all_at_once_equals_member_by_member_forward_and_back(shared: bool):
    torch.manual_seed(0)
    inputs = [torch.randn(1 if shared else TRIALS, STEPS, ROWS, SIZE, dtype=torch.float64) for _ in range(2)]
    weights = [random_weights(0), random_weights(1)]
    leaves = [*[i.requires_grad_() for i in inputs], *weights[0], *weights[1]]
    one = [member_by_member(*pair) for pair in zip(inputs, weights, strict=True)]
    two = all_at_once(inputs, weights)
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b)
    for a, b in zip(*(torch.autograd.grad(sum(o.sin().sum() for o in out), leaves) for out in (one, two)), strict=True):
        torch.testing.assert_close(a, b)


@given(st.lists(st.integers(1, 7), min_size=1, max_size=4))
def test_reversing_twice_changes_nothing_and_padding_stays_where_it_is(lengths: list[int]):
    mask = torch.arange(7) < torch.tensor(lengths)[:, None]
    states, order = torch.randn(2, 7, len(lengths), 3), reversal(mask[None])
    back = reverse(states, order)
    assert torch.equal(reverse(back, order), states)
    for row, length in enumerate(lengths):
        assert torch.equal(back[:, :length, row], states[:, :length, row].flip(1))
        assert torch.equal(back[:, length:, row], states[:, length:, row])


# --- the BiLSTM ---


def stacked_bilstm(trials: int = TRIALS, seed: int = 0) -> BiLSTM:
    return BiLSTM(12, Bundle([{"dropout": 0.0}] * trials, MemberRng(range(seed, seed + trials))), 8, 2)


def mask_of(lengths: list[int], width: int, lanes: int = 1) -> Tensor:
    return (torch.arange(width) < torch.tensor(lengths)[:, None]).view(lanes, -1, width)


def reference(bilstm: BiLSTM, member: int) -> nn.LSTM:
    """torch's own, with a member's weights."""
    lstm = nn.LSTM(12, 8, 2, batch_first=True, bidirectional=True)
    lstm.load_state_dict({name: parameter[member] for name, parameter in bilstm.named_parameters()})
    return lstm


def check_against_torch(bilstm: BiLSTM, states: Tensor) -> None:
    lengths = [7, 4, 9]
    together = bilstm(states, mask_of(lengths, 12))
    for member in range(TRIALS):
        for row, length in enumerate(lengths):
            alone, _ = reference(bilstm, member)(states[member % len(states), row : row + 1, :length])
            torch.testing.assert_close(together[member, row, :length], alone[0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("shared", [True, False])
def test_each_member_equals_torchs_lstm_with_its_weights_row_by_row(shared: bool):
    torch.manual_seed(0)
    check_against_torch(stacked_bilstm(), torch.randn(1 if shared else TRIALS, 3, 12, 12))


@pytest.mark.parametrize("shared", [True, False])
def test_the_recurrence_for_gpus_equals_torchs_lstm_too(shared: bool, monkeypatch: pytest.MonkeyPatch):
    def one(inputs: Tensor, weights: Weights) -> Tensor:
        return all_at_once([inputs], [weights])[0]

    monkeypatch.setattr(lstm, "member_by_member", one)
    torch.manual_seed(0)
    check_against_torch(stacked_bilstm(), torch.randn(1 if shared else TRIALS, 3, 12, 12))


def test_padding_changes_neither_outputs_nor_gradients():
    torch.manual_seed(0)
    bilstm, states = stacked_bilstm(), torch.randn(1, 3, 12, 12)
    found = []
    for width in (9, 12):
        out = bilstm(states[:, :, :width], mask_of([7, 4, 9], width))
        real = mask_of([7, 4, 9], width)[..., None]
        found.append(
            [(out * real)[:, :, :9], *torch.autograd.grad((out * real).sin().sum(), list(bilstm.parameters()))]
        )
    for narrow, wide in zip(*found, strict=True):
        torch.testing.assert_close(narrow, wide, atol=1e-5, rtol=1e-5)


def test_a_bilstm_starts_with_open_forget_gates_and_orthogonal_recurrence():
    bilstm = stacked_bilstm()
    bias = bilstm.bias_ih_l0 + bilstm.bias_hh_l0
    assert bias[1].reshape(4, 8).tolist() == [[0.0] * 8, [1.0] * 8, [0.0] * 8, [0.0] * 8]
    gate = bilstm.weight_hh_l1_reverse[2, 8:16]
    torch.testing.assert_close(gate @ gate.T, torch.eye(8), atol=1e-5, rtol=0)
