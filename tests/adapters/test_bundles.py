"""Bundles: which trials may train side by side, and that a member has the bits that it has alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from meltpoint.adapters import heads, modes
from meltpoint.adapters import settings as catalogue
from meltpoint.adapters.head import Head, HeadShape
from meltpoint.adapters.layers.affine import Affine
from meltpoint.adapters.layers.bundle import Bundle, MemberRng
from meltpoint.adapters.training.optimisers import StackedAdamW
from meltpoint.tasks.core.task import Kind
from meltpoint.tests.adapters.head_cases import DIM, Case, make_batch


def build(word: str, kind: Kind, members: Sequence[int] = (0, 1, 2)) -> Head:
    return Case(heads.get(word), kind).build(members)


def train(head: Head, optimiser: StackedAdamW, steps: range, rates: Tensor, kind: Kind) -> None:
    states, batch = make_batch(kind)
    for step in steps:
        head.rng.begin(step)
        optimiser.zero_grad()
        head.loss(head(states, batch), batch).sum().backward()
        optimiser.scale((1.0 / optimiser.norms()).clamp(max=1.0))
        optimiser.step(rates)


@pytest.mark.parametrize(("word", "kind"), [("bilstm_crf", "sequence_labelling"), ("mlp", "sentence_classification")])
def test_a_bundle_that_a_member_leaves_trains_each_one_as_it_trains_alone(word: str, kind: Kind):
    rates, decays = torch.tensor([1e-2, 3e-3, 2e-2]), torch.tensor([0.0, 0.1, 0.3])
    bundle = build(word, kind).train()
    optimiser = StackedAdamW(list(bundle.parameters()), decays)
    train(bundle, optimiser, range(4), rates, kind)
    bundle.keep([0, 2])
    optimiser.keep([0, 2])
    train(bundle, optimiser, range(4, 8), rates[[0, 2]], kind)
    for row, member in enumerate((0, 2)):
        alone = build(word, kind, [member]).train()
        train(alone, StackedAdamW(list(alone.parameters()), decays[[member]]), range(8), rates[[member]], kind)
        for one, two in zip(bundle.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(one[row], two[0], atol=2e-4, rtol=1e-3)


def test_members_that_disagree_on_a_size_are_no_bundle():
    shape = HeadShape("sentence_classification", DIM, 2)
    settings = [{"mlp.hidden_size": 8}, {"mlp.hidden_size": 9}]
    with pytest.raises(AssertionError, match=r"members of a bundle agree on mlp\.hidden_size"):
        heads.get("mlp")(shape, settings, MemberRng([0, 1]))


# --- which trials may share a bundle ---


def key(mode: str, head: str, **setting: bool | float | str) -> tuple[object, ...]:
    own = {name.replace("__", "."): value for name, value in setting.items()}
    return catalogue.bundle_key(catalogue.complete(own, mode, head), mode, head)


@pytest.mark.parametrize("mode", modes.names())
def test_rates_dropout_decay_epochs_and_schedule_do_not_part_a_bundle(mode: str):
    other = key(
        mode, "mlp", learning_rate=0.1, dropout=0.5, weight_decay=0.3, epochs=7, schedule="linear_warmup_decay",
        gradient_clip=0.5,
    )  # fmt: skip
    assert other == key(mode, "mlp")


@pytest.mark.parametrize("own", [{"batch_size": 8}, {"max_pieces": 64}, {"precision": "fp32"}, {"mlp__hidden_size": 9}])
def test_what_shapes_the_computation_parts_a_bundle(own: dict[str, int | str]):
    assert key("fine_tuning", "mlp", **own) != key("fine_tuning", "mlp")


@pytest.mark.parametrize("own", [{"bilstm__hidden_size": 9}, {"bilstm__layers": 1}])
def test_a_bilstms_sizes_part_a_bundle(own: dict[str, int]):
    assert key("feature_extraction", "bilstm_crf", **own) != key("feature_extraction", "bilstm_crf")


GAP = 14_400  # weights of other layers that lie between two members' in the optimiser's buffer


def affine(inputs: int, outputs: int, members: int) -> Affine:
    """Members with the same seed, their weights cut from one buffer, as `StackedAdamW` lays them out."""
    layer = Affine(inputs, outputs, Bundle([{}] * members, MemberRng([0] * members)), std=inputs**-0.5)
    size = inputs * outputs
    buffer = torch.zeros(members, size + GAP)
    buffer[:, :size] = layer.weight.detach().flatten(1)
    layer.weight.data = buffer[:, :size].view(members, outputs, inputs)
    return layer


def first_member(layer: Affine, rows: Tensor, slopes: Tensor) -> list[Tensor]:
    """Its scores, and the gradients of its rows, weights and biases."""
    members = len(layer.weight)
    given = rows.expand(members, -1, -1).clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(given)
    found.backward(slopes.expand(members, -1, -1).to(found.dtype))
    assert given.grad is not None
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    return [found[0], given.grad[0], layer.weight.grad[0], layer.bias.grad[0]]


@pytest.mark.parametrize(("inputs", "outputs"), [(1200, 2400), (384, 768), (37, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_member_has_the_bits_that_it_has_alone(inputs: int, outputs: int, dtype: torch.dtype):
    torch.manual_seed(0)
    rows, slopes = torch.randn(1, 32, inputs).to(dtype), torch.randn(1, 32, outputs)
    alone, beside = (first_member(affine(inputs, outputs, members), rows, slopes) for members in (1, 3))
    assert [torch.equal(*pair) for pair in zip(alone, beside, strict=True)] == [True] * 4


def test_gradients_are_those_of_torchs_own_linear_layer():
    torch.manual_seed(0)
    layer, rows, slopes = affine(48, 24, 1), torch.randn(1, 32, 48), torch.randn(1, 32, 24)
    found = first_member(layer, rows, slopes)
    plain = torch.nn.Linear(48, 24)
    plain.weight.data, plain.bias.data = layer.weight.detach()[0], layer.bias.detach()[0]
    given = rows[0].clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        scores = plain(given)
    scores.backward(slopes[0].to(scores.dtype))
    for own, other in zip(found, [scores, given.grad, plain.weight.grad, plain.bias.grad], strict=True):
        torch.testing.assert_close(own, other, rtol=2e-2, atol=2e-2)
