"""Encoders: what a word resolves to, what is refused, and what every family of encoder gives."""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
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
from meltpoint.tasks.core.task import KINDS
from meltpoint.tests.adapters.conftest import FAMILIES

Load = Callable[[str], Encoder]
Folder = Callable[[str], Path]

# --- words ---


def test_bert_base_is_cased_for_sequence_labelling_only_and_pinned():
    cased = encoders.resolve("bert-base", "sequence_labelling")
    uncased = encoders.resolve("bert-base", "pair_regression")
    assert (cased.source, uncased.source) == ("google-bert/bert-base-cased", "google-bert/bert-base-uncased")
    assert all(len(reference.revision or "") == 40 for reference in (cased, uncased))


def test_a_named_encoder_is_pinned_unless_its_makers_publish_no_safetensors():
    unpinned = []
    for name in encoders.names():
        for kind in KINDS:
            found = encoders.resolve(name, kind)
            if not (found.sha256 or files.COMMIT.fullmatch(found.revision or "")):
                unpinned.append(name)
    assert set(unpinned) == {"ettin-150m"}


def test_a_named_encoder_takes_a_revision_as_the_hub_writes_it():
    found = encoders.resolve("e5-base-v2@refs/pr/7", "pair_regression")
    named = encoders.resolve("e5-base-v2", "pair_regression")
    assert found == replace(named, word="e5-base-v2@refs/pr/7", revision="refs/pr/7")
    cased = encoders.resolve("l=bert-base@v1.0", "sequence_labelling")
    assert (cased.source, cased.revision) == ("google-bert/bert-base-cased", "v1.0")
    pinned = encoders.resolve("minilm@main", "sentence_classification")  # not the package's files, and not their hash
    assert (pinned.source, pinned.revision, pinned.sha256, pinned.is_folder) == (
        minilm_file.HUB_ID, "main", None, False,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"Unknown encoder 'bert-bas@v1'"):
        encoders.resolve("bert-bas@v1", "sentence_classification")
    with pytest.raises(ValueError, match=r"Unknown encoder 'bert-base@'"):
        encoders.resolve("bert-base@", "sentence_classification")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("roberta-base", "hf:roberta-base"),
        ("google/electra-small-discriminator", "hf:google/electra-small-discriminator"),
        ("roberta", "hf:roberta"), ("bert-large-uncased", "hf:bert-large-uncased"), ("bert-bas", "bert-base"),
        ("bert_base", "bert-base"), ("MiniLM", "minilm"), ("bert", "hf:bert"), ("minilmm", "minilm"),
        ("minlm", "minilm"),
        ("emlo:models/elmo", "elmo:models/elmo"),
    ],
)  # fmt: skip
def test_an_unknown_word_is_taken_for_the_name_or_the_hub_id_that_it_looks_like(word: str, meant: str):
    with pytest.raises(ValueError, match=re.escape(f"Unknown encoder '{word}'. Did you mean {meant}? Choose from: ")):
        encoders.resolve(word, "sentence_classification")


def test_a_bare_folder_is_named_with_the_prefix_of_folders(tmp_path, monkeypatch):
    (tmp_path / "bert-bas").mkdir()
    monkeypatch.chdir(tmp_path)
    for word in ("bert-bas", "./bert-bas", str(tmp_path / "bert-bas")):
        with pytest.raises(ValueError, match=re.escape(f"Did you mean hf:{word}? ")):
            encoders.resolve(word, "sentence_classification")


def test_a_relative_folder_becomes_absolute(tiny_folder: Folder, monkeypatch: pytest.MonkeyPatch):
    folder = tiny_folder("bert").resolve()
    monkeypatch.chdir(folder.parent)
    reference = encoders.resolve(f"hf:{folder.name}", "sentence_classification")
    assert reference == EncoderReference(f"hf:{folder}", str(folder))
    assert reference.is_folder


@pytest.mark.parametrize("word", ["hf:./nowhere", "hf:/nowhere/at/all", "hf:~/nowhere", "hf:a/b/c"])
def test_a_missing_folder_is_named_in_one_line(word: str):
    with pytest.raises(ValueError, match="There is no folder /") as raised:
        encoders.resolve(word, "sentence_classification")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("file", "becomes", "message"),
    [("config.json", "x", "holds no config.json"), ("model.safetensors", "x", "holds no model.safetensors"),
     ("tokenizer.json", "x", "holds no tokenizer"),
     ("model.safetensors", "pytorch_model.bin", r"only pickled weights .* never read; .* model.safetensors")],
)  # fmt: skip
def test_a_folder_that_lacks_a_file_is_refused(copy: Path, file: str, becomes: str, message: str):
    (copy / file).rename(copy / becomes)
    with pytest.raises(ValueError, match=message):
        encoders.resolve(f"hf:{copy}", "sentence_classification")


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


OLD, NEW = "0" * 40, "1" * 40
"""Commits of a hub's repository."""


class Hub:
    """A hub of one repository, whose branches and tags name commits, and the real cache of the hub's client.

    Attributes:
        commits: revision → commit.
        asked: the revisions that were asked for.
        reachable: whether it answers.
        listed: whether the cache lists a commit's files, as a download of the whole writes them.
    """

    def __init__(self, cache: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.commits, self.asked, self.reachable = {"main": OLD, "v1": OLD, OLD: OLD, NEW: NEW}, list[str](), True
        self.folder, self.storage = folder, cache / "models--some--model"
        plain = huggingface_hub.snapshot_download

        def download(source: str, revision: str | None = None, **others: Any) -> str:
            if not others.get("local_files_only"):
                self._store(revision or "main", others["allow_patterns"])
            return plain(source, revision=revision, **(others | {"local_files_only": True, "cache_dir": cache}))

        monkeypatch.setattr(huggingface_hub, "model_info", self._info)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
        self.listed = True
        monkeypatch.setattr(huggingface_hub, "get_cached_repo_tree", self._listing)

    def _listing(self, source: str, revision: str | None = None) -> list[str]:
        if not self.listed:
            raise huggingface_hub.errors.CachedRepoTreeNotFoundError("no listing")
        return ["model.safetensors"]

    def _info(self, source: str, revision: str | None = None, timeout: float = 0) -> None:
        self.asked.append(revision or "main")
        if not self.reachable:
            raise OSError("no network")

    def _store(self, revision: str, patterns: list[str]) -> None:
        commit = self.commits[revision]
        for path in self.folder.iterdir():
            if any(fnmatch.fnmatch(path.name, pattern) for pattern in patterns):
                (self.storage / "snapshots" / commit).mkdir(parents=True, exist_ok=True)
                shutil.copy(path, self.storage / "snapshots" / commit)
        if revision != commit:
            (self.storage / "refs" / revision).parent.mkdir(parents=True, exist_ok=True)
            (self.storage / "refs" / revision).write_text(commit)


@pytest.fixture
def hub(tmp_path: Path, tiny_folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A hub of a tiny BERT, with pickled weights as well."""
    folder = shutil.copytree(tiny_folder("bert"), tmp_path / "hub")
    shutil.copy(folder / "model.safetensors", folder / "pytorch_model.bin")
    return Hub(tmp_path / "cache", folder, monkeypatch)


@pytest.mark.parametrize("word", ["hf:some/model", "hf:some/model@main", "hf:some/model@v1", f"hf:some/model@{OLD}"])
def test_a_branch_a_tag_and_a_commit_are_read_by_their_commit_also_offline(hub: Hub, word: str):
    reference = encoders.resolve(word, "sentence_classification")
    folder, revision = locate(reference)
    assert revision == encoders.revision(reference) == f"some/model@{OLD}"
    assert not (folder / "pytorch_model.bin").exists()
    hub.reachable, hub.asked = False, []
    assert encoders.load(reference).revision == revision
    assert bool(hub.asked) == (OLD not in word), "a commit never moves, so nobody asks for it again"


def test_a_commit_of_which_another_program_cached_some_files_is_completed_or_read_as_it_is(hub: Hub):
    reference = encoders.resolve(f"hf:some/model@{OLD}", "sentence_classification")
    locate(reference)
    hub.listed, hub.asked = False, []
    locate(reference)
    assert hub.asked == [OLD]
    hub.reachable = False
    assert locate(reference)[1] == f"some/model@{OLD}"


def test_a_branch_that_moved_is_read_at_its_new_commit(hub: Hub):
    reference = encoders.resolve("hf:some/model@main", "sentence_classification")
    assert encoders.revision(reference) == f"some/model@{OLD}"
    hub.commits["main"] = NEW
    assert encoders.revision(reference) == f"some/model@{NEW}"


def test_a_revision_without_safetensors_is_refused_with_the_word_of_one_that_may_have_them(hub: Hub):
    (hub.folder / "model.safetensors").unlink()
    for word, what in (("hf:some/model", "its newest commit"), ("hf:some/model@v1", "v1")):
        with pytest.raises(ValueError, match=f"no safetensors at {what}, .* as in hf:some/model@refs/pr/1: look"):
            locate(encoders.resolve(word, "sentence_classification"))


# --- weights ---


def test_minilm_is_checked_against_its_sha256(minilm_encoder: Encoder, tiny_folder: Folder):
    reference = encoders.resolve("minilm", "sentence_classification")
    assert minilm_encoder.fingerprint == encoders.fingerprint(reference)
    assert files.digest_of(files.weight_files(locate(reference)[0])) == minilm_file.SHA256
    wrong = EncoderReference("minilm", str(tiny_folder("bert")), None, minilm_file.SHA256)
    with pytest.raises(ValueError, match="does not hold the weights of 'minilm': their sha256 begins"):
        encoders.load(wrong)


def test_minilm_comes_from_the_hub_where_the_package_is_absent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    reference = minilm_file.reference("sentence_classification")
    assert (reference.source, reference.is_folder) == (minilm_file.HUB_ID, False)
    assert len(reference.revision or "") == 40


@pytest.mark.parametrize("family", [*FAMILIES, "elmo"])
def test_loading_twice_gives_equal_weights_and_leaves_the_random_state(
    tiny_folder: Folder, elmo_folder: Path, family: str
):
    word = f"elmo:{elmo_folder}" if family == "elmo" else f"hf:{tiny_folder(family)}"
    state = torch.get_rng_state()
    one, two = (encoders.load(encoders.resolve(word, "sentence_classification")) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    assert one.fingerprint == two.fingerprint
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert {parameter.dtype for parameter in one.parameters()} == {torch.float32}
    assert not one.training


def test_loading_is_silent(load_tiny: Load, capfd: pytest.CaptureFixture[str]):
    load_tiny("bert")  # its file holds a pooler, which transformers would report
    assert capfd.readouterr() == ("", "")


def test_the_weights_of_a_masked_language_model_load_as_its_encoder(tiny_folder: Folder, copy: Path):
    config = transformers.AutoConfig.from_pretrained(tiny_folder("bert"))
    model = transformers.BertForMaskedLM(config)
    model.save_pretrained(copy)
    encoder = encoders.load(encoders.resolve(f"hf:{copy}", "sentence_classification"))
    loaded = dict(encoder.named_parameters())
    assert torch.equal(loaded["model.embeddings.word_embeddings.weight"], model.bert.embeddings.word_embeddings.weight)


def test_sharded_weights_load_and_a_lost_shard_is_named(tiny_folder: Folder, copy: Path):
    (copy / "model.safetensors").unlink()
    transformers.AutoModel.from_pretrained(tiny_folder("bert")).save_pretrained(copy, max_shard_size="60KB")
    shards = files.weight_files(copy)
    assert len(shards) > 1
    encoder = encoders.load(encoders.resolve(f"hf:{copy}", "sentence_classification"))
    assert len(encoder.fingerprint) == 16
    shards[-1].unlink()
    with pytest.raises(ValueError, match=f"lacks {shards[-1].name}"):
        encoders.resolve(f"hf:{copy}", "sentence_classification")


def test_code_in_a_folder_is_never_run(copy: Path, tmp_path: Path):
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModel": "own.Model"}}
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit\n")
    with pytest.raises(ValueError, match=r"names the model type 'own', .* is never run") as raised:
        encoders.load(encoders.resolve(f"hf:{copy}", "sentence_classification"))
    assert not (tmp_path / "ran").exists()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("length", [{"of": "a mapping"}, "512", -1, None, 1e30, 16])
def test_a_longest_input_that_is_no_length_is_taken_for_unknown(length: object, copy: Path):
    path = copy / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"model_max_length": length}))
    positions = json.loads((copy / "config.json").read_text(encoding="utf-8"))["max_position_embeddings"]
    encoder = encoders.load(encoders.resolve(f"hf:{copy}", "sentence_classification"))
    assert encoder.max_pieces == (16 if length == 16 else positions)
