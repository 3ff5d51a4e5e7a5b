"""The ❄/🔥 table's values: means, Δ and its error by hand, reasons for missing scores, and the best entries."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meltpoint.reports.matrix import AT_CAP, HIDDEN, NO_TEST, UNSCORED, matrix
from meltpoint.reports.table_values import Matrix, ModeVariant, TableEntry, difference
from meltpoint.sweeps.search.early_ends import EarlyEnd
from meltpoint.tests.fixed_comparer import FixedComparer

MODES = ("feature_extraction", "fine_tuning", "stack_and_finetune")


def entry(table: Matrix, mode: str, column: int = 0) -> TableEntry:
    return next(row.entries[column] for row in table.blocks[0].modes if row.title.endswith(mode))


def reasons(table: Matrix, shown: TableEntry) -> list[str]:
    """The footnotes of an entry."""
    return [table.footnotes[number - 1] for number in shown.notes]


def test_a_difference_and_its_error_are_those_worked_out_by_hand(make_cell) -> None:
    frozen = make_cell("feature_extraction", finals=[(0.7, 0.70), (0.7, 0.74)])
    tuned = make_cell("fine_tuning", finals=[(0.8, 0.80), (0.8, 0.83), (0.8, 0.86)])
    result = difference(tuned, frozen)
    assert (result.split, result.mean) == ("test", pytest.approx(0.83 - 0.72))
    # s² of 0.80, 0.83, 0.86 is 0.0009, over 3 seeds; of 0.70, 0.74 it is 0.0008, over 2
    assert result.error == pytest.approx(math.sqrt(0.0009 / 3 + 0.0008 / 2))
    on_dev = difference(tuned, make_cell(finals=[(0.7, "hidden")]))
    assert (on_dev.split, on_dev.mean) == ("dev", pytest.approx(0.1)), "where one side has no test score"


@pytest.mark.parametrize(
    ("chosen", "titles"),
    [(MODES[:2], ["Δ 🔥 − ❄"]), (MODES[1:], ["Δ ❄🔥 − 🔥"]), ((MODES[0], MODES[2]), ["Δ ❄🔥 − ❄"]), (MODES[:1], [])],
)
def test_a_difference_is_shown_only_where_both_modes_are_in_the_sweep(chosen, titles, make_cell, make_sweep):
    block = matrix(make_sweep(*(make_cell(mode, finals=[(0.8, 0.8)]) for mode in chosen))).blocks[0]
    assert [row.title for row in block.differences] == titles


@pytest.mark.parametrize(
    ("cell", "state", "reason"),
    [
        ({"search": (), "failed": ["nan"] * 3}, "failed", "every trial failed"),
        ({"search": (), "planned": 4, "running": 1}, "running", "no trial has finished"),
        ({"search": (), "planned": 4}, "stopped", "no trial has finished"),
        ({"search": (), "failed": ["nan"], "planned": 4}, "stopped", "no trial has finished"),
        ({"search": (0.8,), "planned": 4}, "running", "no final has finished"),
        ({"search": (0.8,)}, "stopped", "no final has finished"),
    ],
)
def test_a_missing_cell_is_a_dash_with_the_reason_in_a_footnote(cell, state, reason, make_cell, make_sweep):
    table = matrix(make_sweep(make_cell(**cell), state=state))
    shown = entry(table, "fine_tuning")
    assert shown.text == "–"
    assert shown.mean is None
    assert reasons(table, shown) == [reason]


@pytest.mark.parametrize(
    ("test", "notes", "reason"),
    [(one, ("test labels hidden",), HIDDEN) for one in ("hidden", None)]
    + [("hidden", (), NO_TEST), (None, (), UNSCORED)],
)
def test_a_cell_without_test_scores_shows_dev_says_so_and_why(test, notes, reason, make_cell, make_sweep):
    cell = make_cell(finals=[(0.848, test), (0.854, test)], notes=notes)
    table = matrix(make_sweep(cell))
    shown = entry(table, "fine_tuning")
    assert shown.label == "dev 85.1 ± 0.4"
    assert reasons(table, shown) == [reason]


def test_fewer_seeds_than_planned_and_fewer_scores_than_seeds_are_both_said(make_cell, make_sweep):
    table = matrix(make_sweep(make_cell(finals=[(0.8, 0.7), (0.8, None)]), seeds=5, state="running"))
    shown = entry(table, "fine_tuning")
    assert shown.label == "70.0"
    assert reasons(table, shown) == ["1 of 2 seeds scored on test", "2 of 5 seeds finished"]


def test_a_difference_has_its_interval_and_no_footnote(make_cell, make_sweep) -> None:
    cells = [make_cell(mode, finals=[(0.7, mean)] * 2) for mode, mean in zip(MODES, (0.70, 0.78, 0.77), strict=True)]
    table = matrix(make_sweep(*cells), comparer=FixedComparer(0.017))
    assert [(row.title, row.entries[0].text, row.entries[0].notes) for row in table.blocks[0].differences] == [
        ("Δ 🔥 − ❄", "+8.0 [+6.3, +9.7]", ()), ("Δ ❄🔥 − ❄", "+7.0 [+5.3, +8.7]", ()),
        ("Δ ❄🔥 − 🔥", "−1.0 [−2.7, +0.7]", ()),
    ]  # fmt: skip


def test_of_many_modes_the_table_shows_the_differences_from_fine_tuning_and_keeps_all(make_cell, make_sweep):
    ladder = ("probe", "feature_extraction", "lora", "fine_tuning", "stack_and_finetune")
    cells = [make_cell(mode, finals=[(0.7, 0.7)] * 2) for mode in ladder]
    table = matrix(make_sweep(*cells), comparer=FixedComparer(0.017))
    titles = [row.title for row in table.blocks[0].differences]
    assert titles == ["Δ 🔥 − 🔍", "Δ 🔥 − ❄", "Δ 🔥 − 🧩", "Δ ❄🔥 − 🔥"]
    assert len(table.deltas) == 10, "every pair is adjusted for, and in the findings"


def test_holm_is_over_all_differences_of_all_encoders_and_tasks_by_their_own_metric(make_cell, make_sweep):
    tasks = (("mrpc", ("f1",)), ("sst2", ()))
    cells = [
        make_cell(mode, task, encoder=encoder, finals=[(0.5, mean)], columns=columns, beside={"f1": mean})
        for encoder in ("minilm", "bert-base") for task, columns in tasks
        for mode, mean in zip(MODES, (0.70, 0.75, 0.80), strict=True)
    ]  # fmt: skip
    deltas = matrix(make_sweep(*cells, seeds=1), comparer=FixedComparer()).deltas
    family = [delta for delta in deltas if delta.in_family]
    assert {(delta.encoder, delta.task, delta.title) for delta in family} == set(
        itertools.product(("minilm", "bert-base"), ("mrpc", "sst2"), ("Δ 🔥 − ❄", "Δ ❄🔥 − ❄", "Δ ❄🔥 − 🔥"))
    )
    assert [delta.comparison.p_holm for delta in family] == pytest.approx([12 * 0.001] * 12)
    others = [delta for delta in deltas if not delta.in_family]
    assert {delta.comparison.p_holm for delta in others} == {None}
    assert [delta.comparison.metric for delta in others] == ["f1"] * 6, "three rows of each encoder"


def test_a_metric_beside_the_tasks_own_has_a_column_with_its_own_differences_and_no_second_footnotes(
    make_cell, make_sweep
) -> None:
    made = {"task": "mrpc", "columns": ("f1",), "seeds": 3}
    frozen = make_cell("feature_extraction", finals=[(0.7, 0.70)] * 2, beside={"f1": 0.8}, **made)
    tuned = make_cell("fine_tuning", finals=[(0.8, 0.80)] * 2, beside={"f1": 0.75}, **made)
    other = make_cell("fine_tuning", "sst2", finals=[(0.9, 0.9)] * 2, seeds=2)
    block = matrix(make_sweep(frozen, tuned, other)).blocks[0]
    assert block.tasks == (("mrpc", "accuracy"), ("mrpc", "f1"), ("sst2", "accuracy"))
    texts = [[shown.text for shown in row.entries[:2]] for row in (*block.modes, *block.differences)]
    assert texts == [["70.0 ± 0.0", "80.0 ± 0.0"], ["80.0 ± 0.0", "75.0 ± 0.0"], ["+10.0 ± 0.0", "−5.0 ± 0.0"]]
    assert [[bool(shown.notes) for shown in row.entries[:2]] for row in block.modes] == [[True, False]] * 2
    old = matrix(make_sweep(make_cell(finals=[(0.8, 0.8)], columns=("f1",)), seeds=1)).blocks[0]
    assert [shown.text for shown in old.modes[0].entries] == ["80.0", "–"], "a ledger without the metric"


def test_a_further_test_split_has_a_column_and_differences_over_seeds_alone(make_cell, make_sweep):
    cells = [make_cell(mode, finals=[(0.8, 0.8), (0.8, 0.82)], beside={"far/accuracy": score})
             for mode, score in (("feature_extraction", 0.6), ("fine_tuning", 0.7))]  # fmt: skip
    named = [replace(cell, header=cell.header.model_copy(update={"also_test": ("far/accuracy",)})) for cell in cells]
    (block,) = matrix(make_sweep(*named)).blocks
    assert block.tasks == (("sst2", "accuracy"), ("sst2", "far/accuracy"))
    assert [row.entries[1].text for row in block.modes] == ["60.0 ± 0.0", "70.0 ± 0.0"]
    assert [row.entries[1].text for row in block.differences] == ["+10.0 ± 0.0"]


@pytest.mark.parametrize(
    ("schedule", "best", "said"), [("constant", 3, True), ("constant", 2, False), ("linear_warmup_decay", 3, False)]
)
def test_a_best_epoch_at_the_cap_of_a_constant_rate_is_a_footnote(make_cell, make_sweep, schedule, best, said):
    cell = make_cell(finals=[(0.8, 0.79), (0.8, 0.81)])
    changed = cell.finals[1].model_copy(
        update={"best_epoch": best, "setting": {**cell.finals[1].setting, "schedule": schedule}}
    )
    table = matrix(make_sweep(replace(cell, finals=[cell.finals[0], changed])))
    assert [AT_CAP in reasons(table, entry(table, "fine_tuning"))] == [said]


@pytest.mark.parametrize(("behind", "said"), [(0.091, ["dropped after 5 trials, 9.1 points behind"]), (None, [])])
def test_a_cell_that_the_race_dropped_says_so_in_a_footnote(make_cell, make_sweep, behind, said):
    cell = make_cell(finals=[(0.8, 0.79), (0.8, 0.81)])
    table = matrix(make_sweep(replace(cell, early_end=EarlyEnd(5, behind))))
    assert reasons(table, entry(table, "fine_tuning")) == said


def test_a_mode_in_which_nothing_is_random_says_why_it_has_no_deviation(make_cell, make_sweep):
    table = matrix(make_sweep(make_cell("probe", finals=[(0.8, 0.8)]), make_cell("fine_tuning")))
    assert "nothing in probe is random, so its one run has no ±" in table.footnotes
    assert not any("fine_tuning" in note for note in table.footnotes)


@given(order=st.permutations([(mode, variant) for mode in MODES for variant in ("a", "b")]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_stand_by_variant_and_then_as_in_the_papers_whatever_the_cells_order(make_cell, make_sweep, order):
    cells = [make_cell(mode, variant=variant, finals=[(0.7, 0.7), (0.7, 0.72)]) for mode, variant in order]
    rows = [row.of for row in matrix(make_sweep(*cells), comparer=FixedComparer()).blocks[0].modes]
    first, second = dict.fromkeys(variant for _, variant in order)
    assert rows == [ModeVariant(mode, variant) for variant in (first, second) for mode in MODES]
