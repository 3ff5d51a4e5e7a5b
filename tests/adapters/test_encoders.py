"""Encoders: what a word resolves to, what is refused, and what every family of encoder gives."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from meltpoint.adapters import encoders
from meltpoint.adapters.batch import Batch
from meltpoint.adapters.batching import collate
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.encoders import EncoderReference, _files, _hub
from meltpoint.adapters.encoders import minilm as minilm_file
from meltpoint.adapters.tokenising import encode_split
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


# --- words ---


def test_every_named_encoder_resolves_for_every_kind_without_loading_anything():
    for word in encoders.names():
        assert encoders.resolve(word, "sequence_labelling").word == word
        assert encoders.summary(word)


def test_bert_base_is_cased_for_sequence_labelling_only_and_pinned():
    cased = encoders.resolve("bert-base", "sequence_labelling")
    uncased = encoders.resolve("bert-base", "pair_regression")
    assert (cased.source, uncased.source) == ("google-bert/bert-base-cased", "google-bert/bert-base-uncased")
    assert all(len(reference.revision or "") == 40 for reference in (cased, uncased))


def test_an_unknown_word_names_the_near_misses():
    with pytest.raises(ValueError, match=r"Unknown encoder 'minilmm'. Did you mean minilm\?"):
        encoders.resolve("minilmm", "sentence_classification")
    with pytest.raises(ValueError, match="Did you mean bert-base"):
        encoders.resolve("bert_base", "sentence_classification")


def test_elmo_is_refused_clearly():
    with pytest.raises(ValueError, match="cannot be loaded yet"):
        encoders.resolve("elmo:folder", "sentence_classification")


def test_a_relative_folder_becomes_absolute(tiny_folder: Folder, monkeypatch: pytest.MonkeyPatch):
    folder = tiny_folder("bert").resolve()
    monkeypatch.chdir(folder.parent)
    reference = encoders.resolve(f"hf:{folder.name}", "sentence_classification")
    assert reference == EncoderReference(f"hf:{folder}", str(folder))
    assert reference.is_folder


def test_a_hub_id_keeps_its_revision():
    reference = encoders.resolve("hf:some/model@refs/pr/1", "sentence_classification")
    assert (reference.source, reference.revision, reference.is_folder) == ("some/model", "refs/pr/1", False)
    assert encoders.resolve("hf:some/model", "sentence_classification").revision is None


@pytest.mark.parametrize("word", ["hf:./nowhere", "hf:/nowhere/at/all", "hf:~/nowhere", "hf:a/b/c"])
def test_a_missing_folder_is_named_in_one_line(word: str):
    with pytest.raises(ValueError, match="There is no folder /") as raised:
        encoders.resolve(word, "sentence_classification")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("file", "message"),
    [("config.json", "holds no config.json"), ("model.safetensors", "holds no model.safetensors"),
     ("tokenizer.json", "holds no tokenizer")],
)  # fmt: skip
def test_a_folder_that_lacks_a_file_is_refused(tiny_folder: Folder, tmp_path: Path, file: str, message: str):
    folder = shutil.copytree(tiny_folder("bert"), tmp_path / "copy")
    (folder / file).unlink()
    with pytest.raises(ValueError, match=message):
        encoders.resolve(f"hf:{folder}", "sentence_classification")


def test_pickled_weights_are_refused_with_the_remedy(tiny_folder: Folder, tmp_path: Path):
    folder = shutil.copytree(tiny_folder("bert"), tmp_path / "copy")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"only pickled weights .* never read; .* model.safetensors"):
        encoders.resolve(f"hf:{folder}", "sentence_classification")


def test_the_hub_out_of_reach_gives_one_line_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_hub, "_cached", lambda reference: None)

    def unreachable(*args: object, **kwargs: object) -> None:
        raise OSError("Name or service not known\nmore talk")

    monkeypatch.setattr(_hub, "model_info", unreachable)
    with pytest.raises(ValueError, match=r"google-bert.*\(Name or service not known\); .*HF_HOME.*hf:FOLDER") as raised:
        encoders.load(encoders.resolve("bert-base", "sentence_classification"))
    assert "\n" not in str(raised.value)


def test_a_branch_is_taken_from_the_cache_when_the_hub_is_out_of_reach(
    tiny_folder: Folder, monkeypatch: pytest.MonkeyPatch
):
    def unreachable(*args: object, **kwargs: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(_hub, "_cached", lambda reference: tiny_folder("bert"))
    monkeypatch.setattr(_hub, "model_info", unreachable)
    encoder = encoders.load(encoders.resolve("hf:some/model", "sentence_classification"))
    assert encoder.revision == f"some/model@{tiny_folder('bert').name}"


# --- weights ---


def test_minilm_is_checked_against_its_sha256(minilm_encoder: Encoder, tiny_folder: Folder):
    assert minilm_encoder.fingerprint == minilm_file.SHA256[:16]
    wrong = EncoderReference("minilm", str(tiny_folder("bert")), None, minilm_file.SHA256)
    with pytest.raises(ValueError, match="are not those of 'minilm': their sha256 begins"):
        encoders.load(wrong)


def test_minilm_comes_from_the_hub_where_the_package_is_absent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    reference = minilm_file.reference("sentence_classification")
    assert (reference.source, reference.is_folder) == (minilm_file.HUB_ID, False)
    assert len(reference.revision or "") == 40


def test_loading_twice_gives_equal_weights_and_leaves_the_random_state(
    load_tiny: Load, tiny_folder: Folder, family: str
):
    tiny_folder(family)  # written first: random weights take from the random state
    state = torch.get_rng_state()
    one, two = load_tiny(family), load_tiny(family)
    assert torch.equal(state, torch.get_rng_state())
    assert one.fingerprint == two.fingerprint
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert {parameter.dtype for parameter in one.parameters()} == {torch.float32}


def test_loading_is_silent(load_tiny: Load, capfd: pytest.CaptureFixture[str]):
    load_tiny("bert")  # its file holds a pooler, which transformers would report
    assert capfd.readouterr() == ("", "")


def test_a_file_that_lacks_an_encoder_weight_is_refused(tiny_folder: Folder, tmp_path: Path):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(tiny_folder("bert"), tmp_path / "copy")
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks 1 of the encoder's weights, encoder.layer.1.output.dense.weight"):
        encoders.load(encoders.resolve(f"hf:{folder}", "sentence_classification"))


def test_weights_of_another_shape_are_refused(tiny_folder: Folder, tmp_path: Path):
    folder = shutil.copytree(tiny_folder("bert"), tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 128}))
    with pytest.raises(ValueError, match=r"its weights do not fit its config.json") as raised:
        encoders.load(encoders.resolve(f"hf:{folder}", "sentence_classification"))
    assert "\n" not in str(raised.value)


def test_the_weights_of_a_masked_language_model_load_as_its_encoder(tiny_folder: Folder, tmp_path: Path):
    config = transformers.AutoConfig.from_pretrained(tiny_folder("bert"))
    model = transformers.BertForMaskedLM(config)
    folder = shutil.copytree(tiny_folder("bert"), tmp_path / "copy")
    model.save_pretrained(folder)
    encoder = encoders.load(encoders.resolve(f"hf:{folder}", "sentence_classification"))
    loaded = dict(encoder.named_parameters())
    assert torch.equal(loaded["model.embeddings.word_embeddings.weight"], model.bert.embeddings.word_embeddings.weight)


def test_sharded_weights_load_and_a_lost_shard_is_named(tiny_folder: Folder, tmp_path: Path):
    folder = shutil.copytree(tiny_folder("bert"), tmp_path / "copy")
    (folder / "model.safetensors").unlink()
    transformers.AutoModel.from_pretrained(tiny_folder("bert")).save_pretrained(folder, max_shard_size="60KB")
    shards = _files.weight_files(folder)
    assert len(shards) > 1
    encoder = encoders.load(encoders.resolve(f"hf:{folder}", "sentence_classification"))
    assert len(encoder.fingerprint) == 16
    shards[-1].unlink()
    with pytest.raises(ValueError, match=f"lacks {shards[-1].name}"):
        encoders.resolve(f"hf:{folder}", "sentence_classification")


def test_a_replaced_weights_file_gets_another_fingerprint(tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(b"one")
    first = _files.weights_digest(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"three")
    assert _files.weights_digest(tmp_path) != first


@pytest.mark.parametrize(
    "config",
    [
        transformers.GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=200),
        transformers.BartConfig(
            d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=1, decoder_attention_heads=1,
            encoder_ffn_dim=8, decoder_ffn_dim=8, vocab_size=200,
        ),
        transformers.BertConfig(
            hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=200,
            is_decoder=True,
        ),
    ],
    ids=["decoder", "encoder-decoder", "BERT as a decoder"],
)  # fmt: skip
def test_what_is_no_bidirectional_encoder_is_refused(
    config: transformers.PretrainedConfig, tiny_folder: Folder, tmp_path: Path
):
    folder = shutil.copytree(tiny_folder("bert"), tmp_path / "copy")
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    with pytest.raises(ValueError, match="is no bidirectional text encoder"):
        encoders.load(encoders.resolve(f"hf:{folder}", "sentence_classification"))


def test_code_in_a_folder_is_never_run(tiny_folder: Folder, tmp_path: Path):
    folder = shutil.copytree(tiny_folder("bert"), tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModel": "own.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit\n")
    with pytest.raises(ValueError, match="its configuration cannot be read") as raised:
        encoders.load(encoders.resolve(f"hf:{folder}", "sentence_classification"))
    assert not (tmp_path / "ran").exists()
    assert "\n" not in str(raised.value)


# --- every family ---


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


def test_padding_does_not_change_a_rows_states(load_tiny: Load, family: str):
    encoder = load_tiny(family)
    with torch.no_grad():
        together = encoder(pair_batch(encoder))[-1]
        alone = encoder(pair_batch(encoder, PAIRS[:1]))[-1]
    torch.testing.assert_close(together[0, : alone.shape[1]], alone[0], atol=1e-5, rtol=1e-4)


def test_the_longest_input_is_taken_and_is_what_the_positions_allow(load_tiny: Load, family: str):
    encoder = load_tiny(family)
    assert encoder.max_pieces == 64
    words = Example("long", ("a " * 200, "b " * 200))
    batch = pair_batch(encoder, [words])
    assert batch.pieces.shape == (1, 64)
    with torch.no_grad():
        assert encoder(batch)[-1].isfinite().all()


def test_every_parameter_is_in_exactly_one_layer_group(load_tiny: Load, family: str):
    encoder = load_tiny(family)
    groups = encoder.layer_groups()
    grouped = [id(parameter) for group in groups for parameter in group.parameters]
    assert sorted(grouped) == sorted(id(parameter) for parameter in encoder.parameters())
    layers = ["layer_1"] if family == "albert" else ["layer_1", "layer_2"]
    assert [group.name for group in groups] == ["embeddings", *layers]


def test_a_layer_group_acts_on_its_own_layer_and_those_above_only(load_tiny: Load, family: str):
    encoder = load_tiny(family)
    states = encoder(pair_batch(encoder))
    for lowest, group in enumerate(encoder.layer_groups()):
        for number, layer in enumerate(states):
            gradients = torch.autograd.grad(layer.sum(), group.parameters, allow_unused=True, retain_graph=True)
            acts = any(gradient is not None for gradient in gradients)
            assert acts == (number >= lowest), f"{group.name} on layer {number}"


def test_no_pooler_is_left(load_tiny: Load, family: str):
    assert not [name for name, _ in load_tiny(family).named_parameters() if "pooler" in name]


def test_no_dropout_in_training_equals_evaluation_bit_for_bit(load_tiny: Load, family: str):
    encoder = load_tiny(family)
    batch = pair_batch(encoder)
    with torch.no_grad():
        expected = encoder.eval()(batch)
        encoder.set_dropout(0.0)
        found = encoder.train()(batch)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_dropout_acts_in_training_only_and_on_every_layer(load_tiny: Load, family: str):
    encoder = load_tiny(family)
    batch = pair_batch(encoder)
    encoder.set_dropout(0.5)
    torch.manual_seed(0)
    with torch.no_grad():
        quiet = encoder.eval()(batch)
        assert all(torch.equal(a, b) for a, b in zip(quiet, encoder(batch), strict=True))
        assert not any(torch.allclose(a, b) for a, b in zip(encoder.train()(batch), quiet, strict=True))


def test_the_ratio_reaches_the_fused_attention(load_tiny: Load, family: str, monkeypatch: pytest.MonkeyPatch):
    encoder = load_tiny(family)
    if family in ("deberta-v2", "mpnet"):
        pytest.skip("has no fused attention: its attention's dropout is a module like the others")
    ratios = []
    fused = torch.nn.functional.scaled_dot_product_attention

    def spy(*args: object, **kwargs: object) -> torch.Tensor:
        ratios.append(kwargs["dropout_p"])
        return fused(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    encoder.set_dropout(0.25)
    encoder.train()(pair_batch(encoder))
    encoder.eval()(pair_batch(encoder))
    assert ratios == [0.25, 0.25, 0.0, 0.0]


def test_bf16_autocast_runs_and_stays_close(load_tiny: Load, family: str):
    encoder = load_tiny(family)
    batch = pair_batch(encoder)
    with torch.no_grad():
        exact = encoder(batch)[-1]
        with torch.autocast("cpu", torch.bfloat16):
            rough = encoder(batch)[-1]
    real = batch.piece_mask
    torch.testing.assert_close(rough.float()[real], exact[real], atol=0.15, rtol=0.1)


def test_a_saved_encoder_loads_again_and_gives_the_same_states(load_tiny: Load, family: str, tmp_path: Path):
    encoder = load_tiny(family)
    encoder.save(tmp_path)
    again = encoders.load(encoders.resolve(f"hf:{tmp_path}", "sentence_classification"))
    with torch.no_grad():
        states = zip(encoder(pair_batch(encoder)), again(pair_batch(again)), strict=True)
        assert all(torch.equal(ours, theirs) for ours, theirs in states)


def test_minilm_knows_that_paraphrases_are_close(minilm_encoder: Encoder):
    examples = [Example(str(i), (text,)) for i, text in enumerate(
        ["A man is playing a guitar.", "Someone plays the guitar.", "The stock market fell sharply."])]  # fmt: skip
    rows = encode_split("sentence_classification", examples, minilm_encoder.tokenizer, 128).rows
    batch = collate(rows, range(3), minilm_encoder.tokenizer.pad_piece, "sentence_classification")
    with torch.no_grad():
        states = minilm_encoder(batch)[-1]
    means = (states * batch.piece_mask[:, :, None]).sum(1) / batch.piece_mask.sum(1, keepdim=True)
    near, far = torch.cosine_similarity(means[:1], means[1:])
    assert near > 0.7 > 0.3 > far
