"""The compact table trains as the whole one does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from meltpoint.adapters import encoders
from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.data.batching import inputs, training_batches
from meltpoint.adapters.data.tokenising import encode_split
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.layers.compact_embedding import CompactEmbedding, compact, pieces_of
from meltpoint.adapters.training.optimisers import EncoderAdamW
from meltpoint.tasks.core.task import Example, Kind

Load = Callable[[str], Encoder]
Examples = Callable[[Kind, int], list[Example]]
KIND: Kind = "sentence_classification"


def split_of(encoder: Encoder, examples: list[Example]):
    return encode_split(KIND, examples, encoder.tokenizer, 32)


def twin(encoder: Encoder) -> Encoder:
    return copy.deepcopy(encoder, {id(encoder.tokenizer): encoder.tokenizer})


def foreign_batch(encoder: Encoder) -> Batch:
    """A sentence of pieces that the tiny training examples lack."""
    split = split_of(encoder, [Example("0", texts=("London bank harbour 3.5 ? xyz q",), label=0)])
    return next(training_batches(inputs(split), KIND, encoder.tokenizer.pad_piece, 4, [0], 1, by_length=True))


def train(encoder: Encoder, examples: list[Example], clip: float = 0.05, frozen_steps: int = 0) -> list[float]:
    """Some epochs with weight decay, a rate that changes each step, and the norm clipped; each step's norm."""
    split = split_of(encoder, examples)
    pad = encoder.tokenizer.pad_piece
    groups = encoder.layer_groups()
    adam = EncoderAdamW(groups, weight_decay=3.0)
    tables = [table for table in encoder.modules() if isinstance(table, CompactEmbedding)]
    encoder.set_dropout(0.0)
    norms = []
    for epoch in range(1, 5):
        for batch in training_batches(inputs(split), KIND, pad, 4, [0], epoch, by_length=True):
            for parameter in groups[0].parameters:
                parameter.requires_grad_(len(norms) >= frozen_steps)
            rate = 1e-2 / (1 + len(norms))
            adam.set_rates([rate] * len(groups))
            loss = (encoder.train()(batch)[-1][:, 0] - batch.labels[:, None]).square().mean()
            adam.zero_grad(set_to_none=True)
            loss.backward()
            norms.append(float(nn.utils.clip_grad_norm_(encoder.parameters(), clip)))
            adam.step()
            for table in tables:
                if table.weight.requires_grad:
                    table.decay *= adam.decay_of(table.weight)
    return norms


@pytest.mark.parametrize("frozen_steps", [0, 4])
def test_training_the_compact_table_is_training_the_dense_one(
    load_tiny: Load, make_examples: Examples, family: str, frozen_steps: int
):
    dense = load_tiny(family)
    small = twin(dense)
    examples = make_examples(KIND, 10)
    table = small.compact_pieces(pieces_of(split_of(dense, examples), dense.tokenizer.pad_piece))
    assert table is not None
    assert len(table.weight) < table.num_embeddings
    norms = [train(encoder, examples, frozen_steps=frozen_steps) for encoder in (dense, small)]
    torch.testing.assert_close(norms[1], norms[0], rtol=1e-4, atol=0.0)
    assert table.decay < 0.98  # the others did decay, and the test would see it
    first, second = dense.state_dict(), small.state_dict()
    assert list(first) == list(second)
    torch.testing.assert_close(dict(second), dict(first), rtol=2e-5, atol=2e-6)
    foreign = foreign_batch(dense)
    assert not set(foreign.pieces.flatten().tolist()) <= set(table.pieces.tolist())
    with torch.no_grad():
        for one, other in zip(small.eval()(foreign), dense.eval()(foreign), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def plain(rows: int = 9, **options: object) -> tuple[nn.Embedding, CompactEmbedding]:
    torch.manual_seed(0)
    dense = nn.Embedding(rows, 3, **options)
    return dense, CompactEmbedding(dense, torch.tensor([0, 2, 5]))


def test_evaluation_reads_every_piece_and_training_refuses_a_foreign_one():
    dense, table = plain()
    pieces = torch.arange(9).view(3, 3)
    assert torch.equal(table.eval()(pieces), dense(pieces))
    with pytest.raises(IndexError):
        table.train()(pieces)


@pytest.mark.parametrize("mode", [True, False])
def test_the_padding_piece_gets_no_gradient_where_the_dense_table_gives_it_none(mode: bool):
    _, table = plain(padding_idx=2)
    table.train(mode)(torch.tensor([[0, 2, 5, 2]])).sum().backward()
    assert table.weight.grad.tolist() == [[1.0] * 3, [0.0] * 3, [1.0] * 3]


def test_weights_are_saved_and_loaded_in_the_dense_layout():
    dense, table = plain()
    table.decay = 0.5
    state = table.state_dict()
    assert list(state) == ["weight"]
    expected = dense.weight.detach() * 0.5
    expected[[0, 2, 5]] = dense.weight.detach()[[0, 2, 5]]
    assert torch.equal(state["weight"], expected)
    fresh = CompactEmbedding(nn.Embedding(9, 3), torch.tensor([1, 2]))
    fresh.decay = 0.1
    fresh.load_state_dict(state)
    assert torch.equal(fresh.dense(), expected)
    state["weight"].zero_()
    assert torch.equal(fresh.dense(), expected), "the loaded table shares memory with what it was loaded from"


def test_a_saved_encoder_is_read_back_as_an_ordinary_one(load_tiny: Load, tmp_path: Path):
    encoder = load_tiny("bert")
    table = encoder.compact_pieces([0, 3, 4])
    table.decay = 0.75
    encoder.save(tmp_path)
    again = encoders.load(encoders.resolve(f"hf:{tmp_path}", KIND))
    assert type(again.model.get_input_embeddings()) is nn.Embedding
    assert torch.equal(again.model.get_input_embeddings().weight, table.dense())


class Model(nn.Module):
    """A table and something above it, as transformers hands them out."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.table, self.output = table, nn.Linear(3, table.num_embeddings, bias=False)

    def get_input_embeddings(self) -> nn.Module:
        return self.table

    def set_input_embeddings(self, table: nn.Module) -> None:
        self.table = table


def test_a_table_tied_to_another_module_is_left_alone():
    model = Model(nn.Embedding(9, 3))
    model.output.weight = model.table.weight
    assert compact(model, [1]) is None
    assert type(model.table) is nn.Embedding


@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}])
def test_an_unusual_table_and_one_of_which_all_is_trained_are_left_alone(options: dict[str, object]):
    assert compact(Model(nn.Embedding(9, 3, **options)), [1]) is None
    assert compact(Model(nn.Embedding(9, 3)), range(9)) is None
    assert compact(Model(nn.Embedding(9, 3)), [5, 1, 5]).pieces.tolist() == [1, 5]
