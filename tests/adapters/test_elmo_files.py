"""ELMo's files and words: what is refused and in which words, what is written, which piece a word is."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor

from meltpoint.adapters import encoders
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.families.elmo.layers import Clips, ElmoTokenizer, ProjectedLSTM, piece_of, spelling_of
from meltpoint.sweeps.command_line.spec_from_options import encoder_names

CELL = "RNN_1/RNN/MultiRNNCell/Cell0/LSTMCell"


def resolve(folder: Path | str) -> encoders.EncoderReference:
    return encoders.resolve(f"elmo:{folder}", "pair_classification")


@pytest.fixture
def copied(elmo_folder: Path, tmp_path: Path) -> Path:
    """A copy of the tiny ELMo's folder, to break."""
    return shutil.copytree(elmo_folder, tmp_path / "elmo")


# --- folders ---


def test_a_folder_resolves_without_its_weights_being_read(copied: Path, monkeypatch: pytest.MonkeyPatch):
    (copied / "weights.hdf5").write_bytes(b"not read")
    monkeypatch.chdir(copied.parent)
    reference = resolve(copied.name)
    assert reference == encoders.EncoderReference(
        f"elmo:{copied}", str(copied), joins_pairs=False, has_sentence_state=False, reads_words=True
    )
    assert (reference.family, reference.is_folder) == ("elmo", True)


def test_a_relative_folder_on_the_command_line_becomes_absolute(copied: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(copied.parent)
    assert encoder_names([f"elmo:{copied.name},minilm", "hf:some/id"]) == (f"elmo:{copied}", "minilm", "hf:some/id")


@pytest.mark.parametrize("name", ["lm_weights.hdf5", "elmo_2x1024_128_2048cnn_1xhighway_weights.hdf5"])
def test_weights_may_have_their_released_names(copied: Path, elmo_folder: Path, name: str):
    (copied / "weights.hdf5").rename(copied / name)
    if name == "lm_weights.hdf5":
        shutil.copy(elmo_folder / "weights.hdf5", copied / "lm_embeddings.hdf5")
    assert encoders.fingerprint(resolve(copied)) == encoders.fingerprint(resolve(elmo_folder))


def drop(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def say(section: str, key: str, value: object) -> Callable[[Path], object]:
    """Change an option; None removes it."""

    def change(folder: Path) -> None:
        said = json.loads((folder / "options.json").read_text(encoding="utf-8"))
        said[section][key] = value
        if value is None:
            del said[section][key]
        (folder / "options.json").write_text(json.dumps(said))

    return change


def two_weights(folder: Path) -> None:
    (folder / "weights.hdf5").rename(folder / "a.hdf5")
    shutil.copy(folder / "a.hdf5", folder / "b.hdf5")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (shutil.rmtree, "There is no folder .*elmo; name the folder of an ELMo"),
        (drop("options.json"), "holds no options.json; an ELMo folder has options.json and weights.hdf5"),
        (drop("weights.hdf5"), "holds no weights.hdf5; put ELMo's weights there"),
        (two_weights, r"holds several \*.hdf5 \(a.hdf5, b.hdf5\), none of them weights.hdf5"),
        (lambda folder: (folder / "options.json").write_text("no json"), "options.json: the file: Invalid JSON"),
        (say("lstm", "projection_dim", None), r"options.json: lstm.projection_dim: Field required; use the options"),
        (say("lstm", "dim", 0), "lstm.dim: Input should be greater than 0"),
        (say("char_cnn", "activation", "gelu"), "char_cnn.activation: Input should be 'relu' or 'tanh'"),
        (say("char_cnn", "filters", [[51, 4]]), "char_cnn.filters.0.0: Input should be less than or equal to 50"),
        (say("char_cnn", "max_characters_per_token", 30), "max_characters_per_token: Input should be 50"),
    ],
)
def test_a_folder_that_is_no_elmo_is_refused_before_anything_is_loaded(
    copied: Path, spoil: Callable[[Path], object], message: str
):
    spoil(copied)
    with pytest.raises(ValueError, match=message) as raised:
        resolve(copied)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("word", ["elmo:", "elmo", "elmo: "])
def test_elmo_without_a_folder_is_refused(word: str):
    with pytest.raises(ValueError, match=r"'elmo:' needs a folder after it"):
        encoders.resolve(word, "sentence_classification")


def without(name: str) -> Callable[[Path], object]:
    def remove(folder: Path) -> None:
        with h5py.File(folder / "weights.hdf5", "a") as file:
            del file[name]

    return remove


def with_other(name: str, data: Any) -> Callable[[Path], object]:
    def replace(folder: Path) -> None:
        without(name)(folder)
        with h5py.File(folder / "weights.hdf5", "a") as file:
            file[name] = data

    return replace


def cut_short(folder: Path) -> None:
    content = (folder / "weights.hdf5").read_bytes()
    (folder / "weights.hdf5").write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without(f"{CELL}/W_P_0"), f"weights.hdf5 lacks {CELL}/W_P_0, which options.json requires"),
        (without("CNN_high_1"), "weights.hdf5 lacks CNN_high_1/W_carry"),
        (
            with_other("char_embed", np.zeros((262, 5), np.float32)),
            r"char_embed is \(262, 5\) of float32, .* \(261, 5\)",
        ),
        (
            with_other("CNN/b_cnn_0", np.zeros(4, np.int32)),
            r"CNN/b_cnn_0 is \(4,\) of int32, .* requires numbers of \(4,\)",
        ),
        (say("lstm", "dim", 13), r"RNN_0/.*/W_0 is \(14, 48\) of float32, .* \(14, 52\); use both files from one"),
        (lambda folder: (folder / "weights.hdf5").write_bytes(b"no weights"), "is not a readable HDF5 file"),
        (cut_short, "is not a readable HDF5 file"),
    ],
)
def test_weights_that_do_not_fit_are_refused_in_one_line(copied: Path, spoil: Callable[[Path], object], message: str):
    spoil(copied)
    with pytest.raises(ValueError, match=message) as raised:
        encoders.load(resolve(copied))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("spoil", [lambda folder: (folder / "weights.hdf5").write_bytes(b"no weights"), cut_short])
def test_weights_that_are_cut_off_are_refused_before_the_first_trial(copied: Path, spoil: Callable[[Path], object]):
    encoders.check(resolve(copied))
    spoil(copied)
    with pytest.raises(
        ValueError, match=r"weights\.hdf5 is not a readable HDF5 file; copy it from ELMo's release again"
    ):
        encoders.check(resolve(copied))


# --- what is loaded and written ---


def test_a_fingerprint_is_of_the_weights_and_of_the_options_that_say_how_to_use_them(copied: Path):
    files = [copied / name for name in ("options.json", "weights.hdf5")]
    each = "".join(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)
    found = encoders.fingerprint(resolve(copied))
    assert found == hashlib.sha256(each.encode()).hexdigest()[:16] == encoders.load(resolve(copied)).fingerprint
    say("lstm", "use_skip_connections", False)(copied)
    assert encoders.fingerprint(resolve(copied)) != found


def content(folder: Path) -> tuple[dict[str, bytes], Any]:
    """Every number of the weights by its name, and the options."""
    found: dict[str, bytes] = {}

    def keep(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = item[...].tobytes()

    with h5py.File(folder / "weights.hdf5") as file:
        file.visititems(keep)
    return found, json.loads((folder / "options.json").read_text(encoding="utf-8"))


def test_what_is_saved_has_every_name_and_bit_of_what_was_loaded(elmo: Encoder, elmo_folder: Path, tmp_path: Path):
    elmo.save(tmp_path / "saved")
    read = [encoders.load(resolve(folder)).state_dict() for folder in (elmo_folder, tmp_path / "saved")]
    assert all(torch.equal(own, read[1][name]) for name, own in read[0].items())
    assert content(tmp_path / "saved") == content(elmo_folder)


def test_its_size_is_that_of_its_matrices(elmo: Encoder, elmo_folder: Path):
    matrices = [own.numel() for name, own in elmo.named_parameters() if own.ndim > 1 and name != "words.characters"]
    assert encoders.weights_without_embeddings(resolve(elmo_folder)) == sum(matrices)
    assert encoders.state_size(resolve(elmo_folder)) == elmo.dim


# --- words ---


def test_a_piece_is_the_same_in_every_process_and_on_every_machine():
    """63 bits of BLAKE2b over the characters as 16-bit numbers, written out here."""
    characters = [258, *b"harbour", 259]
    written = b"".join(character.to_bytes(2, "little") for character in characters)
    digest = int.from_bytes(hashlib.blake2b(written, digest_size=8).digest(), "little")
    assert piece_of("harbour") == digest >> 1
    assert piece_of("harbour") == 5064191926698938846


def test_words_that_elmo_cannot_tell_apart_are_one_piece_and_others_are_not():
    assert piece_of("a" * 48 + "b") == piece_of("a" * 48)
    assert piece_of("a" * 47 + "b") != piece_of("a" * 48)
    assert len({piece_of(word) for word in ("The", "the", "thé", "", "<S>", "</S>", "S")}) == 7
    assert [spelling_of(piece_of(mark)) for mark in ("<S>", "</S>")] == [(258, 256, 259), (258, 257, 259)]


def test_white_space_alone_cuts_a_text_and_no_text_is_empty():
    tokenizer = ElmoTokenizer()
    text = " good\tfilm,\n not\u00a0bad. "
    assert tokenizer.sentence(text, 9) == ([piece_of(w) for w in ("good", "film,", "not", "bad.")], [], 0)
    assert tokenizer.sentence(text, 2) == ([piece_of("good"), piece_of("film,")], [], 2)
    assert tokenizer.sentence(" \n", 9) == ([piece_of("")], [], 0)
    assert tokenizer.word("3\u00a01/2") == [piece_of("3\u00a01/2")]
    assert tokenizer.frame([5, 6]) == ([5, 6], [], 0)
    with pytest.raises(ValueError, match="one sentence at a time"):
        tokenizer.pair("a", "b", 9)


SIZES = {"groups": 2, "steps": 5, "batch": 3, "size": 2, "cells": 3}
LENGTHS = [5, 3, 2]


def drawn(*shape: int, scale: float = 1.0) -> Tensor:
    return (scale * torch.randn(*shape, dtype=torch.float64)).requires_grad_()


def weights(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(seed)
    groups, steps, batch, size, cells = SIZES.values()
    return (
        drawn(groups, steps, batch, size), drawn(groups, 2 * size, 4 * cells), drawn(groups, 4 * cells),
        drawn(groups, cells, size),
    )  # fmt: skip


@pytest.mark.parametrize("clips", [Clips(), Clips(0.35, 0.3), Clips(output=0.3), Clips(memory=0.35)])
def test_gradients_are_those_of_finite_differences(clips: Clips):
    given = weights(0)

    def run(*parts: Tensor) -> Tensor:
        read: Tensor = ProjectedLSTM.apply(*parts, LENGTHS, clips, True)
        return read

    assert bool((run(*given).abs() >= clips.output).any()) == (clips.output < 1)
    assert torch.autograd.gradcheck(run, given)


@pytest.mark.parametrize("trained", [*itertools.product([True, False], repeat=2)])
def test_frozen_weights_get_no_gradient_and_change_no_other(trained: tuple[bool, bool]):
    every, some = weights(0), weights(0)
    for part, opened in zip(some, (trained[0], trained[1], trained[1], trained[1]), strict=True):
        part.requires_grad_(opened)
    for parts in (every, some):
        read = ProjectedLSTM.apply(*parts, LENGTHS, Clips(1.0, 1.0), any(part.requires_grad for part in parts))
        if read.requires_grad:
            read.pow(2).sum().backward()
    for one, two in zip(every, some, strict=True):
        assert two.grad is None if not two.requires_grad else torch.equal(one.grad, two.grad)


def test_without_gradients_it_gives_the_same_and_keeps_less():
    parts = weights(2)
    kept = ProjectedLSTM.apply(*parts, LENGTHS, Clips(0.5, 0.5), True)
    with torch.no_grad():
        light = ProjectedLSTM.apply(*parts, LENGTHS, Clips(0.5, 0.5), False)
    assert torch.equal(kept, light)
