"""Hyperparameters: a checked value is of the parameter's type and within its limits, or is refused in one line."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meltpoint.adapters import heads, modes, settings
from meltpoint.adapters.hyperparameters import Parameter, Value

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


REFUSED = [
    (RATE, [True, False, math.nan, math.inf, -0.1, 1.1, "0.5", None, 10**400], "a number from 0 to 1"),
    (COUNT, [True, 0, 11, 2.5, math.nan, "3"], "a whole number from 1 to 10"),
    (SWITCH, [0, 1, "true", None], "true or false"),
    (WORD, ["green", "", True, 1], "red or blue"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("own", "value", "domain"), [(own, one, said) for own, values, said in REFUSED for one in values]
)
def test_a_value_outside_the_domain_is_refused_and_the_domain_named(own: Parameter, value: object, domain: str):
    with pytest.raises(ValueError, match=rf"^{own.name} is .*; it takes {domain}\.$"):
        own.check(value)


CELLS = list(itertools.product(modes.names(), heads.names()))


@pytest.mark.parametrize("key", ["encoder_dropout", "discriminative_rates", "gradual_unfreezing.epochs_per_group"])
def test_feature_extraction_refuses_keys_for_an_encoder_that_trains(key: str):
    with pytest.raises(ValueError, match=f"{key} has no place in a setting of feature_extraction with head linear"):
        settings.complete({key: 0.1}, "feature_extraction", "linear")


@pytest.mark.parametrize(
    ("head", "name", "default", "other"),
    [
        ("linear", "optimiser", "adamw", "bert_adam"), ("linear", "patience", 0, 4),
        ("linear", "focal_gamma", 0.0, 2.0), ("linear", "class_weights", "none", "balanced"),
        ("linear", "threshold", 0.5, 0.25), ("bcn", "word_tokenizer", "whitespace", "moses"),
        ("sentence_vectors", "sentence_vectors.feats", False, True),
    ],
)  # fmt: skip
def test_what_older_settings_lack_is_named_only_where_it_is_not_the_default(
    head: str, name: str, default: Value, other: Value
):
    """So settings of older versions keep their identity, and another value has another one."""
    assert settings.complete({name: default}, "fine_tuning", head) == settings.complete({}, "fine_tuning", head)
    assert name not in settings.complete({}, "fine_tuning", head)
    assert settings.complete({name: other}, "fine_tuning", head)[name] == other


def test_parameters_of_tricks_that_are_off_are_dropped():
    off = {"slanted_triangular.ratio": 8.0, "discriminative_rates.factor": 0.5, "schedule": "linear_warmup_decay"}
    full = settings.complete(off, "fine_tuning", "linear")
    assert [name for name in full if "." in name] == ["linear_warmup_decay.warmup_fraction"]
    full = settings.complete({"gradual_unfreezing": True}, "fine_tuning", "linear")
    assert [name for name in full if "." in name] == ["gradual_unfreezing.epochs_per_group"]


def test_whether_a_schedule_restarts_is_dropped_where_there_is_none():
    key = "stack_and_finetune.restart_schedule"
    constant = [settings.complete({key: restart}, "stack_and_finetune", "linear") for restart in (True, False)]
    assert constant[0] == constant[1]
    moving = {"schedule": "slanted_triangular", key: False}
    assert settings.complete(moving, "stack_and_finetune", "linear")[key] is False


@given(st.permutations(["epochs", "dropout", "schedule", "slanted_triangular.ratio"]), st.booleans())
def test_two_ways_of_writing_one_course_complete_to_the_same_mapping_in_the_same_order(order: list[str], bare: bool):
    values: dict[str, Value] = {
        "epochs": 4.0, "dropout": 0, "schedule": "slanted_triangular", "slanted_triangular.ratio": 32,
    }  # fmt: skip
    plain = {"epochs": 4, "dropout": 0.0, "schedule": "slanted_triangular"}
    idle: dict[str, Value] = {} if bare else {"linear_warmup_decay.warmup_fraction": 0.3, "batch_size": 32}
    written = settings.complete({name: values[name] for name in order} | idle, "fine_tuning", "linear")
    wanted = settings.complete(plain, "fine_tuning", "linear")
    assert list(written.items()) == list(wanted.items())
    assert [type(value) for value in written.values()] == [type(value) for value in wanted.values()]


@pytest.mark.parametrize(("mode", "head"), CELLS)
def test_a_complete_setting_completes_to_itself(mode: str, head: str):
    setting = {} if mode == "probe" else {"schedule": "linear_warmup_decay"}
    full = settings.complete(setting, mode, head)
    assert settings.complete(full, mode, head) == full


@pytest.mark.parametrize("key", ["learning_rat", "mlp.hidden_size", "stack_and_finetune.stack_epochs"])
def test_an_unknown_key_is_refused(key: str):
    with pytest.raises(ValueError, match=rf"^{key} has no place in a setting of fine_tuning with head linear\.$"):
        settings.complete({key: 1}, "fine_tuning", "linear")


@pytest.mark.parametrize(
    ("key", "value", "domain"),
    [
        ("dropout", 1.0, "a number from 0 to 0.95"),
        ("epochs", 0, "a whole number from 1 to 1000"),
        ("epochs", 2.5, "a whole number from 1 to 1000"),
        ("schedule", "cosine", "constant or linear_warmup_decay or reduce_on_plateau or slanted_triangular"),
        ("slanted_triangular.cut_fraction", 0.0, "a number from 0.001 to 0.999"),
    ],
)
def test_a_value_outside_its_limits_is_refused_even_where_its_trick_is_off(key: str, value: Value, domain: str):
    with pytest.raises(ValueError, match=rf"^{key} is {value!r}; it takes {domain}\.$"):
        settings.complete({key: value}, "fine_tuning", "linear")
