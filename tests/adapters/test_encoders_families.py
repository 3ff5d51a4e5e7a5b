"""Every family of encoder: all layers out, each parameter in one layer group, and dropout that acts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.nn import functional

from meltpoint.adapters import encoders
from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.data.batching import collate
from meltpoint.adapters.data.tokenising import encode_split
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.families.huggingface import architecture
from meltpoint.tasks.core.task import Example

Load = Callable[[str], Encoder]
Folder = Callable[[str], Path]

PAIRS = [
    Example("0", ("the old harbour was quiet", "the ships came home")),
    Example("1", ("a long film", "prices rose 3.5 percent, the bank said on Monday")),
]


def pair_batch(encoder: Encoder, examples: list[Example] = PAIRS) -> Batch:
    rows = encode_split("pair_classification", examples, encoder.tokenizer, encoder.max_pieces).rows
    return collate(rows, range(len(rows)), encoder.tokenizer.pad_piece, "pair_classification")


PADDING_FREE = ("albert", "bert", "distilbert", "electra", "modernbert", "roberta", "xlm-roberta")


def test_forward_gives_all_layers_as_transformers_does(load_tiny: Load, tiny_folder: Folder, family: str):
    encoder = load_tiny(family)
    reference = transformers.AutoModel.from_pretrained(tiny_folder(family), attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_folder(family))
    inputs = tokenizer(*zip(*(example.texts for example in PAIRS), strict=True), padding=True, return_tensors="pt")
    if not encoder.tokenizer.sentence("a", 8)[1]:
        inputs.pop("token_type_ids", None)
    batch = pair_batch(encoder)
    assert torch.equal(batch.pieces, inputs["input_ids"])
    with torch.no_grad():
        states, expected = encoder(batch), reference(**inputs, output_hidden_states=True).hidden_states
    assert len(states) == encoder.layers == len(expected)
    for layer, theirs in zip(states, expected, strict=True):
        assert layer.shape == (*batch.pieces.shape, encoder.dim)
        real = batch.piece_mask
        torch.testing.assert_close(layer[real], theirs[real], atol=1e-5, rtol=1e-4)


def test_a_batch_without_its_padding_has_the_same_states_and_gradients(load_tiny: Load, family: str):
    encoder = load_tiny(family)
    assert encoder.padding_free == (family in PADDING_FREE)
    if not encoder.padding_free:
        return  # such a family reads padded rows of about one length
    words = ("harbour", "the ships came", "home " * 60, "a long film " * 9, "quiet")
    batch = pair_batch(encoder, [Example(word, (word, "the old film")) for word in words])
    without, told = encoder(batch), torch.randn(*batch.pieces.shape, encoder.dim)
    assert torch.equal(encoder.top(batch), without[-1])
    told[~batch.piece_mask] = 0.0
    changed = torch.autograd.grad((without[-1] * told).sum(), list(encoder.parameters()), allow_unused=True)
    encoder.padding_free = False
    padded = encoder(batch)
    expected = torch.autograd.grad((padded[-1] * told).sum(), list(encoder.parameters()), allow_unused=True)
    for one, other in zip(without, padded, strict=True):
        torch.testing.assert_close(one[batch.piece_mask], other[batch.piece_mask], atol=1e-5, rtol=1e-4)
    for one, other in zip(changed, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


FIRST_ALONE = ("bert", "electra", "roberta", "xlm-roberta")


@pytest.mark.parametrize("frozen_below", [False, True])
def test_the_top_layer_for_one_state_a_row_has_the_same_state_and_gradients(
    load_tiny: Load, family: str, frozen_below: bool
):
    encoder = load_tiny(family)
    words = ("harbour", "the ships came", "home " * 60, "a long film " * 9, "quiet")
    batch = pair_batch(encoder, [Example(word, (word, "the old film")) for word in words])
    for group in encoder.layer_groups()[:-1]:
        for parameter in group.parameters:
            parameter.requires_grad_(not frozen_below)
    thawed = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    told = torch.randn(len(words), encoder.dim)
    found, outcome = [], []
    for cls_only in (False, True):
        batch = replace(batch, cls_only=cls_only)
        states = encoder(batch)
        assert torch.equal(encoder.top(batch), states[-1])
        given = 1 if cls_only and family in FIRST_ALONE else batch.pieces.shape[1]
        assert all(layer.shape[:2] == (len(words), given) for layer in states), "the others are left out"
        found.append(states)
        outcome.append(torch.autograd.grad((states[-1][:, 0] * told).sum(), thawed, allow_unused=True))
    for below, alone in zip(found[0][:-1], found[1][:-1], strict=True):
        assert torch.equal(below[:, 0], alone[:, 0]), "the layers below are those of whole rows"
    torch.testing.assert_close(found[1][-1][:, 0], found[0][-1][:, 0], atol=1e-5, rtol=1e-4)
    for one, other in zip(*outcome, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_a_top_layer_for_one_state_a_row_keeps_its_names_and_its_dropouts(load_tiny: Load):
    encoder = load_tiny("bert")
    plain = transformers.AutoModel.from_config(encoder.model.config, add_pooling_layer=False)
    assert list(encoder.model.state_dict()) == list(plain.state_dict())
    batch = replace(pair_batch(encoder), cls_only=True)
    for ratio, model in ((0.5, encoder), (0.0, copy.deepcopy(encoder))):
        model.set_dropout(ratio)
        quiet = model.eval().top(batch)
        assert torch.allclose(model.train().top(batch), quiet, atol=1e-6) == (ratio == 0.0)


def test_no_pooler_is_left(load_tiny: Load, family: str):
    assert not [name for name, _ in load_tiny(family).named_parameters() if "pooler" in name]


def test_dropout_acts_in_training_only_and_on_every_layer(load_tiny: Load, family: str):
    encoder = load_tiny(family)
    batch = pair_batch(encoder)
    torch.manual_seed(0)
    with torch.no_grad():
        encoder.set_dropout(0.0)
        quiet = encoder.eval()(batch)
        assert all(torch.equal(a, b) for a, b in zip(quiet, encoder.train()(batch), strict=True))
        encoder.set_dropout(0.5)
        assert all(torch.equal(a, b) for a, b in zip(quiet, encoder.eval()(batch), strict=True))
        assert not any(torch.allclose(a, b) for a, b in zip(encoder.train()(batch), quiet, strict=True))


def test_the_ratio_reaches_the_attention(load_tiny: Load, family: str, monkeypatch: pytest.MonkeyPatch):
    encoder = load_tiny(family)
    if family in ("deberta-v2", "mpnet"):
        pytest.skip("has no fused attention: its attention's dropout is a module like the others")
    ratios = []
    attend, by_length = functional.scaled_dot_product_attention, architecture.attend_by_length

    def spy(*args: Any, **named: Any) -> torch.Tensor:
        ratios.append(named["dropout_p"])
        return attend(*args, **named)

    def spy_by_length(*args: Any) -> torch.Tensor:
        ratios.append(args[5])
        return by_length(*args)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", spy)
    monkeypatch.setattr(architecture, "attend_by_length", spy_by_length)
    encoder.set_dropout(0.25)
    encoder.train()(pair_batch(encoder))
    encoder.eval()(pair_batch(encoder))
    assert ratios == [0.25, 0.25, 0.0, 0.0]


def test_a_saved_encoder_loads_again_and_gives_the_same_states(load_tiny: Load, family: str, tmp_path: Path):
    encoder = load_tiny(family)
    encoder.save(tmp_path)
    again = encoders.load(encoders.resolve(f"hf:{tmp_path}", "sentence_classification"))
    with torch.no_grad():
        states = zip(encoder(pair_batch(encoder)), again(pair_batch(again)), strict=True)
        assert all(torch.equal(ours, theirs) for ours, theirs in states)
