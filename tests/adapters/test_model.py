"""The model: its layer groups, a frozen encoder that never varies, an encoder that outlives its trials unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from meltpoint.adapters import heads, modes
from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.data.batching import collate
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.layers.compact_embedding import CompactEmbedding
from meltpoint.adapters.training.trainer import Trainer
from meltpoint.tests.adapters.devices import cpu_tensors

pytestmark = cpu_tensors

Make = Callable[..., Any]


def first_batch(trainer: Trainer) -> Batch:
    rows = trainer.data.train.rows
    return collate(rows, range(4), trainer.model.encoder.tokenizer.pad_piece, trainer.data.task.kind)


def weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("mode", modes.names())
@pytest.mark.parametrize("head", heads.names())
def test_the_layer_groups_hold_every_parameter_that_trains_once_and_the_head_last(
    make_trainer: Make, mode: str, head: str
):
    model = make_trainer(mode, heads.get(head).kinds[0], head).model
    groups = model.layer_groups()
    held = [id(parameter) for group in groups for parameter in group.parameters]
    assert len(held) == len(set(held))
    assert set(held) == {id(own) for own in model.parameters() if own.requires_grad}
    assert (set(held) == {id(own) for own in model.parameters()}) == (mode not in ("lora", "norm_bias", "top_k"))
    assert [group.name for group in groups] == ["embeddings", "layer_1", "layer_2", "head"]
    of_the_head = {id(parameter) for parameter in model.head.parameters()}
    assert of_the_head <= {id(parameter) for parameter in groups[-1].parameters}


def test_feature_extraction_shows_the_head_a_mix_of_all_layers_and_fine_tuning_the_top(make_trainer: Make):
    frozen, tuned = make_trainer("feature_extraction"), make_trainer("fine_tuning")
    batch = first_batch(frozen)
    frozen.model.eval()
    tuned.model.eval()
    with torch.no_grad():
        layers = frozen.model.encoder(batch)
        torch.testing.assert_close(frozen.model.states(batch), torch.stack(layers).mean(0)[None])
        torch.testing.assert_close(tuned.model.states(batch)[0, :, 0], layers[-1][:, 0])  # its head reads no other


def test_feature_extraction_shows_the_head_the_top_layer_alone_where_the_setting_says_so(make_trainer: Make):
    model = make_trainer("feature_extraction", **{"feature_extraction.layers": "top"}).model
    batch = first_batch(make_trainer("feature_extraction"))
    model.eval()
    assert model.mix is None
    assert model.layers_read == (2,)
    with torch.no_grad():
        assert torch.equal(model.states(batch), model.encoder(batch)[-1][None])


@pytest.mark.parametrize("mode", ["feature_extraction", "fine_tuning", "stack_and_finetune"])
def test_a_frozen_encoders_states_never_vary_and_carry_no_gradient_also_in_training(make_trainer: Make, mode: str):
    own = {"feature_extraction.layers": "top"} if mode == "feature_extraction" else {"encoder_dropout": 0.5}
    trainer = make_trainer(mode, **own)
    model, batch = trainer.model, first_batch(trainer)
    if mode != "feature_extraction":  # whose encoder is frozen from the start
        model.freeze_encoder(True)
    model.train()
    assert model.head.training
    assert not any(module.training for module in model.encoder.modules())
    first, second = model.states(batch), model.states(batch)
    assert torch.equal(first, second)
    assert not first.requires_grad
    model(batch).sum().backward()
    assert all(parameter.grad is None for parameter in model.encoder.parameters())
    assert all(parameter.grad is not None for parameter in model.head.parameters())


@pytest.mark.parametrize("mode", modes.names())
@pytest.mark.parametrize(
    ("head", "kind"),
    [("linear", "sentence_classification"), ("linear", "sequence_labelling"), ("bilstm", "pair_regression")],
)
def test_only_an_open_encoder_leaves_out_states_that_its_head_does_not_read_and_only_for_that_head(
    make_trainer: Make, mode: str, head: str, kind: str
):
    trainer = make_trainer(mode, kind, head)
    model, batch = trainer.model.eval(), first_batch(trainer)
    others = batch.piece_mask.clone()
    others[:, 0] = False
    alone = modes.get(mode).trains_encoder and (head, kind) == ("linear", "sentence_classification")
    with torch.no_grad():
        seen, whole = model.states(batch)[0], model.encoder.top(batch)
    assert whole[others].any(dim=-1).all(), "who asks the encoder itself gets every state"
    assert seen.shape[1] == (1 if alone else whole.shape[1])
    assert alone or seen[others].any(dim=-1).all()
    if mode != "feature_extraction":
        torch.testing.assert_close(seen[:, 0], whole[:, 0], atol=1e-5, rtol=1e-4)


def test_an_open_encoder_varies_in_training_by_its_dropout_alone(make_trainer: Make):
    trainer = make_trainer("fine_tuning", encoder_dropout=0.5)
    model, batch = trainer.model.train(), first_batch(trainer)
    assert not torch.equal(model.states(batch), model.states(batch))
    assert model.states(batch).requires_grad
    calm = make_trainer("fine_tuning", encoder_dropout=0.0).model.train()
    assert torch.equal(calm.states(batch), calm.states(batch))


def test_freezing_and_thawing_leave_evaluation_mode_alone(make_trainer: Make):
    model = make_trainer("fine_tuning").model.eval()
    model.freeze_encoder(True)
    model.freeze_encoder(False)
    assert not any(module.training for module in model.modules())
    model.train()
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("mode", modes.names())
def test_a_trial_leaves_the_encoder_that_it_was_handed_as_it_was_bit_for_bit(
    make_trainer: Make, load_tiny: Callable[[str], Encoder], mode: str
):
    encoder = load_tiny("bert")
    before, dropouts = weights(encoder), [m.p for m in encoder.modules() if isinstance(m, torch.nn.Dropout)]
    own = {"encoder_dropout": 0.4} if modes.get(mode).trains_encoder else {}
    trainer = make_trainer(mode, encoder=encoder, head="linear", **own)
    list(trainer.results())
    assert same(weights(encoder), before)
    assert [m.p for m in encoder.modules() if isinstance(m, torch.nn.Dropout)] == dropouts
    assert not any(module.training for module in encoder.modules())
    if modes.get(mode).trains_encoder:
        assert not same(weights(trainer.model.encoder), before), "the copy learned"


def test_only_a_model_whose_encoder_trains_pays_for_a_copy_of_it(
    make_trainer: Make, load_tiny: Callable[[str], Encoder]
):
    encoder = load_tiny("bert")
    assert make_trainer("feature_extraction", encoder=encoder).model.encoder is encoder
    copy = make_trainer("fine_tuning", encoder=encoder).model.encoder
    assert copy is not encoder
    assert copy.tokenizer is encoder.tokenizer


def test_copied_weights_of_the_encoder_are_its_state_dict_of_that_moment(make_trainer: Make):
    model = make_trainer("fine_tuning").model
    tables = [module for module in model.encoder.modules() if isinstance(module, CompactEmbedding)]
    expected = {f"encoder.{name}": own for name, own in weights(model.encoder).items()}
    kept = model.encoder_weights()
    assert same(model.encoder_weights(copied=False), expected)
    with torch.no_grad():
        for parameter in model.encoder.parameters():
            parameter.add_(1.0)
    assert tables
    for table in tables:
        table.decay *= 0.5
    assert same(kept, expected)
    assert not same(model.encoder_weights(), expected)
