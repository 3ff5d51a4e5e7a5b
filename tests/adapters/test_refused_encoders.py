"""Encoders that could never train are refused before a trial, each with one line that says what it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import PretrainedConfig

from meltpoint.adapters import encoders
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.families.huggingface import pretrained

Load = Callable[[str], Encoder]
Folder = Callable[[str], Path]

HEADS = {"num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 8, "intermediate_size": 8}


def refusal(folder: Path) -> str:
    """What `plan` says of a folder, which is what loading it says."""
    reasons = []
    pretrained.check.cache_clear()
    for open_it in (encoders.check, encoders.load):
        with pytest.raises(ValueError, match=str(folder)) as refused:
            open_it(encoders.resolve(f"hf:{folder}", "sentence_classification"))
        reasons.append(str(refused.value))
    assert reasons[0] == reasons[1]
    assert "\n" not in reasons[0]
    return reasons[0]


def edit(folder: Path, **changes: object) -> None:
    """Change the configuration."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (transformers.BertConfig(**HEADS, is_decoder=True), "Bert is set up as a decoder"),
        (transformers.T5Config(), "T5 is an encoder-decoder model"),
        (transformers.MBartConfig(), "MBart is an encoder-decoder model"),
        (transformers.WhisperConfig(), "Whisper is an encoder-decoder model"),
        (transformers.GPT2Config(), "GPT2 is a decoder"),
        (transformers.MistralConfig(), "Mistral is a decoder"),
        (transformers.ViTConfig(), "ViT is not a text encoder"),
        (transformers.Wav2Vec2Config(), "Wav2Vec2 is not a text encoder"),
        (transformers.CLIPConfig(), "CLIP is a model of images or sound"),
        (transformers.FunnelConfig(), "Funnel is a funnel"),
        (transformers.ReformerConfig(), "Reformer is a reversible model"),
        (transformers.XLNetConfig(), "XLNet is a permutation language"),
    ],
)
def test_a_model_that_is_no_encoder_is_refused_by_what_it_is(copy: Path, config: PretrainedConfig, what: str):
    config.save_pretrained(copy)
    assert refusal(copy).startswith(f"hf:{copy}: {what}")
    assert refusal(copy).endswith(
        "Meltpoint adapts encoders (BERT, RoBERTa, ELECTRA, DeBERTa, ModernBERT, …). Name one of those."
    )


def test_an_image_model_without_a_tokenizer_is_called_one_and_not_asked_for_a_tokenizer(copy: Path):
    transformers.ViTConfig().save_pretrained(copy)
    for name in ("tokenizer.json", "vocab.txt"):
        (copy / name).unlink(missing_ok=True)
    with pytest.raises(ValueError, match="ViT is not a text encoder"):
        encoders.resolve(f"hf:{copy}", "sentence_classification")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "not JSON"), ("", "not JSON"), ("[" * 100_000, "nested too deeply"), ("[]", "names no model type"),
        ('{"hidden_size": 8}', "names no model type"), ('{"model_type": 3}', "names no model type"),
        ('{"model_type": "brain"}', r"names the model type 'brain', which transformers .* does not know"),
        ('{"model_type": "bert", "hidden_size": "wide"}', "its config.json cannot be read"),
        ('{"model_type": "bert", "dtype": "odd"}', "its config.json cannot be read"),
    ],
)  # fmt: skip
def test_a_broken_config_is_one_line(copy: Path, text: str, what: str):
    (copy / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=what) as refused:
        encoders.check(encoders.resolve(f"hf:{copy}", "sentence_classification"))
    assert str(copy) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [lambda whole: whole[:5000], lambda whole: whole[:4], lambda whole: b"",
                                     lambda whole: b"\xff" * 4096])  # fmt: skip
def test_weights_that_are_cut_off_are_refused_with_their_file(copy: Path, content: Callable[[bytes], bytes]):
    weights = copy / "model.safetensors"
    weights.write_bytes(content(weights.read_bytes()))
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged or truncated .*; copy or download it again"):
        encoders.resolve(f"hf:{copy}", "sentence_classification")


def test_a_pointer_of_git_lfs_is_called_one(copy: Path):
    (copy / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    with pytest.raises(ValueError, match="is a Git LFS pointer, not the weights; run `git lfs pull`"):
        encoders.resolve(f"hf:{copy}", "sentence_classification")


def test_weights_of_another_shape_are_refused_with_both_shapes(copy: Path):
    edit(copy, intermediate_size=128)
    assert (
        "weights do not fit its config.json: encoder.layer.0.intermediate.dense.bias is (64,) in the file but (128,)"
        in refusal(copy)
    )


def test_weights_of_fewer_layers_than_the_configuration_has_are_refused(copy: Path):
    edit(copy, num_hidden_layers=3)
    assert "lacks 16 of the encoder's weights that its config.json names, including encoder.layer.2." in refusal(copy)


def test_a_tokenizer_with_more_pieces_than_the_vocabulary_is_refused(copy: Path):
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(copy)
    tokenizer.add_tokens(["harbourmaster", "shipwright"])
    tokenizer.save_pretrained(copy)
    rows = len(tokenizer) - 2
    assert f"its tokenizer has {rows + 2} pieces, but its weights embed {rows}. Save the tokenizer" in refusal(copy)


def test_weights_that_the_configuration_has_no_place_for_are_refused(copy: Path):
    edit(copy, num_hidden_layers=1)
    assert "holds 16 weights that BertModel does not use by its config.json, including encoder.layer.1." in refusal(
        copy
    )
    edit(copy, num_hidden_layers=2)
    weights = load_file(copy / "model.safetensors")
    whole = {f"bert.{name}": weight for name, weight in weights.items()}  # as of a model with a head on it
    save_file(whole | {"classifier.weight": torch.zeros(2, 32)}, copy / "model.safetensors", {"format": "pt"})
    encoders.check(encoders.resolve(f"hf:{copy}", "sentence_classification"))
    adapter = {"bert.encoder.layer.0.output.adapter.down.weight": torch.zeros(2, 32)}
    save_file(whole | adapter, copy / "model.safetensors", {"format": "pt"})
    assert f"holds 1 weights that BertModel does not use by its config.json, including {min(adapter)}" in refusal(copy)


@pytest.mark.parametrize("files", [[], ["config.json", "model.safetensors", "tokenizer.json"]])
def test_an_adapter_is_called_one_alone_and_beside_an_encoder(copy: Path, tmp_path: Path, files: list[str]):
    (tmp_path / "adapter").mkdir()
    for name in files:
        shutil.copy(copy / name, tmp_path / "adapter" / name)
    (tmp_path / "adapter" / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "b"}')
    save_file({"base_model.model.lora_A.weight": torch.zeros(2, 2)}, tmp_path / "adapter" / "adapter_model.safetensors")
    with pytest.raises(
        ValueError, match=r"adapter holds an adapter \(adapter_config.json\).*merge_and_unload\(\)"
    ) as why:
        encoders.resolve(f"hf:{tmp_path / 'adapter'}", "sentence_classification")
    assert "\n" not in str(why.value)


@pytest.mark.parametrize("inside", ["checkpoint-500", "encoder", "0_Transformer", "snapshots/1f2e"])
def test_a_folder_around_an_encoder_names_the_encoders_folder(copy: Path, tmp_path: Path, inside: str):
    shutil.copytree(copy, tmp_path / "around" / inside)
    (tmp_path / "around" / "1_Pooling").mkdir()
    (tmp_path / "around" / "1_Pooling" / "config.json").write_text("{}")
    around = tmp_path / "around"
    with pytest.raises(ValueError, match=f"{around} holds no config.json; name {around / inside}\\.$"):
        encoders.resolve(f"hf:{around}", "sentence_classification")


def test_a_quantised_encoder_is_called_one(copy: Path):
    edit(copy, quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True})
    assert "is quantised (quantization_config in its config.json), which cannot be adapted" in refusal(copy)


def test_code_of_its_own_is_said_to_stay_unread(copy: Path):
    edit(copy, auto_map={"AutoModel": "own.Model"})
    reference = encoders.resolve(f"hf:{copy}", "sentence_classification")
    (line,) = encoders.unread_files(reference, "sequence_labelling")
    assert line.endswith("names its own code (auto_map), which is never run: transformers' class reads it")


def test_a_damaged_tokenizer_is_refused(copy: Path):
    (copy / "tokenizer.json").write_text((copy / "tokenizer.json").read_text(encoding="utf-8")[:500])
    assert "its tokenizer cannot be read" in refusal(copy)


def test_a_value_that_a_family_cannot_take_is_refused(copy: Path):
    edit(copy, hidden_act="x\0y")
    assert "config.json" in refusal(copy)


@pytest.mark.parametrize("source", ["x" * 5_000, "./" + "x" * 300, "~nobody-of-that-name/bert", "/" + "x/" * 3_000])
@pytest.mark.parametrize("family", ["", "hf:", "elmo:", "skipthoughts:"])
def test_a_name_that_no_folder_can_have_is_refused_as_one_that_is_not_there(family: str, source: str):
    with pytest.raises(ValueError, match=r"^There is no folder|^Unknown encoder|is neither a hub id nor a folder"):
        encoders.check(encoders.resolve(f"{family}{source}", "sentence_classification"))


# --- what is not refused ---


def trains(encoder: Encoder, make_trainer: Callable[..., Any], precision: str) -> None:
    """One epoch of fine-tuning ends with a score, and moves the encoder."""
    before = dict(encoder.named_parameters())
    trainer = make_trainer("fine_tuning", encoder=encoder, epochs=1, precision=precision)
    (result,) = trainer.results()
    assert 0.0 <= result.dev["accuracy"] <= 1.0
    after = dict(trainer.model.encoder.named_parameters())
    pairs = [(before[name].detach().float(), after[name].detach().float()) for name in before.keys() & after.keys()]
    same = [(one, other) for one, other in pairs if one.shape == other.shape]  # the table of pieces is a part of it
    moved = max(float((other - one).abs().max()) for one, other in same)
    assert moved > 5e-3, "AdamW moves a weight by about its rate of 0.01 a step; rounding to bf16 by 1e-4"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_tested_family_is_accepted_and_trains(
    tiny_folder: Folder, load_tiny: Load, make_trainer: Callable[..., Any], family: str, precision: str
):
    reference = encoders.resolve(f"hf:{tiny_folder(family)}", "sentence_classification")
    encoders.check(reference)
    assert encoders.state_size(reference) == 32
    assert encoders.weights_without_embeddings(reference) > 0
    trains(load_tiny(family), make_trainer, precision)
