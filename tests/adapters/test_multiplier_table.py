"""The multiplier table: the modes are masks, the tricks commute, and zero means frozen and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meltpoint.adapters import modes, tricks
from meltpoint.adapters import settings as catalogue
from meltpoint.adapters.hyperparameters import Value
from meltpoint.adapters.multiplier_table import MultiplierTable, Phase, Plan

GROUPS, STEPS_PER_EPOCH = 4, 5
HEAD = GROUPS - 1


def make_table(mode: str, **setting: Value) -> MultiplierTable:
    given_names = {name.replace("__", "."): value for name, value in setting.items()}
    full = catalogue.complete({"epochs": 3, **given_names}, mode, "linear")
    plan = Plan(
        GROUPS, STEPS_PER_EPOCH, modes.get(mode).phases(full),
        bool(full.get("stack_and_finetune.restart_schedule", True)),
    )  # fmt: skip
    return MultiplierTable(plan, tuple(trick for trick in tricks.every() if trick.is_on(full)), full)


def column(table: MultiplierTable, step: int) -> list[float]:
    return [table.multiplier(group, step) for group in range(GROUPS)]


# --- the modes are masks ---


@pytest.mark.parametrize(("mode", "expected"), [("feature_extraction", [0, 0, 0, 1]), ("fine_tuning", [1, 1, 1, 1])])
def test_feature_extraction_keeps_the_encoders_rows_at_0_and_fine_tuning_every_row_at_1(mode: str, expected: list[int]):
    table = make_table(mode)
    assert [column(table, step) for step in range(table.plan.total_steps)] == [expected] * 15
    assert {table.encoder_is_frozen(step) for step in range(15)} == {mode == "feature_extraction"}


def test_stack_and_finetune_is_the_one_and_then_the_other():
    table = make_table("stack_and_finetune", stack_and_finetune__stack_epochs=2)
    columns = [column(table, step) for step in range(table.plan.total_steps)]
    assert columns == [[0, 0, 0, 1]] * 10 + [[1, 1, 1, 1]] * 15


def test_the_learning_rate_is_the_phases_rate_times_the_multiplier():
    table = make_table(
        "stack_and_finetune", learning_rate=2e-5, stack_and_finetune__stack_learning_rate=3e-3,
        schedule="linear_warmup_decay", discriminative_rates=True,
    )  # fmt: skip
    for step, group in itertools.product(range(table.plan.total_steps), range(GROUPS)):
        rate = 3e-3 if step < 10 else 2e-5
        assert table.learning_rate(group, step) == rate * table.multiplier(group, step)


# --- the plan ---


def test_phases_begin_and_end_at_their_own_steps():
    first, second = Phase("stack", 2, 1e-3, False), Phase("finetune", 3, 1e-5, True)
    plan = Plan(GROUPS, STEPS_PER_EPOCH, (first, second))
    assert (plan.epochs, plan.total_steps) == (5, 25)
    found = [(plan.phase_at(step)[0].name, plan.phase_at(step)[1]) for step in (0, 9, 10, 24)]
    assert found == [("stack", 0), ("stack", 0), ("finetune", 10), ("finetune", 10)]
    with pytest.raises(IndexError, match="step 25 is past the plan's 25 steps"):
        plan.phase_at(25)


def test_a_schedule_starts_anew_with_each_phase_unless_restart_is_off():
    phases = (Phase("stack", 2, 1e-3, False), Phase("finetune", 3, 1e-5, True))
    anew = Plan(GROUPS, STEPS_PER_EPOCH, phases, restart_schedule=True)
    assert [anew.schedule_at(step) for step in (0, 9, 10, 24)] == [(0, 10), (9, 10), (0, 15), (14, 15)]
    once = Plan(GROUPS, STEPS_PER_EPOCH, phases, restart_schedule=False)
    assert [once.schedule_at(step) for step in (0, 9, 10, 24)] == [(0, 25), (9, 25), (10, 25), (24, 25)]


# --- the tricks commute, and 0 means frozen ---


@st.composite
def settings(draw: st.DrawFn, gradual: bool | None = None) -> dict[str, Value]:
    """Any setting of the tricks."""
    schedule = draw(st.sampled_from(["constant", "slanted_triangular", "linear_warmup_decay", "reduce_on_plateau"]))
    found: dict[str, Value] = {
        "schedule": schedule,
        "discriminative_rates": draw(st.booleans()),
        "gradual_unfreezing": draw(st.booleans()) if gradual is None else gradual,
        "epochs": draw(st.integers(1, 5)),
    }
    limits: Mapping[str, st.SearchStrategy[float]] = {
        "slanted_triangular.cut_fraction": st.floats(0.001, 0.999),
        "slanted_triangular.ratio": st.floats(1.0, 1e6),
        "linear_warmup_decay.warmup_fraction": st.floats(0.0, 0.999),
        "reduce_on_plateau.factor": st.floats(0.01, 0.99),
        "discriminative_rates.factor": st.floats(0.001, 1.0),
        "gradual_unfreezing.epochs_per_group": st.floats(0.01, 100.0),
    }
    return {**found, **{name: draw(values) for name, values in limits.items()}}


@given(settings(), st.integers(1, 40), st.integers(2, 30), st.data())
def test_the_tricks_give_the_same_table_in_every_order(
    setting: dict[str, Value], per_epoch: int, groups: int, data: st.DataObject
):
    full = catalogue.complete(setting, "stack_and_finetune", "linear")
    plan = Plan(groups, per_epoch, modes.get("stack_and_finetune").phases(full))
    active = tuple(trick for trick in tricks.every() if trick.is_on(full))
    group = data.draw(st.integers(0, groups - 1))
    step = data.draw(st.integers(0, plan.total_steps - 1))
    orders = [MultiplierTable(plan, order, full).multiplier(group, step) for order in itertools.permutations(active)]
    assert orders == pytest.approx([orders[0]] * len(orders), rel=1e-12, abs=0)


@given(settings(), st.sampled_from(modes.names()), st.integers(1, 3000), st.integers(2, 30), st.data())
def test_a_row_is_0_exactly_where_the_mode_or_gradual_unfreezing_freezes_it_and_never_negative_or_above_1(
    setting: dict[str, Value], mode: str, per_epoch: int, groups: int, data: st.DataObject
):
    allowed = {own.name for own in catalogue.parameters(mode, "linear")}
    full = catalogue.complete({k: v for k, v in setting.items() if k in allowed}, mode, "linear")
    plan = Plan(groups, per_epoch, modes.get(mode).phases(full), data.draw(st.booleans()))
    table = MultiplierTable(plan, tuple(trick for trick in tricks.every() if trick.is_on(full)), full)
    group = data.draw(st.integers(0, groups - 1))
    step = data.draw(st.integers(0, plan.total_steps - 1))
    phase, first = plan.phase_at(step)
    pace = full.get("gradual_unfreezing.epochs_per_group")
    thawed = float("inf") if pace is None else (step - first) / per_epoch / float(pace) + 1e-9
    is_open = group == groups - 1 or (phase.trains(group, groups - 1) and groups - 1 - group <= thawed)
    value = table.multiplier(group, step)
    assert (value > 0.0) == is_open
    assert 0.0 <= value <= 1.0
