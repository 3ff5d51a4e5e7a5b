"""Properties of any space: drawn settings belong to it, grids are complete, YAML and Optuna round-trip."""

from __future__ import annotations

import itertools
import pickle
import warnings
from pathlib import Path

import numpy as np
import optuna
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meltpoint.adapters.hyperparameters import Parameter
from meltpoint.search_spaces.files import load
from meltpoint.search_spaces.space import Space

ALLOWED = {
    parameter.name: parameter
    for parameter in (
        Parameter("slow", False, ""),
        Parameter("slow.pace", 1.0, "", 0.01, 100.0),
        Parameter("schedule", "flat", "", choices=("flat", "hat", "hill")),
        Parameter("hat.cut", 0.1, "", 0.001, 0.999),
        Parameter("hat.steps", 10, "", 1, 100),
        Parameter("batch", 32, "", 1, 64),
        Parameter("epochs", 3, "", 1, 20),
        Parameter("rate", 1e-3, "", 0.0, 1.0),
        Parameter("decay", 0.01, "", 0.0, 1.0),
    )
}
DISCRETE = ("slow", "schedule", "batch", "epochs")


@st.composite
def values(draw, parameter):
    if isinstance(parameter.default, bool):
        return draw(st.booleans())
    if isinstance(parameter.default, str):
        return draw(st.sampled_from(parameter.choices))
    if isinstance(parameter.default, int):
        return draw(st.integers(int(parameter.minimum), int(parameter.maximum)))
    return draw(st.floats(max(parameter.minimum, 1e-9), parameter.maximum))


@st.composite
def ranges(draw, parameter, finite):
    """A YAML entry, small enough to enumerate."""
    value = values(parameter)
    kind = draw(st.sampled_from(["scalar", "fixed", "choice", "range"]))
    if kind == "scalar":
        return draw(value)
    if kind == "fixed":
        return {"fixed": draw(value)}
    if kind == "choice" or isinstance(parameter.default, bool | str):
        entry = {"choice": draw(st.lists(value, min_size=1, max_size=3, unique=True))}
        return {**entry, "first": draw(st.sampled_from(entry["choice"]))} if draw(st.booleans()) else entry
    if isinstance(parameter.default, int):
        low = draw(st.integers(int(parameter.minimum), int(parameter.maximum) - 3))
        entry = {"integer": [low, draw(st.integers(low + 1, low + 3))]}
        return {**entry, "first": low + 1} if draw(st.booleans()) else entry
    low, high = sorted(draw(st.lists(value, min_size=2, max_size=2, unique=True)))
    entry = {draw(st.sampled_from(["uniform", "log_uniform"])): [low, high]}
    if finite or draw(st.booleans()):
        entry["grid"] = draw(st.lists(st.floats(low, high), min_size=1, max_size=3, unique=True))
    return {**entry, "first": draw(st.floats(low, high))} if draw(st.booleans()) else entry


@st.composite
def spaces(draw, finite=False):
    declared = {}
    for name, parameter in ALLOWED.items():
        if not draw(st.booleans()):
            continue
        entry = draw(ranges(parameter, finite))
        others = [other for other in DISCRETE if other in declared and other != name]
        if others and draw(st.booleans()):
            other = draw(st.sampled_from(others))
            entry = entry if isinstance(entry, dict) else {"fixed": entry}
            entry["when"] = {other: draw(st.lists(values(ALLOWED[other]), min_size=1, max_size=3))}
        if isinstance(entry, dict) and draw(st.booleans()):
            entry["source"] = draw(st.text(max_size=20))
        declared[name] = entry
    return Space.of(declared, ALLOWED)


def contains(space, setting):
    try:
        return space.trimmed(setting) == setting
    except ValueError:
        return False


@settings(deadline=None)
@given(spaces(), st.integers(0, 2**32))
def test_a_drawn_setting_lies_in_the_space_as_the_first_does_and_the_same_generator_draws_it_again(space, seed):
    draws = [space.sample(np.random.default_rng(seed)) for _ in range(2)]
    assert draws[0] == draws[1]
    assert contains(space, space.first())
    assert contains(space, draws[0])


@settings(deadline=None)
@given(spaces(finite=True))
def test_points_are_distinct_lie_in_the_space_and_start_with_the_first(space):
    points = list(itertools.islice(space.points(), 3000))
    assert points[0] == space.first()
    assert len({repr(sorted(point.items())) for point in points}) == len(points)
    assert all(contains(space, point) for point in points)


@given(space=spaces())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_loading_a_dump_gives_an_equal_space(space, tmp_path_factory):
    path: Path = tmp_path_factory.getbasetemp() / "dumped.yaml"
    path.write_text(space.dump(), encoding="utf-8")
    again = load(path, ALLOWED)
    assert again == space
    assert again.dump() == space.dump()
    assert again.fingerprint() == space.fingerprint()


@settings(deadline=None)
@given(spaces(), st.integers(0, 2**32))
def test_a_setting_is_a_space_with_one_point(space, seed):
    setting = space.sample(np.random.default_rng(seed))
    one = space.fixed(setting)
    assert list(one.points()) == [setting] == [one.first()]


@settings(deadline=None)
@given(spaces(), st.integers(0, 2**32))
def test_a_setting_with_one_value_moved_out_of_its_range_is_outside(space, seed):
    setting = space.sample(np.random.default_rng(seed))
    for name in setting:
        assert not contains(space, {**setting, name: "elsewhere"})
        assert not contains(space, {other: value for other, value in setting.items() if other != name})
    assert not contains(space, {**setting, "stranger": 1})


@settings(deadline=None, max_examples=25)
@given(spaces(), st.integers(0, 2**31))
def test_optuna_suggests_settings_of_the_space_and_takes_finished_ones_back(space, seed):
    first = study(seed)
    for number in range(8):
        trial = first.ask()
        setting = space.suggest(trial)
        assert contains(space, setting)
        first.tell(trial, number / 8)
        again = space.from_params({**setting, "a_default_that_was_filled_in": 1})
        assert again == (trial.params, trial.distributions)


def study(seed: int) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True, n_startup_trials=3)
    return optuna.create_study(direction="maximize", sampler=sampler)


def conditional(make):
    return make({
        "learning_rate": {"log_uniform": [1e-5, 1e-3]}, "schedule": {"choice": ["constant", "slanted_triangular"]},
        "slanted_triangular.ratio": {"uniform": [2.0, 64.0], "first": 32.0},
        "gradual_unfreezing": {"choice": [False, True]},
        "gradual_unfreezing.epochs_per_group": {"uniform": [0.1, 1.0]},
        "batch_size": {"choice": [16, 32], "when": {"schedule": "constant"}},
    })  # fmt: skip


def test_a_study_rebuilt_from_finished_settings_goes_on_where_a_fresh_sampler_can_learn_from_them(make):
    space, old = pickle.loads(pickle.dumps(conditional(make))), study(0)  # it travels to other processes
    params, _ = space.from_params(space.first())
    old.enqueue_trial(params)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert space.suggest(old.ask()) == space.first()
    old = study(0)
    settings_told = []
    for _ in range(20):
        trial = old.ask()
        settings_told.append(space.suggest(trial))
        old.tell(trial, score(settings_told[-1]))
    new = study(1)
    for setting in settings_told:
        params, distributions = space.from_params(setting)
        new.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=score(setting)))
    assert [trial.params for trial in new.trials] == [trial.params for trial in old.trials]
    assert new.best_params == old.best_params
    drawn = []
    for _ in range(30):
        trial = new.ask()
        drawn.append(space.suggest(trial))
        new.tell(trial, score(drawn[-1]))
    assert all(contains(space, setting) for setting in drawn)
    assert sum(setting["schedule"] == "slanted_triangular" for setting in drawn) > 15  # chance alone would give 15


def score(setting):
    return (setting["schedule"] == "slanted_triangular") + setting["learning_rate"]


def test_a_parameter_is_absent_where_its_condition_fails_and_so_is_what_hangs_on_it(make):
    space = make(
        {
            "gradual_unfreezing": {"choice": [False, True]},
            "batch_size": {"choice": [16, 32], "when": {"gradual_unfreezing": True}},
            "epochs": {"choice": [2, 3], "when": {"batch_size": [32]}},
        }
    )
    assert list(space.points()) == [
        {"gradual_unfreezing": False},
        {"gradual_unfreezing": True, "batch_size": 16},
        {"gradual_unfreezing": True, "batch_size": 32, "epochs": 2},
        {"gradual_unfreezing": True, "batch_size": 32, "epochs": 3},
    ]


def test_a_tricks_own_parameter_is_tried_only_where_the_trick_is_on_though_no_condition_is_written(make):
    space = make({
        "schedule": {"choice": ["constant", "slanted_triangular"]}, "slanted_triangular.ratio": {"choice": [16, 32]},
        "gradual_unfreezing": {"choice": [False, True]}, "gradual_unfreezing.epochs_per_group": {"choice": [0.5, 1]},
    })  # fmt: skip
    assert len(list(space.points())) == 3 * 3
    assert space.first() == {"schedule": "constant", "gradual_unfreezing": False}


def test_the_first_setting_is_the_published_one_or_the_middle(make):
    assert make({
        "learning_rate": {"log_uniform": [1e-5, 1e-3]}, "dropout": {"uniform": [0.0, 0.4]},
        "epochs": {"integer": [2, 5]}, "batch_size": {"choice": [16, 32], "first": 32},
        "schedule": {"choice": ["linear_warmup_decay", "constant"]},
    }).first() == {
        "learning_rate": pytest.approx(1e-4), "dropout": 0.2, "epochs": 3, "batch_size": 32,
        "schedule": "linear_warmup_decay",
    }  # fmt: skip


def test_a_log_range_is_drawn_evenly_in_the_logarithm_and_a_plain_one_evenly(make):
    space = make({"learning_rate": {"log_uniform": [1e-6, 1e-2]}, "dropout": {"uniform": [0.0, 0.8]}})
    rng = np.random.default_rng(0)
    drawn = [space.sample(rng) for _ in range(2000)]
    assert sum(setting["learning_rate"] < 1e-4 for setting in drawn) == pytest.approx(1000, abs=100)
    assert sum(setting["dropout"] < 0.4 for setting in drawn) == pytest.approx(1000, abs=100)


def test_a_continuous_range_cannot_be_enumerated_and_a_huge_finite_space_begins_with_its_first_point(make):
    space = make({"learning_rate": {"uniform": [0.1, 0.2]}, "epochs": 3}, where="my.yaml")
    assert not space.is_finite
    with pytest.raises(ValueError, match=r"^my\.yaml: learning_rate cannot be enumerated; add `grid"):
        space.points()
    space = make({"epochs": {"integer": [1, 1000]}, "batch_size": {"integer": [1, 4096]}})
    assert space.is_finite
    assert next(space.points()) == space.first()


def test_values_get_their_own_types_back_and_wrong_ones_are_named(make):
    space = make({"dropout": {"uniform": [0.0, 0.5]}, "epochs": {"integer": [1, 4]}})
    assert repr(space.trimmed({"epochs": 2.0, "dropout": 0})) == "{'dropout': 0.0, 'epochs': 2}"
    with pytest.raises(ValueError, match=r"^dropout is 0\.9; the space has uniform \[0\.0, 0\.5\]\.$"):
        space.trimmed({"dropout": 0.9, "epochs": 2})
    with pytest.raises(ValueError, match=r"^epochs is missing from the setting; it takes integer \[1, 4\]\.$"):
        space.trimmed({"dropout": 0.1})
    space = make({"gradual_unfreezing": {"choice": [False, True]}, "epochs": {"choice": [1, 2]}})
    assert contains(space, {"gradual_unfreezing": True, "epochs": 1})
    assert not contains(space, {"gradual_unfreezing": 1, "epochs": 1}), "true is not one"
    assert not contains(space, {"gradual_unfreezing": True, "epochs": True})


def test_the_fingerprint_follows_what_is_searched_and_not_its_sources_or_the_order_of_lines(make):
    declared = {"epochs": {"choice": [2, 3]}, "dropout": {"uniform": [0.0, 0.5]}}
    print_of = make(declared).fingerprint()
    assert print_of == make(dict(reversed(declared.items()))).fingerprint()
    assert print_of == make({**declared, "epochs": {"choice": [2, 3], "source": "a paper"}}).fingerprint()
    assert print_of != make({**declared, "epochs": {"choice": [2, 4]}}).fingerprint()
    assert print_of != make({**declared, "epochs": {"choice": [2, 3], "first": 3}}).fingerprint()
    assert make({"epochs": 3}).fingerprint() != make({"epochs": 3}, early_stopping={}).fingerprint()
