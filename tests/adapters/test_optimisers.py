"""Adam with decoupled decay: an encoder's and a bundle's, against torch.optim.AdamW and BERT's own; their states."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from meltpoint.adapters.encoder import LayerGroup
from meltpoint.adapters.training.optimisers import (
    ADAM_RULES,
    ADAMW,
    ADAMW_BF16,
    BERT_ADAM,
    FUSED_FROM,
    AdamRule,
    EncoderAdamW,
    StackedAdamW,
)
from meltpoint.tests.adapters import published_bert_adam

RATES, DECAYS = torch.tensor([1e-3, 3e-2, 0.0]), torch.tensor([0.0, 0.1, 0.3])
SMALL, LARGE = 5, FUSED_FROM // 4


# --- a bundle's ---


def parameters(width: int, seed: int = 0) -> list[nn.Parameter]:
    """A mix's gamma, a bias, a matrix and a stack of matrices, for three members."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(3,), (3, 4), (3, 4, width), (3, 2, 3, 2)]
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def gradients(own: list[nn.Parameter], step: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 + step)
    return [torch.randn(p.shape, generator=generator) for p in own]


def train(own: list[nn.Parameter], optimiser: StackedAdamW, steps: range, members: list[int] | None = None) -> None:
    """Steps with gradients by way of autograd; `members` are the rows that the first parameters had."""
    rows = torch.tensor(members or [0, 1, 2])
    for step in steps:
        optimiser.begin(RATES[rows] * (1 + step % 3))
        full = gradients([nn.Parameter(p.new_zeros(3, *p.shape[1:])) for p in own], step)
        sum((p * g[rows]).sum() for p, g in zip(own, full, strict=True)).backward()
        optimiser.step()


@pytest.mark.parametrize("width", [SMALL, LARGE], ids=["vectorised", "fused"])
def test_fifty_steps_equal_those_of_torchs_adamw_member_by_member(width: int):
    own, plain = parameters(width), parameters(width)
    optimiser = StackedAdamW(own, DECAYS)
    train(own, optimiser, range(50))
    for member in range(3):
        alone = [nn.Parameter(p.detach()[member].clone()) for p in plain]
        groups = [
            {"params": [p for p in alone if p.ndim > 1], "weight_decay": DECAYS[member].item()},
            {"params": [p for p in alone if p.ndim <= 1], "weight_decay": 0.0},
        ]
        reference = torch.optim.AdamW(groups, foreach=False)
        for step in range(50):
            for p, g in zip(alone, gradients(plain, step), strict=True):
                p.grad = g[member]
            for group in reference.param_groups:
                group["lr"] = RATES[member].item() * (1 + step % 3)
            reference.step()
        for stacked, single in zip(own, alone, strict=True):
            torch.testing.assert_close(stacked[member], single, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("width", [SMALL, LARGE], ids=["vectorised", "fused"])
def test_steps_of_bert_adam_are_those_of_berts_released_code_number_by_number(width: int):
    own, plain = parameters(width), parameters(width)
    train(own, StackedAdamW(own, DECAYS, BERT_ADAM), range(6))
    each = [gradients(plain, step) for step in range(6)]
    for number, (stacked, start) in enumerate(zip(own, plain, strict=True)):
        for member in range(3):
            few = (..., slice(0, 40))  # of a large matrix: the loop takes a number at a time
            mine = [of_step[number][member] for of_step in each]
            rates = [RATES[member].item() * (1 + step % 3) for step in range(6)]
            decay = DECAYS[member].item() if start.ndim > 2 else 0.0
            begun, shown = start.detach()[member], stacked.detach()[member]
            if begun.ndim:
                begun, shown, mine = begun[few], shown[few], [gradient[few] for gradient in mine]
            expected = published_bert_adam.moved(begun, mine, rates, decay)
            torch.testing.assert_close(shown.double(), expected, atol=2e-6, rtol=2e-6)


def test_norms_and_scales_are_each_members_own():
    own = parameters(SMALL)
    optimiser = StackedAdamW(own, DECAYS)
    for p, g in zip(own, gradients(own, 0), strict=True):
        p.grad = g
    expected = torch.stack([g.reshape(3, -1).square().sum(1) for g in gradients(own, 0)]).sum(0).sqrt()
    torch.testing.assert_close(optimiser.norms(), expected)
    optimiser.scale(torch.tensor([1.0, 0.5, 2.0]))
    torch.testing.assert_close(optimiser.norms(), expected * torch.tensor([1.0, 0.5, 2.0]))
    optimiser.zero_grad()
    assert optimiser.norms().tolist() == [0.0] * 3


@pytest.mark.parametrize("width", [SMALL, LARGE], ids=["vectorised", "fused"])
def test_another_optimiser_goes_on_from_a_state_bit_for_bit(width: int):
    own, other = parameters(width), parameters(width, seed=1)
    one, two = StackedAdamW(own, DECAYS), StackedAdamW(other, DECAYS)
    train(own, one, range(4))
    state = {name: tensor.clone() for name, tensor in one.state().items()}
    two.load(state)
    train(own, one, range(4, 8))
    train(other, two, range(4, 8))
    assert all(torch.equal(p, q) for p, q in zip(own, other, strict=True))
    assert not torch.equal(state["weights"], one.weights), "a state that was handed over is not trained on"


def test_kept_members_train_on_as_they_would_have():
    own, whole = parameters(SMALL), parameters(SMALL)
    one, two = StackedAdamW(own, DECAYS), StackedAdamW(whole, DECAYS)
    train(own, one, range(3))
    train(whole, two, range(6))
    for p in own:
        p.data = p.data[[1, 0]]
    one.keep([1, 0])
    train(own, one, range(3, 6), [1, 0])
    assert all(torch.equal(p, w[[1, 0]]) for p, w in zip(own, whole, strict=True))


# --- an encoder's ---

STEPS, DECAY = 12, 0.3
RULES = pytest.mark.parametrize("rule", ADAM_RULES.values(), ids=ADAM_RULES.keys())


def groups_of(*layers: nn.Module) -> list[LayerGroup]:
    return [LayerGroup(f"layer_{number}", tuple(layer.parameters())) for number, layer in enumerate(layers)]


def layers_of(seed: int = 0) -> list[nn.Module]:
    torch.manual_seed(seed)
    return [nn.Linear(37, 300), nn.LayerNorm(300), nn.Linear(300, 5)]


def give_gradients(layers: list[nn.Module], step: int) -> list[nn.Parameter]:
    """Random gradients, now and then none; the parameters."""
    every = [parameter for layer in layers for parameter in layer.parameters()]
    for number, parameter in enumerate(every):
        generator = torch.Generator().manual_seed(100 * step + number)
        gradient = torch.randn(parameter.shape, generator=generator)
        parameter.grad = None if (step + number) % 5 == 0 else gradient
    return every


def moved(layers: list[nn.Module], factor: float, rule: AdamRule = ADAMW) -> EncoderAdamW:
    """Some steps by gradients that are scaled, at a rate a layer."""
    adam = EncoderAdamW(groups_of(*layers), DECAY, rule)
    for group in adam.param_groups:
        group["lr"] = 0.01 * (1 + group["layer_group"])
    for step in range(STEPS):
        give_gradients(layers, step)
        adam.scale(torch.tensor(factor))
        adam.step()
    return adam


@pytest.mark.parametrize("factor", [1.0, 0.25])
def test_an_encoders_steps_are_torchs_where_matrices_decay_and_vectors_do_not(factor: float):
    own, torchs = layers_of(), layers_of()
    moved(own, factor)
    groups = [
        {"params": [p], "weight_decay": DECAY if p.ndim > 1 else 0.0, "lr": 0.01 * (1 + index)}
        for index, layer in enumerate(torchs) for p in layer.parameters()
    ]  # fmt: skip
    adam = torch.optim.AdamW(groups)
    for step in range(STEPS):
        for parameter in give_gradients(torchs, step):
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
        adam.step()
    for one, other in zip(own, torchs, strict=True):
        torch.testing.assert_close(dict(one.state_dict()), dict(other.state_dict()), atol=1e-6, rtol=1e-5)


def test_an_encoders_steps_of_bert_adam_are_those_of_berts_released_code():
    layers, plain = layers_of(), layers_of()
    moved(layers, 0.5, BERT_ADAM)
    own, before = ([p for layer in side for p in layer.parameters()] for side in (layers, plain))
    given: list[list[Tensor | None]] = [[] for _ in own]
    for step in range(STEPS):
        for parameter, gradients in zip(give_gradients(plain, step), given, strict=True):
            gradients.append(None if parameter.grad is None else 0.5 * parameter.grad)
    layer_of = [index for index, layer in enumerate(plain) for _ in layer.parameters()]
    for number, (one, start) in enumerate(zip(own, before, strict=True)):
        few = (slice(0, 6),)
        rates, decay = [0.01 * (1 + layer_of[number])] * STEPS, DECAY if start.ndim > 1 else 0.0
        gradients = [None if gradient is None else gradient[few] for gradient in given[number]]
        expected = published_bert_adam.moved(start.detach()[few], gradients, rates, decay)
        torch.testing.assert_close(one.detach()[few].double(), expected, atol=1e-5, rtol=1e-5)


def test_moments_in_bf16_stay_where_they_are_and_move_weights_almost_as_wide_ones_do():
    start, wide, narrow = layers_of(), layers_of(), layers_of()
    moved(wide, 1.0)
    adam = moved(narrow, 1.0, ADAMW_BF16)
    for first, one, other in zip(start, wide, narrow, strict=True):
        for name, own in first.state_dict().items():
            steps, narrow_steps = (layer.state_dict()[name] - own for layer in (one, other))
            assert (narrow_steps - steps).norm() < 0.02 * steps.norm()
    before = {name: own.data_ptr() for name, own in adam.moments().items()}
    give_gradients(narrow, 1)
    adam.step()
    assert {name: own.data_ptr() for name, own in adam.moments().items()} == before
    kinds = {name.partition("/")[2]: own.dtype for name, own in adam.moments().items()}
    assert kinds == {"step": torch.float32, "exp_avg": torch.bfloat16, "exp_avg_sq": torch.bfloat16}


@RULES
def test_an_encoders_optimiser_continues_from_its_state_to_the_same_bits(rule: AdamRule):
    whole, cut = layers_of(), layers_of()
    adams = [moved(layers, 1.0, rule) for layers in (whole, cut)]
    again = EncoderAdamW(groups_of(*cut), DECAY, rule)
    again.load_moments({name: tensor.clone() for name, tensor in adams[1].moments().items()})
    for group in again.param_groups:
        group["lr"] = 0.01 * (1 + group["layer_group"])
    for layers, adam in ((whole, adams[0]), (cut, again)):
        give_gradients(layers, 1)
        adam.step()
    for one, other in zip(whole, cut, strict=True):
        assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in one.state_dict().items())
