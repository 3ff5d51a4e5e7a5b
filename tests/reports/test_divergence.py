"""The divergence of term distributions against SciPy; terms, vocabulary, and unreadable corpora."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon

from meltpoint.reports.analyses.genres import (
    count_file,
    count_terms,
    distribution,
    jensen_shannon,
    terms,
    vocabulary,
)

COUNTS = st.lists(st.integers(0, 50), min_size=6, max_size=6).filter(any)


@given(COUNTS, COUNTS)
def test_it_is_scipys_distance_squared_and_symmetric(left, right):
    one, other = (np.array(counts) / sum(counts) for counts in (left, right))
    divergence = jensen_shannon(one, other)
    assert divergence == pytest.approx(float(np.nan_to_num(jensenshannon(one, other, base=math.e))) ** 2, abs=1e-7)
    assert divergence == pytest.approx(jensen_shannon(other, one), abs=1e-12)
    assert -1e-12 <= divergence <= math.log(2) + 1e-12


def test_equal_texts_have_none_and_texts_without_a_common_word_have_ln_2():
    words = ["a", "b", "c", "d"]
    one, other = (distribution(count_terms([text]), words) for text in ("a b a", "c d"))
    assert jensen_shannon(one, one) == 0
    assert jensen_shannon(one, other) == pytest.approx(math.log(2))


def test_terms_are_lower_cased_words_and_marks():
    assert terms("Don't STOP, it's 3.5%!") == ["don't", "stop", ",", "it's", "3", ".", "5", "%", "!"]
    assert terms(" \n ") == []


def test_the_vocabulary_is_the_most_frequent_words_of_all_texts_together():
    counts = [Counter(a=5, b=1, z=3), Counter(b=6, c=3)]
    assert vocabulary(counts, 3) == ["b", "a", "c"]  # 7, 5, and of the two with 3 the first by the alphabet
    assert vocabulary(counts) == ["b", "a", "c", "z"]


def test_a_distribution_is_over_the_vocabulary_alone():
    assert distribution(Counter(a=3, b=1, rare=9), ["a", "b", "c"]).tolist() == [0.75, 0.25, 0.0]
    with pytest.raises(ValueError, match="without any word of the vocabulary"):
        distribution(Counter(rare=9), ["a", "b"])


def test_a_corpus_is_counted_line_by_line(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("The old ship.\nthe new ship\n", encoding="utf-8")
    assert count_file(path) == Counter({"the": 2, "ship": 2, "old": 1, "new": 1, ".": 1})


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (None, "cannot be read"),
        (b"", "has no words in it"),
        (b"\n \n", "has no words in it"),
        (b"caf\xe9 au lait", "not UTF-8"),
    ],
    ids=["missing", "empty", "blank", "latin-1"],
)
def test_a_corpus_that_is_none_is_refused_by_its_name(tmp_path, content, part):
    path = tmp_path / "corpus.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=part) as caught:
        count_file(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
