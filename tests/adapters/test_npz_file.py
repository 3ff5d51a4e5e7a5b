"""`meltpoint features`: each line's layers, as the encoder itself gives them, one state a word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from typer.testing import CliRunner

from meltpoint.adapters.features.npz_file import write_features
from meltpoint.launch import app

TEXT = "the old harbour was quiet\n\nLondon  and\tParis are cities\n" + "ships came home " * 40 + "\n"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture
def word(tiny_folder: Callable[[str], Path]) -> str:
    return f"hf:{tiny_folder('bert')}"


def test_the_arrays_are_the_encoders_own_states_of_each_words_first_piece(
    word: str, text: Path, tmp_path: Path, tiny_folder: Callable[[str], Path]
):
    out = tmp_path / "out.npz"
    written = write_features(word, text, out)
    assert written == "4 sentences, 3 layers of 32"
    found = np.load(out, allow_pickle=False)
    model = transformers.AutoModel.from_pretrained(tiny_folder("bert")).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_folder("bert"))
    for number in (0, 2):
        words = TEXT.splitlines()[number].split()
        encoded = tokenizer(words, is_split_into_words=True, return_tensors="pt")
        owners = encoded.word_ids()
        firsts = [owners.index(place) for place in range(len(words))]
        with torch.no_grad():
            layers = model(**encoded, output_hidden_states=True).hidden_states
        expected = np.stack([layer[0, firsts].numpy() for layer in layers])
        assert found[str(number)].dtype == np.float32
        np.testing.assert_allclose(found[str(number)], expected, atol=1e-5)


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\f", "\x1c"])
def test_a_separator_inside_a_line_begins_no_line_and_the_mark_of_the_bytes_order_is_no_word(
    word: str, tmp_path: Path, separator: str
):
    lines = ["\ufeffone two", f"three{separator}four", "five"]
    (tmp_path / "text.txt").write_bytes("\r\n".join(lines).encode())
    write_features(word, tmp_path / "text.txt", tmp_path / "out.npz")
    found = np.load(tmp_path / "out.npz", allow_pickle=False)
    assert sorted(found.files) == ["0", "1", "2", "words"]
    assert found["words"].tolist() == ["one two", "three four", "five"]


def test_lines_keep_their_numbers_and_words_and_long_ones_lose_none(word: str, text: Path, tmp_path: Path):
    write_features(word, text, tmp_path / "out.npz")
    found = np.load(tmp_path / "out.npz", allow_pickle=False)
    assert sorted(found.files) == ["0", "1", "2", "3", "words"]
    assert [found[str(n)].shape for n in range(4)] == [(3, 5, 32), (3, 0, 32), (3, 5, 32), (3, 120, 32)]
    assert found["words"].tolist() == [" ".join(line.split()) for line in TEXT.splitlines()]


@pytest.mark.parametrize(("said", "chosen"), [("top", [2]), ("0", [0]), ("2,0", [2, 0])])
def test_layers_can_be_chosen(word: str, text: Path, tmp_path: Path, said: str, chosen: list[int]):
    for name, layers in (("all", "all"), ("some", said)):
        write_features(word, text, tmp_path / f"{name}.npz", layers)
    whole, some = (np.load(tmp_path / f"{name}.npz")["3"] for name in ("all", "some"))
    np.testing.assert_array_equal(some, whole[chosen])


@pytest.mark.parametrize(
    ("content", "layers", "said"),
    [
        (b"", "all", "holds no word; write one sentence per line"),
        (b"a \xff b", "all", "is not UTF-8 (byte 2)"),
        (b"a b", "7", "--layers '7': write all, top, or numbers from 0 to 2"),
        (b"a b", "upper", "--layers 'upper': write all, top, or numbers from 0"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_file(
    word: str, tmp_path: Path, content: bytes, layers: str, said: str
):  # fmt: skip
    text, out = tmp_path / "text.txt", tmp_path / "out.npz"
    text.write_bytes(content)
    answer = CliRunner().invoke(
        app, ["features", "--encoder", word, "--input", str(text), "--out", str(out), "--layers", layers]
    )
    assert answer.exit_code == 2
    assert said in answer.stderr
    assert not out.exists()


def test_a_text_that_is_not_there_is_one_line(word: str, tmp_path: Path):
    with pytest.raises(ValueError, match="cannot be read"):
        write_features(word, tmp_path / "none.txt", tmp_path / "out.npz")


def test_the_command_writes_the_file_and_says_what_is_in_it(word: str, text: Path, tmp_path: Path):
    out = tmp_path / "out.npz"
    answer = CliRunner().invoke(app, ["features", "--encoder", word, "--input", str(text), "--out", str(out)])
    assert answer.exit_code == 0
    assert "4 sentences, 3 layers of 32" in answer.stderr
    assert answer.stdout == ""
    assert np.load(out)["0"].shape == (3, 5, 32)
