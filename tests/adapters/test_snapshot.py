from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.layers import compact_embedding
from meltpoint.adapters.layers.compact_embedding import CompactEmbedding, Snapshot, snapshot


def clones(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(first: Snapshot | dict[str, Tensor], second: Snapshot | dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def shake(encoder: Encoder) -> None:
    """Change all that training does."""
    with torch.no_grad():
        for tensor in encoder.parameters():
            tensor.add_(1.0)
    for table in encoder.modules():
        if isinstance(table, CompactEmbedding):
            table.decay *= 0.5


def test_a_snapshot_is_the_state_dict_of_its_moment(load_tiny: Callable[[str], Encoder], family: str):
    encoder = load_tiny(family)
    table = encoder.compact_pieces([0, 3, 5])
    assert table is not None
    table.decay = 0.9
    expected = clones(encoder)
    kept, shown = snapshot(encoder, "", copied=True), snapshot(encoder, "", copied=False)
    assert same(shown, expected)
    shake(encoder)
    assert same(kept, expected), "what training changes was copied"
    assert not same(snapshot(encoder, "", copied=True), expected)


def test_a_compact_table_is_put_together_when_it_is_read(
    load_tiny: Callable[[str], Encoder], monkeypatch: pytest.MonkeyPatch
):
    encoder = load_tiny("bert")
    encoder.compact_pieces([0, 3, 5])
    made: list[bool] = []
    later = compact_embedding.CompactEmbedding.later

    def counted(table: CompactEmbedding, copied: bool) -> Callable[[], Tensor]:
        dense = later(table, copied)
        return lambda: (made.append(copied), dense())[1]

    monkeypatch.setattr(compact_embedding.CompactEmbedding, "later", counted)
    kept = snapshot(encoder, "encoder.", copied=True) | Snapshot({"head.bias": torch.ones(2)})
    assert all(name.startswith(("encoder.", "head.")) for name in kept)
    assert made == []
    assert len(dict(kept)) == len(kept)
    assert made == [True]
    assert len(kept) == len(encoder.state_dict()) + 1


def test_until_the_encoder_has_moved_a_trial_keeps_the_pretrained_weights_themselves(make_trainer):
    trainer = make_trainer("stack_and_finetune", epochs=2, stack_and_finetune__stack_epochs=2)
    pretrained = trainer.model.pretrained_weights()
    moved = []
    for result in trainer.results():
        if trainer.trial.best[1] == result.epoch:
            kept = trainer.trial.best_state
            shared = (kept[name].data_ptr() == tensor.data_ptr() for name, tensor in pretrained.items())
            moved.append((result.epoch, all(shared)))
    assert moved
    assert all(is_shared is (epoch <= 2) for epoch, is_shared in moved)


def test_a_modules_own_weights_are_named_as_in_its_state_dict():
    layer = torch.nn.Linear(2, 3)
    assert same(snapshot(layer, "", copied=False), layer.state_dict())
    assert set(snapshot(layer, "encoder.", copied=False)) == {"encoder.weight", "encoder.bias"}
