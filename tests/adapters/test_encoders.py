"""Encoders: what a word resolves to, what is refused, and what every family of encoder gives."""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import huggingface_hub
import pytest
import torch
import transformers
from huggingface_hub import errors

from meltpoint.adapters import encoders
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.encoders import EncoderReference
from meltpoint.adapters.encoders import minilm as minilm_file
from meltpoint.adapters.families.huggingface import files
from meltpoint.adapters.families.huggingface.files import locate

Load = Callable[[str], Encoder]
Folder = Callable[[str], Path]

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


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("roberta-base", "hf:roberta-base"),
        ("google/electra-small-discriminator", "hf:google/electra-small-discriminator"),
        ("roberta", "hf:roberta"), ("bert-large-uncased", "hf:bert-large-uncased"), ("bert-bas", "bert-base"),
        ("BERT-base", "bert-base"), ("bert", "bert-base"), ("minilmm", "minilm"), ("minlm", "minilm"),
        ("emlo:models/elmo", "elmo:models/elmo"),
    ],
)  # fmt: skip
def test_an_unknown_word_is_taken_for_the_name_or_the_hub_id_that_it_looks_like(word: str, meant: str):
    with pytest.raises(ValueError, match=re.escape(f"Unknown encoder '{word}'. Did you mean {meant}? Choose from: ")):
        encoders.resolve(word, "sentence_classification")


@pytest.mark.parametrize(
    ("file", "family"), [("config.json", "hf"), ("options.json", "elmo"), ("dictionary.txt", "skipthoughts")]
)
def test_a_bare_folder_is_named_with_the_family_of_its_files(tmp_path, monkeypatch, file: str, family: str):
    (tmp_path / "bert-bas").mkdir()
    (tmp_path / "bert-bas" / file).write_text("{}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for word in ("bert-bas", "./bert-bas", str(tmp_path / "bert-bas")):
        with pytest.raises(ValueError, match=re.escape(f"Did you mean {family}:{word}? ")):
            encoders.resolve(word, "sentence_classification")


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
    monkeypatch.setattr(files, "_cached", lambda reference: None)

    def unreachable(*args: object, **kwargs: object) -> None:
        raise OSError("Name or service not known\nmore talk")

    monkeypatch.setattr(huggingface_hub, "model_info", unreachable)
    with pytest.raises(ValueError, match=r"google-bert.*\(Name or service not known\); .*HF_HOME.*hf:FOLDER") as raised:
        encoders.load(encoders.resolve("bert-base", "sentence_classification"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("error", "message"),
    [("GatedRepoError", "is gated; accept its terms"), ("RepositoryNotFoundError", "is not on the hub, or private"),
     ("RevisionNotFoundError", "has no revision 'v9'"), ("HfHubHTTPError", "the hub cannot be reached")],
)  # fmt: skip
def test_what_the_hub_refuses_is_said_in_one_line(error: str, message: str, monkeypatch: pytest.MonkeyPatch):
    def refuse(*args: object, **kwargs: object) -> None:
        raise getattr(errors, error)("no\nreally", response=Mock(headers={}))

    monkeypatch.setattr(files, "_cached", lambda reference: None)
    monkeypatch.setattr(huggingface_hub, "model_info", refuse)
    with pytest.raises(ValueError, match=message) as raised:
        encoders.load(encoders.resolve("hf:some/model@v9", "sentence_classification"))
    assert "\n" not in str(raised.value)


def test_a_download_takes_the_commit_that_the_hub_names_and_no_pickles(
    tiny_folder: Folder, monkeypatch: pytest.MonkeyPatch
):
    asked = []

    def download(source: str, revision: str, allow_patterns: list[str]) -> str:
        asked.append((source, revision))
        assert not any(fnmatch.fnmatch("pytorch_model.bin", pattern) for pattern in allow_patterns)
        return str(tiny_folder("bert"))

    monkeypatch.setattr(files, "_cached", lambda reference: None)
    monkeypatch.setattr(huggingface_hub, "model_info", lambda *args, **kwargs: SimpleNamespace(sha="c0ffee"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    encoders.load(encoders.resolve("hf:some/model", "sentence_classification"))
    assert asked == [("some/model", "c0ffee")]


def test_a_branch_is_taken_from_the_cache_when_the_hub_is_out_of_reach(
    tiny_folder: Folder, monkeypatch: pytest.MonkeyPatch
):
    def unreachable(*args: object, **kwargs: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(files, "_cached", lambda reference: tiny_folder("bert"))
    monkeypatch.setattr(huggingface_hub, "model_info", unreachable)
    encoder = encoders.load(encoders.resolve("hf:some/model", "sentence_classification"))
    assert encoder.revision == f"some/model@{tiny_folder('bert').name}"


# --- weights ---


def test_minilm_is_checked_against_its_sha256(minilm_encoder: Encoder, tiny_folder: Folder):
    reference = encoders.resolve("minilm", "sentence_classification")
    assert minilm_encoder.fingerprint == encoders.fingerprint(reference)
    assert files.verify(reference, locate(reference)[0]) == minilm_file.SHA256
    wrong = EncoderReference("minilm", str(tiny_folder("bert")), None, minilm_file.SHA256)
    with pytest.raises(ValueError, match="does not hold the weights of 'minilm': their sha256 begins"):
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
    shards = files.weight_files(folder)
    assert len(shards) > 1
    encoder = encoders.load(encoders.resolve(f"hf:{folder}", "sentence_classification"))
    assert len(encoder.fingerprint) == 16
    shards[-1].unlink()
    with pytest.raises(ValueError, match=f"lacks {shards[-1].name}"):
        encoders.resolve(f"hf:{folder}", "sentence_classification")


def test_a_replaced_weights_file_gets_another_fingerprint(tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(b"one")
    first = files.digest_of(files.weight_files(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"three")
    assert files.digest_of(files.weight_files(tmp_path)) != first


def test_code_in_a_folder_is_never_run(tiny_folder: Folder, tmp_path: Path):
    folder = shutil.copytree(tiny_folder("bert"), tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModel": "own.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit\n")
    with pytest.raises(ValueError, match=r"names the model type 'own', .* is never run") as raised:
        encoders.load(encoders.resolve(f"hf:{folder}", "sentence_classification"))
    assert not (tmp_path / "ran").exists()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("length", [{"of": "a mapping"}, "512", -1, None, 1e30, 16])
def test_a_longest_input_that_is_no_length_is_taken_for_unknown(length: object, tiny_folder: Folder, tmp_path: Path):
    folder = shutil.copytree(tiny_folder("bert"), tmp_path / "copy")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"model_max_length": length}))
    positions = json.loads((folder / "config.json").read_text(encoding="utf-8"))["max_position_embeddings"]
    encoder = encoders.load(encoders.resolve(f"hf:{folder}", "sentence_classification"))
    assert encoder.max_pieces == (16 if length == 16 else positions)
