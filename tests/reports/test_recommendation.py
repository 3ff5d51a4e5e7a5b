"""Recommendations: which mode, how certain, against which other one, and in which words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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


ONE_SEED = {"p_holm": None, "reason": "one seed says nothing about other runs", "needed_seeds": 2,
            "model": ModelDifference(0.153, 0.12, 0.19, 0.001)}  # fmt: skip
ALL_NEAR = {(FIRE, ICE): {"lower_behind": NEAR}, (BOTH, ICE): {"lower_behind": NEAR}}
CLOSE = {ICE: 0.92, FIRE: 0.921, BOTH: 0.919}
CASES = {
    # what is known: scores, what is not a sure difference, certainty, winner, the sentence, details
    "a sure leader, with its lead over the other answer: two modes train the encoder": (
        SCORES, {(BOTH, FIRE): {"p_holm": UNSURE}}, "sure", FIRE,
        "Fine-tune it: 🔥 92.7, 15.3 above ❄ [+13.3, +17.3]: sure.", ("❄🔥 (91.2) cannot be told apart from 🔥.",)),
    "a leader that is the lower cell of the comparison": (
        {ICE: 0.9, FIRE: 0.8}, {}, "sure", ICE, "Freeze it: ❄ 90.0, 10.0 above 🔥 [+8.0, +12.0]: sure.", ()),
    "a frozen leader that is not surely better than both modes that train the encoder": (
        {ICE: 0.93, FIRE: 0.92, BOTH: 0.8}, {(FIRE, ICE): {"p_holm": UNSURE, "needed_seeds": 12}}, "provisional", ICE,
        "Freeze it: ❄ 93.0, 1.0 above 🔥 [−1.0, +3.0]: provisional; about 12 seeds would make it sure.", None),
    "a leader whose score is equal": (
        {ICE: 0.9, FIRE: 0.9}, {(FIRE, ICE): {"p_holm": UNSURE, "needed_seeds": None}}, "provisional", ICE,
        "Freeze it: ❄ 90.0, as good as 🔥 [−2.0, +2.0]: provisional.", None),
    "two modes of one answer": ({FIRE: 0.9, BOTH: 0.8}, {}, "sure", FIRE, None, None),
    "two modes of one answer that cannot be told apart": (
        {FIRE: 0.9, BOTH: 0.8}, {(BOTH, FIRE): {"p_holm": UNSURE}}, "provisional", FIRE, None, None),
    "the cheapest mode within the margin of all others": (
        CLOSE, ALL_NEAR, "level", ICE, "Freeze it: ❄ 92.0, at most 0.4 points behind 🔥: level.", None),
    "the cheapest mode, within the margin of all others, that leads by less than is sure": (
        {ICE: 0.921, FIRE: 0.92}, {(FIRE, ICE): {"p_holm": UNSURE, "lower_behind": NEAR}}, "level", ICE,
        "Freeze it: ❄ 92.1, at most 0.4 points behind 🔥: level.", None),
    "a sure leader that is also the cheapest": (
        {ICE: 0.99, FIRE: 0.92}, {(FIRE, ICE): {"lower_behind": Behind(0.001, -0.05)}}, "sure", ICE, None, None),
    **{f"a mode that may be behind {pair[0]} by the margin": (
        CLOSE, ALL_NEAR | {pair: {"lower_behind": FAR}}, "sure", FIRE, None, None) for pair in ALL_NEAR},
    "one seed, whose models have a line of their own": (
        {ICE: 0.774, FIRE: 0.927}, {(FIRE, ICE): ONE_SEED}, "provisional", FIRE,
        "Fine-tune it: 🔥 92.7, 15.3 above ❄ [+13.3, +17.3]: provisional; about 2 seeds would make it sure.",
        ("The best model of each, over examples alone: 🔥 − ❄ +15.3 [+12.0, +19.0].",)),
    "failed runs": (
        {ICE: 0.774, FIRE: 0.927}, {(FIRE, ICE): {"failed_runs": ((), (3,))}}, "sure", FIRE, None,
        ("1 run of ❄ failed (seed 3): more than 8 points below its best run.",)),
    "a mode without a rival": (
        {FIRE: 0.9}, {}, "provisional", FIRE,
        "Fine-tune it: 🔥 90.0, with no other mode to compare it with: provisional.", None),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_recommendation_says_which_mode_how_certain_and_against_which_other(recommend, case):
    scores, pairs, certainty, winner, sentence, details = CASES[case]
    found = recommend(scores, pairs)
    assert (found.certainty, found.winner.mode) == (certainty, winner)
    assert sentence in (None, found.sentence)
    assert details in (None, found.details)
    assert (found.against is None) == (len(scores) == 1)
    if case == "a leader that is the lower cell of the comparison":
        assert (found.as_json()["delta"], found.as_json()["low"]) == pytest.approx((0.1, 0.08))


def test_a_leader_with_runs_that_gave_no_score_is_not_sure(make_cell, make_sweep):
    ice, fire = make_cell(ICE, finals=[(0.5, 0.8)] * 2), make_cell(FIRE, finals=[(0.5, 0.9)] * 2)
    known = Comparison(fire.header.key, ice.header.key, "test", "accuracy", 0.1, 0.08, 0.12, p_holm=SURE,
                       upper_behind=FAR, lower_behind=FAR)  # fmt: skip
    for cause, certainty in (("setting", "provisional"), ("node", "sure")):
        ended = fire.finals[0].model_copy(update={"status": "failed", "cause": cause, "test": None})
        cells = [ice, replace(fire, failed_finals=[ended])]
        (found,) = recommendations(make_sweep(*cells), [Delta("", known, in_family=True)])
        assert found.certainty == certainty
        assert ("some of its runs ended without a score" in found.sentence) is (certainty == "provisional")


def test_less_data_is_not_recommended_however_good_its_score(make_cell, make_sweep):
    cells = []
    for mode, size, score in ((ICE, 64, 0.95), (ICE, 1024, 0.8), (FIRE, 1024, 0.9)):
        cell = make_cell(mode, variant=f"n{size}", finals=[(0.5, score)] * 2)
        cells.append(replace(cell, header=cell.header.model_copy(update={"train_examples": size})))
    (found,) = recommendations(make_sweep(*cells), [])
    assert [(one.mode, one.score.mean) for one in found.standings] == [(FIRE, 0.9), (ICE, 0.8)]


def test_modes_without_a_result_are_named_and_a_task_without_finals_has_no_recommendation(make_cell, make_sweep):
    done, none = make_cell(ICE, finals=[(0.5, 0.9)] * 2), [make_cell(mode) for mode in (FIRE, BOTH)]
    (found,) = recommendations(make_sweep(done, *none), [])
    assert found.sentence == (
        "Freeze it: ❄ 90.0, with no other mode to compare it with: provisional; 🔥 and ❄🔥 have no result."
    )
    assert recommendations(make_sweep(make_cell(FIRE)), []) == ()


def test_a_leader_is_not_sure_while_no_mode_with_the_other_answer_has_a_result(make_cell, make_sweep):
    probe, ice, fire = (
        make_cell("probe", finals=[(0.5, 0.8)] * 2),
        make_cell(ICE, finals=[(0.5, 0.9)] * 2),
        make_cell(FIRE),
    )
    known = Comparison(ice.header.key, probe.header.key, "test", "accuracy", 0.1, 0.08, 0.12, p_holm=SURE,
                       upper_behind=FAR, lower_behind=FAR)  # fmt: skip
    deltas = [Delta("", known, in_family=True)]
    (found,) = recommendations(make_sweep(probe, ice, fire), deltas)
    assert found.sentence == "Freeze it: ❄ 90.0, 10.0 above 🔍 [+8.0, +12.0]: provisional; 🔥 has no result."
    (found,) = recommendations(make_sweep(probe, ice), deltas)
    assert found.certainty == "sure"
    near = [Delta("", replace(known, upper_behind=NEAR, lower_behind=NEAR), in_family=True)]
    (found,) = recommendations(make_sweep(probe, ice, fire), near)
    assert found.certainty == "provisional", "level would answer the question, too"
    (found,) = recommendations(make_sweep(probe, ice), near)
    assert found.certainty == "level"
    other = make_cell(FIRE, encoder="bert-base", finals=[(0.5, 0.7)] * 2)
    (found,) = recommendations(make_sweep(probe, ice, fire, other), deltas)
    assert found.certainty == "provisional", "another encoder's result is not this one's"
