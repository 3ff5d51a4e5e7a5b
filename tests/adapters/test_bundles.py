"""Bundles: which trials may train side by side, and that a trial trains on unchanged where another one leaves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from meltpoint.adapters import heads, modes
from meltpoint.adapters import settings as catalogue
from meltpoint.adapters.head import Head, HeadShape
from meltpoint.adapters.layers.dropout import MemberRng
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
