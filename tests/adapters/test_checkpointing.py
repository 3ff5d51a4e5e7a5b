"""Gradient checkpointing: the plain numbers to the last bit, from far fewer kept activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.training.epochs import EpochResult

Make = Callable[..., Any]
ARCHITECTURES = ("bert", "roberta", "modernbert", "deberta-v2", "electra", "distilbert")
MODES = ("fine_tuning", "lora", "norm_bias", "top_k")


def trainers(make: Make, load: Callable[[str], Encoder], family: str, mode: str, **words: Any) -> list[Any]:
    """The same trial without and with checkpointing."""
    words = {"head": "linear", "train": 12, "encoder": load(family), **words}
    return [make(mode, checkpoints=checkpoints, **words) for checkpoints in (False, True)]


def numbers(results: list[EpochResult]) -> list[tuple[Any, ...]]:
    return [(result.train_loss, result.dev) for result in results]


def kept_bytes(trainer: Any) -> int:
    """The size of what autograd keeps of a training step's forward pass."""
    trainer.model.train()
    trainer._set_encoder_rates(trainer.trial.table)
    trainer.model.rng.begin(0)
    batch = next(trainer._batches(1, frozen=False, seeds=[0]))
    kept = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    weights = {own.untyped_storage().data_ptr() for own in trainer.model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        trainer.model(batch)
    return sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in weights)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", ARCHITECTURES)
def test_a_trial_with_dropout_has_the_plain_bits(make_trainer: Make, load_tiny, family: str, mode: str):
    plain, checkpointed = trainers(make_trainer, load_tiny, family, mode, encoder_dropout=0.2)
    assert numbers([*checkpointed.results()]) == numbers([*plain.results()])
    assert plain.encoder_moved
    one, two = plain.trial.best_state, checkpointed.trial.best_state
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_far_less_is_kept_of_a_forward_pass(make_trainer: Make, load_tiny, family: str):
    plain, checkpointed = map(kept_bytes, trainers(make_trainer, load_tiny, family, "fine_tuning"))
    assert checkpointed < plain / 5


@pytest.mark.parametrize("words", [{"kind": "sequence_labelling"}, {"micro_batch": 2}, {"precision": "bf16"}])
def test_so_it_is_where_words_are_read_in_parts_of_a_batch_and_in_bf16(make_trainer: Make, load_tiny, words):
    plain, checkpointed = trainers(make_trainer, load_tiny, "bert", "fine_tuning", **words)
    assert numbers([*checkpointed.results()]) == numbers([*plain.results()])


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_layers_above_cached_states_have_the_plain_bits(make_trainer: Make, load_tiny, kept_states, family: str):
    words = {"encoder_dropout": 0.2, "frozen_states": kept_states, "top_k__k": 1}
    plain, checkpointed = trainers(make_trainer, load_tiny, family, "top_k", **words)
    assert checkpointed.model.starts_at is not None
    assert numbers([*checkpointed.results()]) == numbers([*plain.results()])
    assert kept_states.opened


@pytest.mark.parametrize("mode", ["lora", "top_k"])
def test_frozen_embeddings_still_get_no_gradient(make_trainer: Make, load_tiny, mode: str):
    _, checkpointed = trainers(make_trainer, load_tiny, "bert", mode)
    embeddings = checkpointed.model.encoder.model.get_input_embeddings()
    assert not embeddings(torch.tensor([[1, 2]])).requires_grad


def test_the_pretrained_encoder_is_not_changed(make_trainer: Make, load_tiny):
    encoder = load_tiny("bert")
    assert make_trainer(encoder=encoder, checkpoints=True).model.encoder.checkpoints
    assert not encoder.checkpoints
    assert encoder.model.config.use_cache
    assert not any(getattr(module, "gradient_checkpointing", False) for module in encoder.modules())


@pytest.mark.parametrize("family", ["albert", "mpnet"])
def test_families_that_transformers_cannot_checkpoint_say_so(load_tiny, elmo: Encoder, family: str):
    assert not load_tiny(family).supports_checkpointing
    assert not elmo.supports_checkpointing
