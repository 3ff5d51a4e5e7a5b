"""Hyperparameters: a checked value is of the parameter's type and within its limits, or is refused in one line."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meltpoint.adapters import settings
from meltpoint.adapters.hyperparameters import Parameter

RATE = Parameter("rate", 0.5, "a share", 0.0, 1.0)
COUNT = Parameter("count", 3, "a number of things", 1, 10)
SWITCH = Parameter("switch", False, "on or off")
WORD = Parameter("word", "red", "a colour", choices=("red", "blue"))
EVERYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(10**300, 10**400), st.floats(), st.text(max_size=4),
    st.sampled_from(["red", "blue"]), st.lists(st.integers(), max_size=2),
)  # fmt: skip


@given(st.sampled_from([RATE, COUNT, SWITCH, WORD]), EVERYTHING)
def test_a_checked_value_is_equal_of_the_right_type_and_within_limits_or_a_value_error(own: Parameter, value: object):
    refused = ""
    try:
        checked = own.check(value)
    except ValueError as error:
        refused = str(error)
    if refused:
        assert refused.startswith(f"{own.name} is ")
        assert "\n" not in refused
        return
    assert checked == value
    assert type(checked) is type(own.default)
    assert isinstance(checked, str) or own.minimum <= checked <= own.maximum
    assert not isinstance(checked, str) or checked in own.choices


@pytest.mark.parametrize("own", settings.all_parameters(), ids=lambda own: own.name)
def test_every_default_is_allowed_and_every_parameter_says_what_it_is(own: Parameter):
    assert own.check(own.default) == own.default
    assert own.help


def test_a_whole_number_may_be_written_as_a_float_and_the_other_way_round():
    assert COUNT.check(4.0) == 4
    assert type(COUNT.check(4.0)) is int
    assert type(RATE.check(1)) is float


@pytest.mark.parametrize("value", [True, False, math.nan, math.inf, -0.1, 1.1, "0.5", None, 10**400])
def test_a_share_refuses_what_is_no_share(value: object):
    with pytest.raises(ValueError, match=r"^rate is .*; it takes a number from 0 to 1\.$"):
        RATE.check(value)


@pytest.mark.parametrize("value", [True, 0, 11, 2.5, math.nan, "3"])
def test_a_count_refuses_what_is_no_count(value: object):
    with pytest.raises(ValueError, match=r"^count is .*; it takes a whole number from 1 to 10\.$"):
        COUNT.check(value)


@pytest.mark.parametrize("value", [0, 1, "true", None])
def test_a_switch_takes_only_true_and_false(value: object):
    with pytest.raises(ValueError, match=r"^switch is .*; it takes true or false\.$"):
        SWITCH.check(value)


@pytest.mark.parametrize("value", ["green", "", True, 1])
def test_a_word_refuses_what_is_not_among_its_choices(value: object):
    with pytest.raises(ValueError, match=r"^word is .*; it takes red or blue\.$"):
        WORD.check(value)
