"""Written YAML is read back unchanged, whatever its contents."""

from __future__ import annotations

import math

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from meltpoint.search_spaces.documents import parse, write

TEXTS = st.text() | st.from_regex(r"[-+]?[0-9.]{1,4}([eE][-+]?[0-9]{1,2})?", fullmatch=True) | st.sampled_from(
    ["no", "on", "y", "~", "null", "true", "010", "0x1f", "1_000", "1:30", "2026-01-02", "<<", "=",
     "\x85", "\u2028 x", ".inf"]
)  # fmt: skip
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
DATA = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=12
)


@settings(deadline=None)
@given(DATA)
def test_what_is_written_is_read_back(data):
    again = parse(write(data), "data")
    assert again == data
    assert repr(again) == repr(data)  # True is not 1, 1 is not 1.0
    assert math.isnan(parse(write(float("nan")), "data"))


@settings(deadline=None)
@given(st.dictionaries(TEXTS.filter(lambda text: text not in ("<<", "=")), SCALARS, max_size=4))
def test_other_readers_of_yaml_read_the_same(data):
    assert yaml.safe_load(write(data)) == data


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-5", 1e-5), ("1E5", 1e5), ("1.", 1.0), (".5", 0.5), ("-3", -3), ("+3", 3), ("010", "010"), ("1:30", "1:30"),
     ("no", "no"), ("2026-01-02", "2026-01-02"), ("true", True), ("", None), ("~", None), ("1e", "1e")],
)  # fmt: skip
def test_a_scalar_means_what_it_looks_like(text, value):
    assert repr(parse(text, "text")) == repr(value)
