"""Skip-thoughts: the published layout, the authors' recurrence, words, and what heads and caches make of it."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from meltpoint.adapters import encoders
from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.data.batching import collate
from meltpoint.adapters.data.tokenising import encode_split
from meltpoint.adapters.encoder import Encoder
from meltpoint.tasks.core.task import Example

TEXTS = ("the old ships came home.", "a film", "", "prices rose", "The harbour is n't quiet , zzz .")


def load(folder: Path, variant: str = "") -> Any:
    return encoders.load(encoders.resolve(f"skipthoughts:{folder}{variant}", "sentence_classification"))


def batch_of(encoder: Encoder, *texts: str) -> Batch:
    examples = [Example(str(number), (text,)) for number, text in enumerate(texts)]
    rows = encode_split("sentence_classification", examples, encoder.tokenizer, 32).rows
    return collate(rows, range(len(rows)), encoder.tokenizer.pad_piece, "sentence_classification")


def vectors(encoder: Encoder, *texts: str) -> torch.Tensor:
    with torch.no_grad():
        return encoder(batch_of(encoder, *texts))[0][:, 0]


# --- an independent reference: the authors' `encode`, a word at a time, in float64 ---


def published_table(folder: Path, name: str) -> dict[str, np.ndarray]:
    """Word → vector, as the authors' code makes it."""
    rows = np.load(folder / name)
    lines = (folder / "dictionary.txt").read_bytes().split(b"\n")[:-1]
    pairs = zip((line.decode("utf-8").strip() for line in lines), rows, strict=True)
    return {word: np.asarray(vector, np.float64).reshape(-1) for word, vector in pairs}


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def read_through(arrays: Any, prefix: str, words: list[np.ndarray]) -> np.ndarray:
    """The state after the last word."""
    w, b, u, wx, bx, ux = (arrays[f"{prefix}_{name}"].astype(np.float64) for name in ("W", "b", "U", "Wx", "bx", "Ux"))
    size = len(bx)
    state = np.zeros(size)
    for word in words:
        gates = sigmoid(state @ u + word @ w + b)
        reset, update = gates[:size], gates[size:]
        candidate = np.tanh((state @ ux) * reset + word @ wx + bx)
        state = update * state + (1 - update) * candidate
    return state


def expected(folder: Path, words: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """(uni-skip's, bi-skip's) vector of words, of length 1."""
    found = []
    for table_name, archive, prefixes in (
        ("utable.npy", "uni_skip.npz", ("encoder",)), ("btable.npy", "bi_skip.npz", ("encoder", "encoder_r")),
    ):  # fmt: skip
        table, arrays = published_table(folder, table_name), np.load(folder / archive)
        read = [table.get(word, table["UNK"]) for word in words]
        orders = (read, read[::-1])
        parts = [read_through(arrays, *pair) for pair in zip(prefixes, orders, strict=False)]
        found.append(np.concatenate(parts) / np.linalg.norm(np.concatenate(parts)))
    return found[0], found[1]


WORDS = ["the", "old", "ships", "never", "came", "home"]


@pytest.mark.parametrize("variant", ["", "#combine", "#uni", "#bi", "#uni+eos"])
def test_vectors_are_those_of_the_authors_recurrence(skip_thoughts_folder: Path, variant: str):
    uni, bi = expected(skip_thoughts_folder, [*WORDS, *["<eos>"] * variant.endswith("+eos")])
    wanted = {"#uni": uni, "#uni+eos": uni, "#bi": bi}.get(variant, np.concatenate([uni, bi]))
    encoder = load(skip_thoughts_folder, variant)
    found = vectors(encoder, " ".join(WORDS))[0]
    assert encoder.dim == len(wanted)
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float32), atol=1e-6, rtol=1e-5)


def test_unknown_words_are_read_as_unk_and_cases_are_told_apart(skip_thoughts_folder: Path):
    found = vectors(load(skip_thoughts_folder), "the zzz", "the UNK", "The zzz", "the caf\u00e9")
    assert torch.equal(found[0], found[1])
    assert not torch.allclose(found[0], found[2])
    assert not torch.allclose(found[0], found[3])


def test_a_text_without_words_is_its_end_token(skip_thoughts_folder: Path):
    encoder = load(skip_thoughts_folder)
    batch = batch_of(encoder, "", "  \t ")
    assert batch.pieces.tolist() == [[0], [0]]
    wanted = torch.tensor(np.concatenate(expected(skip_thoughts_folder, ["<eos>"])), dtype=torch.float32)
    torch.testing.assert_close(vectors(encoder, "")[0], wanted, atol=1e-6, rtol=1e-5)
    assert batch_of(load(skip_thoughts_folder, "#uni+eos"), "", "the").pieces.tolist() == [[0, 0], [3, 0]]


def test_padding_and_neighbours_do_not_change_a_vector(skip_thoughts_folder: Path):
    encoder = load(skip_thoughts_folder)
    together = vectors(encoder, *TEXTS)
    for row, text in enumerate(TEXTS):
        torch.testing.assert_close(together[row], vectors(encoder, text)[0], atol=1e-6, rtol=1e-5)
    batch = batch_of(encoder, *TEXTS)
    batch.pieces[~batch.piece_mask] = 7
    with torch.no_grad():
        assert torch.equal(encoder(batch)[0][:, 0], together)


def test_the_vector_stands_at_the_first_position_and_nothing_at_the_others(skip_thoughts_folder: Path):
    encoder = load(skip_thoughts_folder)
    batch = batch_of(encoder, *TEXTS)
    with torch.no_grad():
        (states,) = encoder(batch)
    assert states.shape == (*batch.pieces.shape, encoder.dim)
    assert encoder.layers == 1
    assert states[:, 0].any(1).all()
    assert not states[:, 1:].any()


def test_autocast_leaves_the_vectors_in_float32(skip_thoughts_folder: Path):
    encoder = load(skip_thoughts_folder)
    exact = vectors(encoder, *TEXTS)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(vectors(encoder, *TEXTS), exact)


def test_longer_texts_are_cut_at_the_limit_and_counted(skip_thoughts_folder: Path):
    tokenizer = load(skip_thoughts_folder, "#uni+eos").tokenizer
    assert tokenizer.sentence("the old ships came home", 4) == ([3, 4, 6, 0], [], 2)
    assert tokenizer.sentence("the old ships", 4) == ([3, 4, 6, 0], [], 0)


# --- training ---


def test_its_gradient_is_that_of_the_recurrence(skip_thoughts_folder: Path):
    encoder = load(skip_thoughts_folder, "#bi").double()
    encoder.models["bi"].table.read = lambda lines: functional.embedding(lines, table)
    table = torch.randn(22, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    batch = batch_of(encoder, "the old ships", "home")
    parameters = list(encoder.parameters())

    def score(*_: torch.Tensor) -> torch.Tensor:
        return encoder(batch)[0][:, 0]

    assert len(parameters) == 6
    assert torch.autograd.gradcheck(score, parameters)


def test_every_parameter_is_in_its_layer_group_and_copies_share_the_word_vectors(skip_thoughts_folder: Path):
    encoder = load(skip_thoughts_folder)
    groups = encoder.layer_groups()
    assert [group.name for group in groups] == ["units"]
    assert {id(p) for p in groups[0].parameters} == {id(p) for p in encoder.parameters()}
    other = copy.deepcopy(encoder)
    assert other.models["uni"].table is encoder.models["uni"].table
    assert {id(p) for p in other.parameters()}.isdisjoint({id(p) for p in encoder.parameters()})


@pytest.mark.parametrize("variant", ["#combine", "#bi", "#uni+eos"])
def test_what_is_saved_is_read_back_as_it_was(skip_thoughts_folder: Path, tmp_path: Path, variant: str):
    encoder = load(skip_thoughts_folder, variant)
    with torch.no_grad():
        for number, parameter in enumerate(encoder.parameters()):
            parameter += 0.01 * number
    encoder.save(tmp_path / "saved")
    again = load(tmp_path / "saved")  # the folder knows which vectors were meant
    assert str(again.variant) == variant.removeprefix("#")
    assert torch.equal(vectors(again, *TEXTS), vectors(encoder, *TEXTS))
    assert (tmp_path / "saved" / "dictionary.txt").read_bytes() == (
        skip_thoughts_folder / "dictionary.txt"
    ).read_bytes()


# --- the word on the command line, and the files ---


def test_the_word_names_folder_and_variant(skip_thoughts_folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(skip_thoughts_folder.parent)
    found = encoders.resolve(f"skipthoughts:{skip_thoughts_folder.name}#bi+eos", "pair_regression")
    assert found.word == f"skipthoughts:{skip_thoughts_folder.resolve()}#bi+eos"
    assert found.source == str(skip_thoughts_folder.resolve())
    again = encoders.resolve(found.word, "pair_regression")
    assert again == found
    plain = encoders.resolve(f"skipthoughts:{skip_thoughts_folder}", "pair_regression")
    assert plain == encoders.resolve(f"skipthoughts:{skip_thoughts_folder}#combine", "pair_regression")


@pytest.mark.parametrize(
    ("word", "message"),
    [("skipthoughts:", "needs a folder"), ("skipthoughts:/nowhere", "There is no folder /nowhere"),
     ("skipthoughts:/x#tri", r"after # write uni, bi, combine, optionally with \+eos; not 'tri'"),
     ("skipthoughts:/x#uni+end", r"not 'uni\+end'"), ("skipthoughts:/x#uni+", r"not 'uni\+'")],
)  # fmt: skip
def test_a_wrong_word_is_one_line_with_the_remedy(word: str, message: str):
    with pytest.raises(ValueError, match=message) as raised:
        encoders.resolve(word, "sentence_classification")
    assert "\n" not in str(raised.value)


def without(folder: Path, into: Path, *names: str) -> Path:
    """A copy of a folder without some files."""
    copied = shutil.copytree(folder, into / "copy")
    for name in names:
        (copied / name).unlink()
    return copied


@pytest.mark.parametrize("name", ["uni_skip.npz", "utable.npy", "bi_skip.npz", "btable.npy", "dictionary.txt"])
def test_a_missing_file_is_named(skip_thoughts_folder: Path, tmp_path: Path, name: str):
    folder = without(skip_thoughts_folder, tmp_path, name)
    with pytest.raises(ValueError, match=rf"holds no {name}; github.com/ryankiros"):
        encoders.resolve(f"skipthoughts:{folder}", "sentence_classification")


def test_one_model_needs_no_file_of_the_other(skip_thoughts_folder: Path, tmp_path: Path):
    folder = without(skip_thoughts_folder, tmp_path, "bi_skip.npz", "btable.npy")
    assert load(folder, "#uni").dim == 10
    with pytest.raises(ValueError, match=r"holds no bi_skip.npz; github.com"):
        encoders.resolve(f"skipthoughts:{folder}", "sentence_classification")


def test_a_pickle_in_place_of_the_parameters_is_never_read(skip_thoughts_folder: Path, tmp_path: Path):
    folder = without(skip_thoughts_folder, tmp_path, "uni_skip.npz")
    (folder / "uni_skip.npz").write_bytes(b"cos\nabort\n(tR.")  # reading it would abort this process
    with pytest.raises(ValueError, match=r"uni_skip.npz cannot be read as NumPy's .npz"):
        load(folder)


def change(folder: Path, archive: str, **arrays: np.ndarray | None) -> None:
    """Put other arrays into an archive; None leaves one out."""
    with np.load(folder / archive, allow_pickle=True) as found:
        every = {name: found[name] for name in found.files} | arrays
    np.savez(folder / archive, **{name: array for name, array in every.items() if array is not None})


@pytest.mark.parametrize(
    ("arrays", "message"),
    [({"encoder_r_Ux": None}, "encoder_r_Ux is not a file in the archive"),
     ({"encoder_U": np.zeros((5, 9))}, r"encoder_U is \(5, 9\), not \(5, 10\)"),
     ({"encoder_Wx": np.zeros(5)}, r"encoder_W is \(6, 10\), not \(0, 0\)"),
     ({"encoder_b": np.array([None] * 10)}, "cannot be read as NumPy's .npz of a model's numbers")],
)  # fmt: skip
def test_parameters_that_do_not_fit_are_named(skip_thoughts_folder: Path, tmp_path: Path, arrays: Any, message: str):
    folder = without(skip_thoughts_folder, tmp_path)
    change(folder, "bi_skip.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        load(folder)


def test_tables_and_dictionary_that_do_not_fit_are_named(skip_thoughts_folder: Path, tmp_path: Path):
    folder = without(skip_thoughts_folder, tmp_path)
    np.save(folder / "btable.npy", np.zeros((22, 7), np.float32))
    with pytest.raises(ValueError, match=r"btable.npy has vectors of 7, but its model reads 6"):
        load(folder)
    np.save(folder / "btable.npy", np.zeros((21, 6), np.float32))
    with pytest.raises(ValueError, match=r"btable.npy has 21 vectors for 22 words"):
        load(folder)
    (folder / "dictionary.txt").write_text("the\nUNK\n")
    with pytest.raises(ValueError, match=r"dictionary.txt has no <eos>; download it again"):
        load(folder)
    (folder / "dictionary.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(ValueError, match=r"dictionary.txt is not UTF-8"):
        load(folder)


def test_a_fingerprint_follows_the_files_that_are_read_and_the_variant(skip_thoughts_folder: Path, tmp_path: Path):
    folder = without(skip_thoughts_folder, tmp_path)

    def prints() -> dict[str, str]:
        words = ("", "#uni", "#bi", "#uni+eos")
        return {
            word: encoders.fingerprint(encoders.resolve(f"skipthoughts:{folder}{word}", "pair_regression"))
            for word in words
        }

    before = prints()
    assert len(set(before.values())) == 4
    assert all(len(one) == 16 for one in before.values())
    assert load(folder, "#bi").fingerprint == before["#bi"]
    np.save(folder / "btable.npy", np.ones((22, 6), np.float32))
    after = prints()
    assert {word for word in before if before[word] != after[word]} == {"", "#bi"}


def test_its_size_is_that_of_its_matrices(skip_thoughts_folder: Path):
    for word, count in (("#uni", 3 * 10 * 16), ("#bi", 2 * 3 * 5 * 11), ("", 480 + 330)):
        reference = encoders.resolve(f"skipthoughts:{skip_thoughts_folder}{word}", "pair_regression")
        assert encoders.weights_without_embeddings(reference) == count
        assert encoders.state_size(reference) == encoders.load(reference).dim
