"""The tricks against their sources' equations, and the shapes that the sources promise."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meltpoint.adapters import tricks
from meltpoint.adapters.multiplier_table import Phase, Plan
from meltpoint.adapters.tricks import discriminative_rates, gradual_unfreezing
from meltpoint.adapters.tricks.linear_warmup_decay import warmup_decay
from meltpoint.adapters.tricks.slanted_triangular import slanted_triangle


def one_phase(groups: int, per_epoch: int, epochs: int) -> Plan:
    return Plan(groups, per_epoch, (Phase("train", epochs, 1e-3, True),))


# --- the registry ---


@pytest.mark.parametrize("name", tricks.names())
def test_every_trick_carries_its_file_name_its_source_and_parameters_dotted_by_its_name(name: str):
    trick = tricks.get(name)
    assert trick.name == name
    assert "20" in trick.summary
    assert all(own.name.startswith(f"{name}.") for own in trick.hyperparameters)


# --- slanted triangular ---


def equation_3(t: int, total: int, cut_frac: float, ratio: float) -> tuple[float, float]:
    """Howard & Ruder 2018, eq. 3, written out with a peak of 1: (p, the rate)."""
    cut = math.floor(total * cut_frac)
    p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / cut_frac - 1))
    return p, 1.0 * (1 + p * (ratio - 1)) / ratio


@given(st.integers(1, 5000), st.floats(0.001, 0.999), st.floats(1.0, 1e6), st.data())
def test_slanted_triangular_is_equation_3_wherever_its_p_is_not_negative(
    total: int, cut_frac: float, ratio: float, data: st.DataObject
):
    t = data.draw(st.integers(0, total - 1))
    if math.floor(total * cut_frac) == 0:
        total = math.ceil(1 / cut_frac) + 1
    p, rate = equation_3(t, total, cut_frac, ratio)
    if p >= 0:
        assert slanted_triangle(t, total, cut_frac, ratio) == pytest.approx(rate, rel=1e-9)
    else:
        assert slanted_triangle(t, total, cut_frac, ratio) == 1 / ratio


# --- linear warm-up and decay ---


def test_warmup_and_decay_rise_and_fall_in_even_steps():
    factors = [warmup_decay(step, 10, 0.3) for step in range(10)]
    assert factors == pytest.approx([1 / 4, 2 / 4, 3 / 4, 1, 6 / 7, 5 / 7, 4 / 7, 3 / 7, 2 / 7, 1 / 7])


@given(st.integers(1, 2000), st.floats(0.0, 0.999))
def test_warmup_and_decay_is_a_hat_within_0_and_1_that_never_touches_0(steps: int, fraction: float):
    factors = [warmup_decay(step, steps, fraction) for step in range(steps)]
    top = min(round(steps * fraction), steps - 1)
    assert all(low < high for low, high in itertools.pairwise(factors[: top + 1]))
    assert all(high > low for high, low in itertools.pairwise(factors[top:]))
    assert min(factors) > 0
    assert max(factors) <= 1


def test_without_warmup_the_first_step_has_the_full_rate():
    assert warmup_decay(0, 8, 0.0) == 1.0


# --- discriminative rates ---


@given(st.integers(2, 30), st.integers(0, 99))
def test_discriminative_rates_are_the_factor_to_the_power_of_the_depth_below_the_head(groups: int, step: int):
    plan = one_phase(groups, 100, 1)
    setting = {"discriminative_rates.factor": 0.4}
    for depth in range(groups):
        found = discriminative_rates.multiplier(groups - 1 - depth, step, plan, setting)
        assert found == pytest.approx(0.4**depth, rel=1e-12)


# --- gradual unfreezing ---


def open_groups(plan: Plan, step: int, pace: float) -> list[int]:
    setting = {"gradual_unfreezing.epochs_per_group": pace}
    values = {group: gradual_unfreezing.multiplier(group, step, plan, setting) for group in range(plan.groups)}
    assert set(values.values()) <= {0.0, 1.0}
    return [group for group, value in values.items() if value]


@given(st.integers(2, 20), st.integers(1, 100), st.integers(1, 25), st.data())
def test_the_head_trains_in_epoch_0_and_exactly_one_more_group_from_the_top_in_each_later_one(
    groups: int, per_epoch: int, epochs: int, data: st.DataObject
):
    plan = one_phase(groups, per_epoch, epochs)
    step = data.draw(st.integers(0, plan.total_steps - 1))
    epoch = step // per_epoch
    assert open_groups(plan, step, 1.0) == list(range(max(0, groups - 1 - epoch), groups))


def test_a_group_thaws_within_an_epoch_where_the_pace_is_a_fraction():
    plan = one_phase(12, 10, 1)
    assert [len(open_groups(plan, step, 0.1)) for step in range(10)] == list(range(1, 11))
    assert [len(open_groups(plan, step, 0.5)) for step in (0, 4, 5, 9)] == [1, 1, 2, 2]


def test_a_group_waits_several_epochs_where_the_pace_is_above_1():
    plan = one_phase(4, 10, 5)
    assert [len(open_groups(plan, step, 2.0)) for step in (0, 19, 20, 39, 40)] == [1, 1, 2, 2, 3]


def test_unfreezing_counts_from_the_start_of_the_phase_in_which_the_encoder_trains():
    phases = (Phase("stack", 3, 1e-3, False), Phase("finetune", 3, 1e-5, True))
    plan = Plan(4, 10, phases, restart_schedule=False)
    assert [open_groups(plan, step, 1.0) for step in (30, 39, 40, 50)] == [[3], [3], [2, 3], [1, 2, 3]]


# --- a plateau of dev ---


@pytest.mark.parametrize(
    ("restarts", "rates"), [(True, [1, 0.5, 0.5, 1, 1, 0.5]), (False, [1, 0.5, 0.5, 0.25, 0.25, 0.125])]
)
def test_each_plateau_lowers_the_rate_of_every_group_from_the_next_step_on(restarts: bool, rates: list[float]):
    phases = (Phase("stack", 3, 1e-3, False), Phase("finetune", 3, 1e-5, True))
    plan = Plan(4, 10, phases, restarts, plateaus=(1, 3, 5))
    setting = {"reduce_on_plateau.factor": 0.5}
    for group in range(4):
        found = [tricks.get("reduce_on_plateau").multiplier(group, step, plan, setting) for step in range(60)]
        assert found == [rate for rate in rates for _ in range(10)]
