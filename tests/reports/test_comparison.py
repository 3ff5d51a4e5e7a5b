"""Comparisons of cells by stored predictions: what is read, what is refused with a reason, and what is said."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meltpoint.reports.statistics.comparison import ONE_SEED, Comparer, Comparison, adjusted
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.search.selection import spread
from meltpoint.tests.reports.stored_sweeps import as_read

ICE, FIRE, BOTH = "feature_extraction", "fine_tuning", "stack_and_finetune"
LABELS = ("bad", "good")
KEYS = (("minilm", FIRE, "sst2"), ("minilm", ICE, "sst2"))


class Stored:
    """A sweep's folder with predictions, and cells whose finals' records agree with them."""

    def __init__(self, folder: Path, make_cell: Any) -> None:
        self.folder, self.make_cell = folder, make_cell
        (folder / "predictions").mkdir(parents=True)

    def cell(
        self, mode: str, rate: float, *, seeds: int = 5, examples: int = 200, first: int = 0, role: str = "",
        **more: Any,
    ) -> CellSummary:  # fmt: skip
        """A cell whose finals get a share of the examples right, the easy ones first."""
        scores = []
        for seed in range(first, first + seeds):
            draw = np.random.default_rng([seed, len(mode)])
            ease = np.random.default_rng(99).normal(scale=0.05, size=examples)
            right = draw.random(examples) < rate + ease
            for split in ("dev", "test"):
                self.write(f"minilm.{mode}.sst2{role}.seed{seed}.{split}", right)
            scores.append((float(right.mean()), float(right.mean())))
        made: CellSummary = self.make_cell(mode, finals=scores, **more)
        finals = [
            final.model_copy(update={"seed": first + place, "dev_metrics": {"accuracy": final.dev}})
            for place, final in enumerate(made.finals)
        ]
        return replace(made, finals=finals)

    def write(self, name: str, right: Any) -> None:
        lines = []
        for place, is_right in enumerate(right):
            gold = LABELS[place % 2]
            guess = gold if is_right else LABELS[1 - place % 2]
            shares = {label: float(label == guess) for label in LABELS}
            lines.append({"id": str(place), "gold": gold, "prediction": guess, "probabilities": shares})
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (self.folder / "predictions" / f"{name}.jsonl").write_text(text, encoding="utf-8")


@pytest.fixture
def stored(tmp_path: Path, make_cell: Any) -> Stored:
    return Stored(tmp_path / "sweep", make_cell)


def test_a_large_difference_is_claimed_with_its_interval_in_the_modes_names(stored):
    comparer = Comparer(stored.folder, 500)
    found = comparer.compare(stored.cell(FIRE, 0.9), stored.cell(ICE, 0.6))
    assert found is not None
    (one,) = adjusted([found])
    assert (one.split, one.metric, one.seeds, one.examples, one.reason) == ("test", "accuracy", 5, 200, "")
    assert one.low is not None
    assert 0 < one.low < one.delta
    assert one.excludes_zero
    assert one.words == "fine-tuning is better than feature extraction"
    assert one.probability_better == pytest.approx(1.0, abs=0.01)
    (other,) = adjusted([comparer.compare(stored.cell(ICE, 0.6), stored.cell(FIRE, 0.9))])
    assert other.words == one.words, "whichever is named first"
    (small,) = adjusted([Comparer(stored.folder, 500).compare(stored.cell(FIRE, 0.71), stored.cell(ICE, 0.7))])
    assert not small.is_claimed
    assert small.words.startswith("undecided with 5 seeds and 200 examples; ")


def test_the_numbers_are_the_same_each_time_and_do_not_depend_on_what_else_is_compared(stored):
    cells = [stored.cell(mode, rate) for mode, rate in ((FIRE, 0.8), (ICE, 0.7), (BOTH, 0.75))]
    alone = Comparer(stored.folder, 300).compare(cells[0], cells[1])
    comparer = Comparer(stored.folder, 300)
    comparer.compare(cells[2], cells[0])
    assert comparer.compare(cells[0], cells[1]) == alone


def test_the_seeds_of_two_cells_need_not_be_the_same_but_the_examples_need_to_be(stored):
    found = Comparer(stored.folder, 50).compare(stored.cell(FIRE, 0.8, seeds=4), stored.cell(ICE, 0.7, first=7))
    assert (found.seeds, found.reason) == (4, "")
    assert Comparer(None).compare(stored.cell(FIRE, 0.8), stored.cell(ICE, 0.7)).reason == "no stored predictions"
    other = Comparer(stored.folder, 50).compare(stored.cell(FIRE, 0.8), stored.cell(ICE, 0.7, examples=150))
    assert (other.reason, other.low, other.p) == ("they are scored on different examples", None, None)
    assert other.words == "undecided: they are scored on different examples"


def test_one_run_is_the_recipe_of_a_mode_in_which_nothing_is_random(stored):
    probe, tuned = stored.cell("probe", 0.6, seeds=1), stored.cell(FIRE, 0.9)
    found = Comparer(stored.folder, 500).compare(tuned, probe)
    assert (found.seeds, found.reason) == (5, "")
    assert 0 < found.low < found.delta
    frozen = stored.cell(ICE, 0.6)  # the same examples right in each of its runs, so no more is known than of the probe
    assert found.seeds_error < Comparer(stored.folder, 500).compare(tuned, frozen).seeds_error
    both = Comparer(stored.folder, 500).compare(probe, stored.cell("probe", 0.9, seeds=1, role=".twin", variant="twin"))
    assert (both.low, both.high, both.seeds_error) == (both.model.low, both.model.high, 0.0)


def test_a_score_has_an_interval_over_examples_and_over_seeds_where_runs_differ(stored):
    comparer = Comparer(stored.folder, 2000)
    probe = stored.cell("probe", 0.8, seeds=1, examples=400)
    rate = probe.test.mean
    half = 1.96 * math.sqrt(rate * (1 - rate) / 400)  # of a binomial share
    assert comparer.interval(probe) == pytest.approx((rate - half, rate + half), abs=0.004)
    tuned = stored.cell(FIRE, 0.8, seeds=3, examples=400)
    low, high = comparer.interval(tuned)
    assert low < tuned.test.mean < high
    assert 2 * half / math.sqrt(3) < high - low < 2 * half, "errors of independent runs cancel in part"
    assert comparer.interval(stored.cell(FIRE, 0.8, seeds=1)) is None, "runs may differ, by how much is unknown"
    assert Comparer(None).interval(probe) is None, "no stored predictions"


def test_one_seed_tells_of_these_models_and_not_of_another_run(stored):
    found = Comparer(stored.folder, 200).compare(stored.cell(FIRE, 0.9, seeds=1), stored.cell(ICE, 0.6, seeds=1))
    assert (found.low, found.p, found.reason) == (None, None, ONE_SEED)
    assert found.words == f"undecided: {ONE_SEED}"
    assert found.model is not None
    assert 0 < found.model.low < found.model.delta == pytest.approx(found.delta)
    assert found.model.p < 0.05
    assert found.needed_seeds == 2


def test_other_cells_of_the_sweep_narrow_an_interval_of_two_seeds_and_a_failed_run_widens_it(stored):
    cells = [stored.cell(mode, rate, seeds=2, examples=2000) for mode, rate in ((FIRE, 0.8), (ICE, 0.7))]
    widths = []
    for more in ([], cells):
        found = Comparer(stored.folder, 200, cells=more).compare(*cells)
        widths.append(found.high - found.low)
    assert widths[1] < widths[0]
    records = cells[0].finals
    bad = records[1].model_copy(update={"seed": 1, "dev": 0.5})
    lost = replace(cells[0], finals=[records[0], bad])
    stored.write(f"minilm.{FIRE}.sst2.seed1.test", [place % 2 == 0 for place in range(2000)])
    lost.finals[1].test["accuracy"] = 0.5
    found = Comparer(stored.folder, 200, cells=[lost, cells[1]]).compare(lost, cells[1])
    assert found.failed_runs == ((1,), ())
    assert found.high - found.low > 10 * widths[0]


@pytest.mark.parametrize(("rate", "is_level"), [(0.8, True), (0.7, False)])
def test_a_cell_is_level_where_it_is_surely_behind_by_less_than_the_margin(stored, rate, is_level):
    cells = [stored.cell(mode, one, examples=4000) for mode, one in ((FIRE, 0.8), (ICE, rate))]
    found = Comparer(stored.folder, 200, margin=0.06).compare(*cells)
    one = found.behind(cells[1].header.key)
    assert (one.p < 0.05) == is_level == (one.bound < 0.06)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "no stored predictions of seed 3"),
        (b"{}\n", "damaged predictions: minilm.fine_tuning.sst2.seed3.test.jsonl"),
        (b"\xff", "damaged predictions: minilm.fine_tuning.sst2.seed3.test.jsonl"),
        ("other", "the predictions of seed 3 do not give its recorded score"),
    ],
)
def test_missing_or_other_predictions_end_no_report(stored, content, reason):
    cells = stored.cell(FIRE, 0.8), stored.cell(ICE, 0.7)
    path = stored.folder / "predictions" / f"minilm.{FIRE}.sst2.seed3.test.jsonl"
    if content is None:
        path.unlink()
    elif content == "other":
        stored.write(path.stem, [True] * 200)
    else:
        path.write_bytes(content)
    found = Comparer(stored.folder, 50).compare(*cells)
    assert found.reason == reason
    assert found.delta == pytest.approx(cells[0].test.mean - cells[1].test.mean)


def test_hidden_test_labels_lead_to_dev(stored):
    lower = stored.cell(ICE, 0.7)
    hidden = replace(lower, test=None, finals=[one.model_copy(update={"test": {}}) for one in lower.finals])
    found = Comparer(stored.folder, 50).compare(stored.cell(FIRE, 0.8), hidden)
    assert (found.split, found.reason) == ("dev", "")
    nothing = replace(lower, finals=[], test=None, dev=None)
    assert Comparer(stored.folder, 50).compare(stored.cell(FIRE, 0.8), nothing) is None


def test_a_winner_is_compared_with_the_published_settings_own_finals(stored):
    published = stored.cell(FIRE, 0.6, role=".default")
    finals = [final.model_copy(update={"role": "default"}) for final in published.finals]
    cell = stored.cell(FIRE, 0.9)
    comparer = Comparer(stored.folder, 200)
    tuned = replace(cell, default_finals=finals, default_test=spread([final.test["accuracy"] for final in finals]))
    (one,) = adjusted([comparer.tuning(tuned)])
    assert one.words == "tuning is better than the published setting"
    (same,) = adjusted([Comparer(stored.folder, 200).tuning(replace(cell, default_finals=cell.finals))])
    assert same.words == "tuning not shown to help: undecided: the published setting is the best one"
    assert comparer.tuning(cell) is None


def comparison(p: float | None, **more: Any) -> Comparison:
    found = {"seeds": 5, "examples": 408, "seeds_error": 0.01, "examples_error": 0.005}
    values = {"low": -0.01, "high": 0.03, **found} if p is not None else {"reason": "one seed"}
    return Comparison(*KEYS, "test", "accuracy", 0.02, p=p, **(values | more))


def test_the_adjustment_counts_what_has_a_p_value_and_what_cannot_be_read_so_that_damage_makes_no_claim():
    sound = adjusted([comparison(0.02), comparison(0.04), comparison(0.03)])
    damaged = adjusted([comparison(0.02), comparison(None, is_unreadable=True), comparison(0.03)])
    assert [one.p_holm for one in damaged] == [0.06, None, 0.06]
    untold = adjusted([comparison(0.02), comparison(None), comparison(0.03)])
    assert [one.p_holm for one in untold] == [0.04, None, 0.04]
    assert comparison(0.001).words == "undecided: not adjusted for the other comparisons of its table"
    alone, among = (adjusted([comparison(0.2)] * count)[0].needed_seeds for count in (1, 20))
    assert 5 < (alone or 0) < (among or 0), "more comparisons need more seeds"
    assert all(one.p_holm >= other.p_holm for one, other in zip(damaged, sound, strict=True) if one.p_holm is not None)


def test_the_seeds_that_one_seed_still_needs_reckon_with_the_whole_family():
    one = comparison(
        None, reason=ONE_SEED, seeds=1, examples=408, seeds_error=0.01, seeds_freedom=4.0, examples_error=0.001
    )
    alone, among = (adjusted([one] * count)[0].needed_seeds for count in (1, 20))
    assert 1 < (alone or 0) < (among or 0)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"seeds_error": 0.01}, "undecided with 5 seeds and 408 examples; about 8 seeds would decide"),
        ({"delta": 0.0}, "undecided with 5 seeds and 408 examples"),
        ({"examples_error": 0.02, "seeds_error": 0.001},
         "undecided with 5 seeds and 408 examples; no number of seeds would decide, about 1 600 examples would"),
    ],
)  # fmt: skip
def test_the_words_say_what_would_tell(more, words):
    assert adjusted([replace(comparison(0.2), **{"examples_error": 0.001, **more})])[0].words == words


@pytest.mark.parametrize(
    ("upper", "lower", "words"),
    [
        (("a", BOTH, "t"), ("a", FIRE, "t"), "stack-and-finetune is better than fine-tuning"),
        (("a", FIRE, "t", "crf"), ("a", FIRE, "t", "linear"), "crf is better than linear"),
        (("a", FIRE, "t", "crf"), ("a", ICE, "t", "bilstm"),
         "fine-tuning with crf is better than feature extraction with bilstm"),
        (("a", FIRE, "t"), ("b", FIRE, "t"), "a is better than b"),
        (("a", FIRE, "t"), ("b", "new_mode", "t"), "fine-tuning of a is better than new mode of b"),
    ],
)  # fmt: skip
def test_cells_are_named_by_what_tells_them_apart(upper, lower, words):
    assert replace(comparison(0.001, p_holm=0.01), upper=upper, lower=lower).words == words


@pytest.mark.parametrize(
    ("kind", "metric", "lines"),
    [
        ("pair_regression", "pearson", [(1.0, 1.2), (2.0, 2.5), (4.5, 4.0)]),
        ("sequence_labelling", "span_f1", [(["B-PER", "I-PER"], ["B-PER", "I-PER"]), (["O"], ["B-LOC"])]),
    ],
)
def test_predictions_of_regression_and_labelling_are_read(tmp_path, kind, metric, lines):
    path = tmp_path / "one.jsonl"
    read = as_read(path, kind, [{"gold": gold, "prediction": guess} for gold, guess in lines])
    expected = {"pearson": np.corrcoef(np.array(lines).T)[0, 1] if kind == "pair_regression" else 0, "span_f1": 2 / 3}
    assert (read.count, read.score(metric)) == (len(lines), pytest.approx(expected[metric]))
    with pytest.raises(ValueError, match=r"line 1: not an example with gold and prediction, one tag per word"):
        as_read(path, "sequence_labelling", [{"gold": ["O"], "prediction": ["O", "O"]}])
