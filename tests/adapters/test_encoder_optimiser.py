"""The optimiser of an encoder's parameters, in float32 and in bf16 with masters: torch's AdamW, and BERT's own Adam."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from meltpoint.adapters import ops
from meltpoint.adapters.encoder import LayerGroup
from meltpoint.adapters.families.huggingface import encoder, master_weights
from meltpoint.adapters.families.huggingface.master_weights import Master
from meltpoint.adapters.training.adam_rules import ADAMW, BERT_ADAM, AdamRule
from meltpoint.adapters.training.encoder_optimiser import EncoderAdamW, KernelAdamW, UncorrectedAdam, encoder_adamw
from meltpoint.tests.adapters import published_bert_adam
from meltpoint.tests.adapters.devices import cpu_masters

pytestmark = pytest.mark.usefixtures("kernels")

Make = Callable[..., Any]
STEPS = 12


def groups_of(*layers: nn.Module) -> list[LayerGroup]:
    return [LayerGroup(f"layer_{number}", tuple(layer.parameters())) for number, layer in enumerate(layers)]


def layers_of(seed: int = 0) -> list[nn.Module]:
    torch.manual_seed(seed)
    return [nn.Linear(37, 300), nn.LayerNorm(300), nn.Linear(300, 5)]


def give_gradients(parameters: list[nn.Parameter], step: int) -> None:
    """The same random gradients, rounded to bf16, in each parameter's own type; now and then none."""
    for number, parameter in enumerate(parameters):
        generator = torch.Generator().manual_seed(100 * step + number)
        gradient = torch.randn(parameter.shape, generator=generator).bfloat16().to(parameter.dtype)
        parameter.grad = None if (step + number) % 5 == 0 else gradient


def reference(layers: list[nn.Module], factor: float) -> list[nn.Parameter]:
    """What torch's AdamW makes of them: matrices decay, vectors do not, a rate a layer group."""
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    adam = torch.optim.AdamW([
        {"params": [p], "weight_decay": 0.3 if p.ndim > 1 else 0.0, "lr": 0.01 * (1 + index)}
        for index, layer in enumerate(layers) for p in layer.parameters()
    ])  # fmt: skip
    for step in range(STEPS):
        give_gradients(parameters, step)
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
        adam.step()
    return parameters


def moved(
    layers: list[nn.Module], factor: float, masters: dict[nn.Parameter, Tensor] | None = None, rule: AdamRule = ADAMW
) -> EncoderAdamW:
    adam = encoder_adamw(groups_of(*layers), 0.3, masters, rule)
    for group in adam.param_groups:
        group["lr"] = 0.01 * (1 + group["layer_group"])
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    for step in range(STEPS):
        give_gradients(parameters, step)
        adam.scale(torch.tensor(factor))
        adam.step()
    return adam


@pytest.mark.parametrize("factor", [1.0, 0.25])
def test_its_steps_are_torchs(factor: float):
    own, torchs = layers_of(), layers_of()
    moved(own, factor)
    found = [parameter for layer in own for parameter in layer.parameters()]
    for one, other in zip(found, reference(torchs, factor), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("by_kernel", "kind"), [(True, KernelAdamW), (False, UncorrectedAdam)])
def test_steps_of_bert_adam_are_those_of_berts_released_code_with_kernels_and_without(by_kernel: bool, kind: type):
    layers, plain = layers_of(), layers_of()
    with ops.overridden(by_kernel):
        assert type(moved(layers, 0.5, rule=BERT_ADAM)) is kind
    own, before = ([p for layer in side for p in layer.parameters()] for side in (layers, plain))
    given: list[list[Tensor | None]] = [[] for _ in own]
    for step in range(STEPS):
        give_gradients(before, step)
        for parameter, gradients in zip(before, given, strict=True):
            gradients.append(None if parameter.grad is None else 0.5 * parameter.grad)
    layer_of = [index for index, layer in enumerate(plain) for _ in layer.parameters()]
    for number, (one, start) in enumerate(zip(own, before, strict=True)):
        few = (slice(0, 6),)
        rates, decay = [0.01 * (1 + layer_of[number])] * STEPS, 0.3 if start.ndim > 1 else 0.0
        gradients = [None if gradient is None else gradient[few] for gradient in given[number]]
        expected = published_bert_adam.moved(start.detach()[few], gradients, rates, decay)
        torch.testing.assert_close(one.detach()[few].double(), expected, atol=1e-5, rtol=1e-5)


def test_masters_of_bert_adam_move_as_float32_weights_do():
    own, plain = layers_of(), layers_of()
    moved(own, 0.5, master_weights.adopt(nn.ModuleList(own)), BERT_ADAM)
    moved(plain, 0.5, rule=BERT_ADAM)
    for one, other in zip(own, plain, strict=True):
        assert all(torch.equal(one.state_dict()[name], expected) for name, expected in other.state_dict().items())


@pytest.mark.parametrize("by_kernel", [True, False])
def test_bert_adam_continues_from_its_state_to_the_same_bits(by_kernel: bool):
    whole, cut = layers_of(), layers_of()
    with ops.overridden(by_kernel):
        adams = [moved(layers, 1.0, rule=BERT_ADAM) for layers in (whole, cut)]
        again = encoder_adamw(groups_of(*cut), 0.3, rule=BERT_ADAM)
    again.load_moments({name: tensor.clone() for name, tensor in adams[1].moments().items()})
    for group in again.param_groups:
        group["lr"] = 0.01 * (1 + group["layer_group"])
    for layers, adam in ((whole, adams[0]), (cut, again)):
        give_gradients([parameter for layer in layers for parameter in layer.parameters()], 1)
        adam.step()
    for one, other in zip(whole, cut, strict=True):
        assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in one.state_dict().items())


def test_masters_move_as_float32_weights_do_and_weights_are_their_rounding():
    own, plain = layers_of(), layers_of()
    masters = master_weights.adopt(nn.ModuleList(own))
    assert [weight.dtype for weight in masters] == [torch.bfloat16] * 2
    moved(own, 0.5, masters)
    moved(plain, 0.5)
    for one, other in zip(own, plain, strict=True):
        for name, expected in other.state_dict().items():
            assert torch.equal(one.state_dict()[name], expected)
    assert all(torch.equal(weight, master.bfloat16()) for weight, master in masters.items())


def test_a_factor_serves_one_step():
    layers = layers_of()
    adam = moved(layers, 0.0)
    before = [parameter.detach().clone() for parameter in layers[0].parameters()]
    give_gradients(list(layers[0].parameters()), 1)
    adam.step()
    assert not any(torch.equal(a, b) for a, b in zip(before, layers[0].parameters(), strict=True))


@given(st.integers(0, 2**31))
@settings(max_examples=10)
def test_the_norm_is_that_of_all_gradients_in_either_type(seed: int):
    layers = layers_of(seed % 7)
    adam = encoder_adamw(groups_of(*layers), 0.0, master_weights.adopt(nn.ModuleList(layers)))
    give_gradients([parameter for layer in layers for parameter in layer.parameters()], seed)
    exact = torch.stack([gradient.double().square().sum() for gradient in adam.gradients()]).sum().sqrt()
    torch.testing.assert_close(adam.norm(), exact.float(), rtol=1e-6, atol=0)


@pytest.mark.usefixtures("threads")
def test_any_number_of_threads_moves_weights_to_the_same_bits():
    found = []
    for count in (1, 3):
        torch.set_num_threads(count)
        layers = layers_of()
        moved(layers, 0.5)
        found.append([parameter for layer in layers for parameter in layer.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_parameter_that_moved_in_memory_is_found_again():
    layers = layers_of()
    adam = moved(layers, 1.0)
    layers[0].weight.data = layers[0].weight.data.clone()
    before = layers[0].weight.detach().clone()
    give_gradients(list(layers[0].parameters()), 1)
    adam.step()
    assert not torch.equal(layers[0].weight, before)


def test_what_is_no_float32_needs_a_master():
    layer = nn.Linear(3, 2, dtype=torch.bfloat16)
    adam = encoder_adamw(groups_of(layer), 0.0)
    give_gradients(list(layer.parameters()), 1)
    with pytest.raises(TypeError, match="needs a float32 master"):
        adam.step()


def test_other_types_take_torchs_own_way():
    layers = [nn.Linear(3, 2).double()]
    adam = encoder_adamw(groups_of(*layers), 0.0)
    adam.param_groups[0]["lr"] = 0.1
    before = layers[0].weight.detach().clone()
    layers[0].weight.grad = torch.ones(2, 3, dtype=torch.float64)
    adam.scale(torch.tensor(0.5, dtype=torch.float64))
    torch.testing.assert_close(adam.norm(), torch.tensor(1.5**0.5, dtype=torch.float64))
    adam.step()
    assert not torch.equal(layers[0].weight, before)


# --- masters ---


def test_a_state_has_the_masters_under_the_weights_names_and_reads_them_back():
    plain, own = nn.Linear(4, 3), nn.Linear(4, 3)
    state = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    master_weights.adopt(own)
    assert isinstance(own, Master)
    assert list(own.state_dict()) == list(state)
    own.load_state_dict(state)
    assert torch.equal(own.weight, state["weight"].bfloat16())
    assert all(torch.equal(own.state_dict()[name], tensor) for name, tensor in state.items())
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        own.load_state_dict({"weight": torch.zeros(2, 2), "bias": torch.zeros(3)})


def test_a_weight_that_two_layers_share_stays_as_it_is():
    one, other = nn.Linear(3, 3), nn.Linear(3, 3)
    other.weight = one.weight
    assert master_weights.adopt(nn.Sequential(one, other)) == {}
    assert type(one) is type(other) is nn.Linear


@cpu_masters
@pytest.mark.parametrize("mode", ["fine_tuning", "stack_and_finetune"])
def test_training_with_masters_gives_the_bits_that_autocast_gives(
    make_trainer: Make, mode: str, monkeypatch: pytest.MonkeyPatch
):
    setting = {"precision": "bf16", "encoder_dropout": 0.1, "epochs": 2, "gradient_clip": 0.5}
    own = make_trainer(mode, **setting)
    assert any(isinstance(module, Master) for module in own.model.modules())
    monkeypatch.setattr(encoder.HuggingFaceEncoder, "train_in_bf16", lambda self: {})
    plain = make_trainer(mode, **setting)
    assert not any(isinstance(module, Master) for module in plain.model.modules())
    one, other = ([result.train_loss for result in trainer.results()] for trainer in (own, plain))
    assert one == other
    expected = plain.model.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in own.model.state_dict().items())


def test_training_in_float32_has_no_masters(make_trainer: Make):
    trainer = make_trainer("fine_tuning", precision="fp32")
    assert all(parameter.dtype == torch.float32 for parameter in trainer.model.parameters())


@pytest.mark.parametrize("by_kernel", [True, False])
@pytest.mark.parametrize("rule", [ADAMW, BERT_ADAM], ids=["adamw", "bert_adam"])
def test_a_hook_runs_once_a_step_also_where_a_process_has_used_torchs_optimiser(by_kernel: bool, rule: AdamRule):
    layer = nn.Linear(4, 4)
    torch.optim.AdamW(nn.Linear(2, 2).parameters())  # from then on torch runs hooks in its `step`
    with ops.overridden(by_kernel):
        adam = encoder_adamw(groups_of(layer), 0.1, rule=rule)
    assert isinstance(adam, KernelAdamW) is by_kernel
    ran: list[int] = []
    adam.register_step_post_hook(lambda *_: ran.append(1))
    for steps in (1, 2):
        layer(torch.ones(1, 4)).sum().backward()
        adam.step()
        assert len(ran) == steps
