"""Table 6: accuracies by genre, and the divergence of term distributions against SciPy."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import rel_entr

from meltpoint.reports.analyses import analyse
from meltpoint.reports.analyses.core.analysis import AnalysisOptions
from meltpoint.reports.analyses.genres import count_terms, divergence, run, terms, vocabulary
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.tasks.mnli import GENRES, LABELS
from meltpoint.tests.reports.stored_sweeps import read_csv

WORDS = {genre: [f"{genre}{n}" for n in range(4)] + ["the", "a"] for genre in GENRES}
ICE, FIRE = "feature_extraction", "fine_tuning"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Genres with distinct words and two shared ones; four training and two dev pairs per genre."""
    folder = tmp_path / "data" / "mnli"
    folder.mkdir(parents=True)
    for name, count in (("train.tsv", 4), ("dev_matched.tsv", 2)):
        rows = ["genre\tgold_label\tsentence1\tsentence2"]
        for genre in GENRES:
            own = WORDS[genre]
            rows += [f"{genre}\t{LABELS[n % 3]}\tthe {own[n]} the\ta {own[(n + 1) % 4]}" for n in range(count)]
        (folder / name).write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder.parent


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "books.txt"
    path.write_text("The fiction0 fiction1\na fiction2 the fiction3\nthe Travel0\n", encoding="utf-8")
    return path


def rows(paths: list[Path]) -> list[dict[str, str]]:
    (path,) = [path for path in paths if path.suffix == ".csv"]
    return read_csv(path)


def test_each_genres_divergence_is_that_of_its_training_sentences(data, corpus, tmp_path):
    table = rows(analyse("-", ["genres"], tmp_path, corpus=corpus, data_dir=str(data)))
    assert [row["genre"] for row in table] == list(GENRES)
    reference = Counter(corpus.read_text(encoding="utf-8").lower().split())
    lines = [line.split("\t") for line in (data / "mnli" / "train.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    for row in table:
        own = Counter(word for line in lines if line[0] == row["genre"] for word in " ".join(line[2:]).split())
        words = sorted({word for line in lines for word in " ".join(line[2:]).split()} | set(reference))
        one, other = (np.array([counts[word] for word in words]) / counts.total() for counts in (reference, own))
        expected = (rel_entr(one, (one + other) / 2) + rel_entr(other, (one + other) / 2)).sum() / 2
        assert float(row["divergence"]) == pytest.approx(expected)
        assert (row["train"], row["dev"], row["encoder"]) == ("4", "2", "")
    nearest = min(table, key=lambda row: float(row["divergence"]))
    assert nearest["genre"] == "fiction"


def test_cells_of_a_genre_give_their_own_dev_scores_and_a_correlation(make_cell, make_sweep, data, corpus, tmp_path):
    scores = {"fiction": 0.9, "slate": 0.7, "travel": 0.8}
    cells = [
        make_cell(mode, f"mnli:{genre}", finals=[(score + gain, None), (score + gain, None)])
        for genre, score in scores.items()
        for mode, gain in ((ICE, 0.0), (FIRE, 0.01 if genre == "fiction" else 0.02))
    ]
    options = AnalysisOptions(make_sweep(*cells), Ledger(tmp_path), tmp_path, corpus=corpus, data_dir=str(data))
    written = run(options)
    table = {row["genre"]: row for row in rows(written)}
    assert set(table) == set(scores)
    assert float(table["slate"]["🔥"]) == pytest.approx(0.72)
    assert float(table["fiction"]["Δ"]) == pytest.approx(0.01)
    assert "Δ and divergence, minilm: Pearson" in (tmp_path / "genres.md").read_text(encoding="utf-8")
    assert {path.suffix for path in written} == {".md", ".csv", ".tex"}


def test_mistakes_are_refused_in_one_line(make_cell, make_sweep, data, corpus, tmp_path):
    with pytest.raises(ValueError, match=r"needs a reference corpus \(--corpus FILE\.txt\), a sweep"):
        analyse("-", ["genres"], tmp_path, data_dir=str(data))
    for content, part in ((None, "is missing"), (b"\n \n", "has no words in it"), (b"caf\xe9", "not UTF-8")):
        if content is not None:
            (tmp_path / "own.txt").write_bytes(content)
        with pytest.raises(ValueError, match=rf"own\.txt.*{part}") as caught:
            analyse("-", ["genres"], tmp_path, corpus=tmp_path / "own.txt", data_dir=str(data))
        assert "\n" not in str(caught.value)
    other = AnalysisOptions(make_sweep(make_cell(task="sst2")), Ledger(tmp_path), tmp_path, data_dir=str(data))
    with pytest.raises(ValueError, match="'first' has no cell of a genre; sweep --task mnli:fiction"):
        run(other)
    open_cell = AnalysisOptions(
        make_sweep(make_cell(task="mnli:slate")), Ledger(tmp_path), tmp_path, data_dir=str(data)
    )
    with pytest.raises(ValueError, match=r"'minilm\.fine_tuning\.mnli_slate' has no finals yet"):
        run(open_cell)


COUNTS = st.lists(st.integers(0, 50), min_size=6, max_size=6).filter(any)


@given(COUNTS, COUNTS)
def test_it_is_the_mean_of_two_kullback_leibler_divergences(left, right):
    words = [str(place) for place in range(6)]
    one, other = (np.array(counts) / sum(counts) for counts in (left, right))
    expected = (rel_entr(one, (one + other) / 2) + rel_entr(other, (one + other) / 2)).sum() / 2
    found = divergence(*(dict(zip(words, counts, strict=True)) for counts in (left, right)), words)
    assert found == pytest.approx(expected, abs=1e-9)


def test_texts_without_a_common_word_have_ln_2_and_words_beyond_the_vocabulary_do_not_count():
    one, other = (count_terms([text]) for text in ("a b a rare", "c d"))
    assert divergence(one, other, ["a", "b", "c", "d"]) == pytest.approx(math.log(2))
    with pytest.raises(ValueError, match="without any word of the vocabulary"):
        divergence(Counter(rare=9), other, ["a", "c"])
    assert terms("Don't STOP, it's 3.5%!") == ["don't", "stop", ",", "it's", "3", ".", "5", "%", "!"]
    counts = [Counter(a=5, b=1, z=3), Counter(b=6, c=3)]
    assert vocabulary(counts, 3) == ["b", "a", "c"]  # 7, 5, and of the two with 3 the first by the alphabet
