"""Skip-thoughts: texts become the Treebank's words, and tables of word vectors are read without running a pickle."""

from __future__ import annotations

import re
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meltpoint.adapters.data.input_format import words_of
from meltpoint.adapters.families.skip_thoughts.encoder import read_table, read_words

DOCUMENT = Path(__file__).parents[2] / "docs" / "encoders.md"

# --- words ---


@pytest.mark.parametrize(
    ("text", "words"),
    [("The ships came home.", "The ships came home ."),
     ('He said, "Do n\'t go."', "He said , `` Do n't go . ''"),
     ("They'll say it isn't Anna's; can't they?", "They 'll say it is n't Anna 's ; ca n't they ?"),
     ("Good muffins cost $3.88 (in New York).  Please buy me two.",
      "Good muffins cost $ 3.88 ( in New York ) . Please buy me two ."),
     ("Mr. Smith met J. D. Salinger in the U.S. Army.", "Mr. Smith met J. D. Salinger in the U.S. Army ."),
     ("It rose 3,000 points: 4:30 at 5% ...", "It rose 3,000 points : 4:30 at 5 % ..."),
     ("We cannot wait -- I'm gonna go", "We can not wait -- I 'm gon na go"),
     ("the ships' crews", "the ships ' crews")],
)  # fmt: skip
def test_texts_are_cut_as_the_treebank_does(text: str, words: str):
    assert words_of(text) == words.split()


@pytest.mark.parametrize(
    "text",
    ["a gorgeous , witty , seductive movie .", "it 's n't -lrb- quite -rrb- good ; `` fine '' , i 'd say !",
     "cost $ 3.88 ... and 5 %", "the u.s. economy grew .", "wo n't ca n't they 've"],
)  # fmt: skip
def test_a_text_that_is_words_already_stays_what_it_is(text: str):
    assert words_of(text) == text.split()


@given(st.text(alphabet=st.sampled_from(string.ascii_letters[:6] + " .,'\"$(-!0"), max_size=40))
def test_no_character_is_lost_but_quotes_change_their_form(text: str):
    quotes = dict.fromkeys(map(ord, "\"'`"))
    assert "".join(words_of(text)).translate(quotes) == "".join(text.split()).translate(quotes)


@given(st.text(alphabet=st.sampled_from("abAn't .,?"), max_size=40))
@example("they said 'we can't'")
def test_words_stay_words(text: str):
    words = words_of(text)
    assert words_of(" ".join(words)) == words


def test_a_dictionary_is_cut_at_line_feeds_only(tmp_path: Path):
    (tmp_path / "d.txt").write_bytes("the \r\na\u2028b\x0cc\n\ncaf\u00e9".encode())
    assert read_words(tmp_path / "d.txt") == ["the", "a\u2028b\x0cc", "", "caf\u00e9"]


# --- tables ---

VECTORS = np.arange(12, dtype=np.float32).reshape(4, 3) / 7


def objects(vectors: list[Any]) -> np.ndarray:
    """An array of arrays, as the published tables are."""
    found = np.empty(len(vectors), dtype=object)
    found[:] = vectors
    return found


def test_a_plain_table_is_mapped_and_never_written(tmp_path: Path):
    np.save(tmp_path / "t.npy", VECTORS)
    before = (tmp_path / "t.npy").read_bytes()
    found = read_table(tmp_path / "t.npy")
    assert isinstance(found, np.memmap)
    found[0] = 9.0
    assert (tmp_path / "t.npy").read_bytes() == before
    np.save(tmp_path / "half.npy", VECTORS.astype(np.float16))
    assert np.allclose(read_table(tmp_path / "half.npy"), VECTORS, atol=1e-3)


class Mischief:
    """Leaves a file where its pickle is run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_pickled_table_is_refused_with_the_line_that_converts_it_and_nothing_in_it_is_run(tmp_path: Path):
    mark, path = tmp_path / "mark", tmp_path / "t.npy"
    np.save(path, objects([VECTORS[0], Mischief(mark)]), allow_pickle=True)
    with pytest.raises(ValueError, match=r"t.npy is not a plain table .*; docs/encoders.md has the line") as error:
        read_table(path)
    assert "\n" not in str(error.value)
    assert not mark.exists()


def test_a_table_of_numbers_that_are_no_vectors_is_refused(tmp_path: Path):
    for array in (np.zeros(4, np.float32), np.zeros((2, 3), np.int64)):
        np.save(tmp_path / "t.npy", array)
        with pytest.raises(ValueError, match=r"not one vector per word; download it again"):
            read_table(tmp_path / "t.npy")


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 0.999])
def test_a_download_that_was_cut_off_is_one_line(skip_thoughts_folder: Path, tmp_path: Path, share: float):
    whole = (skip_thoughts_folder / "btable.npy").read_bytes()
    (tmp_path / "btable.npy").write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match=r"btable.npy is not a plain table of word vectors") as raised:
        read_table(tmp_path / "btable.npy")
    assert "\n" not in str(raised.value)


def test_the_line_of_the_documentation_makes_a_plain_table(tmp_path: Path):
    rows = [row if number % 2 else row[None] for number, row in enumerate(VECTORS)]
    np.save(tmp_path / "utable.npy", objects(rows), allow_pickle=True)
    text = " ".join(DOCUMENT.read_text(encoding="utf-8").split())
    (line,) = re.findall(r'`python -c "(import numpy; t = .*?)"`', text)
    subprocess.run([sys.executable, "-c", line], check=True, timeout=60, cwd=tmp_path)
    assert np.array_equal(read_table(tmp_path / "utable.npy"), VECTORS)
