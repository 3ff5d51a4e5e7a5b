"""Recommendations: which mode, how certain, against which other one, and in which words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from meltpoint.reports.recommendation import Recommendation, recommendations
from meltpoint.reports.statistics.comparison import Behind, Comparison, ModelDifference
from meltpoint.reports.table_values import Delta

ICE, FIRE, BOTH = "feature_extraction", "fine_tuning", "stack_and_finetune"
SCORES = {ICE: 0.774, FIRE: 0.927, BOTH: 0.912}
SURE, UNSURE = 0.001, 0.5
FAR, NEAR = Behind(0.9, 0.03), Behind(0.001, 0.004)


@pytest.fixture
def recommend(make_cell: Any, make_sweep: Any) -> Any:
    """Scores by mode, and for pairs (upper, lower) what is not a sure difference → the recommendation of sst2."""

    def made(
        scores: Mapping[str, float], pairs: Mapping[tuple[str, str], Mapping[str, Any]] | None = None, **more: Any
    ) -> Recommendation:
        cells = [make_cell(mode, finals=[(0.5, score)] * 2, **more) for mode, score in scores.items()]
        deltas = []
        for place, lower in enumerate(cells):
            for upper in cells[place + 1 :]:
                modes = upper.header.mode, lower.header.mode
                delta = scores[modes[0]] - scores[modes[1]]
                known = {"p_holm": SURE, "upper_behind": FAR, "lower_behind": FAR, **(pairs or {}).get(modes, {})}
                comparison = Comparison(
                    upper.header.key, lower.header.key, "test", "accuracy", delta, delta - 0.02, delta + 0.02, **known
                )
                deltas.append(Delta("", comparison, in_family=True))
        (found,) = recommendations(make_sweep(*cells), deltas)
        return found

    return made


def test_a_sure_leader_is_named_with_its_lead_over_the_other_answer(recommend):
    found = recommend(SCORES, {(BOTH, FIRE): {"p_holm": UNSURE}})
    assert (found.certainty, found.winner.mode) == ("sure", FIRE)
    assert found.sentence == "Fine-tune it: 🔥 92.7, 15.3 above ❄ [+13.3, +17.3]: sure."
    assert found.details == ("❄🔥 (91.2) cannot be told apart from 🔥.",), "both train the encoder"


def test_the_sign_follows_the_winner_where_it_is_the_lower_cell_of_the_comparison(recommend):
    found = recommend({ICE: 0.9, FIRE: 0.8})
    assert found.sentence == "Freeze it: ❄ 90.0, 10.0 above 🔥 [+8.0, +12.0]: sure."
    assert (found.as_json()["delta"], found.as_json()["low"]) == pytest.approx((0.1, 0.08))


def test_a_frozen_leader_has_to_be_better_than_both_modes_that_train_the_encoder(recommend):
    found = recommend({ICE: 0.93, FIRE: 0.92, BOTH: 0.8}, {(FIRE, ICE): {"p_holm": UNSURE, "needed_seeds": 12}})
    assert found.certainty == "provisional"
    assert found.sentence == (
        "Freeze it: ❄ 93.0, 1.0 above 🔥 [−1.0, +3.0]: provisional; about 12 seeds would make it sure."
    )


def test_modes_of_one_answer_are_compared_with_each_other(recommend):
    scores = {FIRE: 0.9, BOTH: 0.8}
    assert recommend(scores).certainty == "sure"
    assert recommend(scores, {(BOTH, FIRE): {"p_holm": UNSURE}}).certainty == "provisional"


def test_the_cheapest_mode_within_the_margin_of_all_others_is_level(recommend):
    near = {(FIRE, ICE): {"lower_behind": NEAR}, (BOTH, ICE): {"lower_behind": NEAR}}
    found = recommend({ICE: 0.92, FIRE: 0.921, BOTH: 0.919}, near)
    assert (found.certainty, found.winner.mode) == ("level", ICE)
    assert found.sentence.startswith("Freeze it: ❄ 92.0, at most 0.4 points behind ")
    assert found.sentence.endswith(": level.")


@pytest.mark.parametrize("pair", [(FIRE, ICE), (BOTH, ICE)])
def test_a_mode_that_may_be_behind_any_other_by_the_margin_is_not_level(recommend, pair):
    near = {(FIRE, ICE): {"lower_behind": NEAR}, (BOTH, ICE): {"lower_behind": NEAR}}
    found = recommend({ICE: 0.92, FIRE: 0.921, BOTH: 0.919}, {**near, pair: {"lower_behind": FAR}})
    assert found.certainty != "level"


def test_one_seed_is_provisional_and_the_models_have_a_line_of_their_own(recommend):
    one = {"p_holm": None, "reason": "one seed says nothing about other runs", "needed_seeds": 2,
           "model": ModelDifference(0.153, 0.12, 0.19, 0.001)}  # fmt: skip
    found = recommend({ICE: 0.774, FIRE: 0.927}, {(FIRE, ICE): one})
    assert found.certainty == "provisional"
    assert found.sentence.endswith("provisional; about 2 seeds would make it sure.")
    assert found.details == ("The best model of each, over examples alone: 🔥 − ❄ +15.3 [+12.0, +19.0]: sure.",)


def test_failed_runs_are_named(recommend):
    found = recommend({ICE: 0.774, FIRE: 0.927}, {(FIRE, ICE): {"failed_runs": ((), (3,))}})
    assert found.details == ("1 run of ❄ failed (seed 3): more than 8 points below its best run.",)


def test_a_mode_without_a_rival_is_compared_with_nothing(recommend):
    found = recommend({FIRE: 0.9})
    assert (found.certainty, found.against) == ("provisional", None)
    assert found.sentence == "Fine-tune it: 🔥 90.0, with no other mode to compare it with: provisional."


def test_modes_without_a_result_are_named(make_cell, make_sweep):
    done, none = make_cell(ICE, finals=[(0.5, 0.9)] * 2), [make_cell(mode) for mode in (FIRE, BOTH)]
    (found,) = recommendations(make_sweep(done, *none), [])
    assert found.sentence == (
        "Freeze it: ❄ 90.0, with no other mode to compare it with: provisional; 🔥 and ❄🔥 have no result."
    )


def test_a_task_without_finals_has_no_recommendation(make_cell, make_sweep):
    assert recommendations(make_sweep(make_cell(FIRE)), []) == ()
