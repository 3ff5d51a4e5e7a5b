"""Scores of resamples from per-example statistics: those of the metric on each resample, written out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meltpoint.reports.statistics.example_statistics import SCORERS, scorer, written_out
from meltpoint.reports.statistics.resampling import counts_of, resampled
from meltpoint.sweeps.ledger.predictions import ScoredExamples
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.metrics import METRICS

IOB = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")
CLASSES = {"f1": 2, "macro_f1": 4, "matthews": 3, "accuracy": 3}


def runs_of(metric: str, kind: str, draw: np.random.Generator, examples: int, count: int) -> list[ScoredExamples]:
    """Runs on the same examples; few distinct values, so that labels are absent and scores tie."""
    target, lengths = kinds.get(kind), np.ones(examples, dtype=np.int64)
    if target.is_regression:
        gold = draw.integers(0, 4, examples) / 3
        return [
            ScoredExamples(kind, (), gold, draw.integers(0, 6, examples) * 0.1 + 3.0, lengths) for _ in range(count)
        ]
    labels = IOB if target.labels_words else tuple("abcd"[: CLASSES.get(metric, 3)])
    if target.labels_words:
        lengths = draw.integers(1, 5, examples)
    words = int(lengths.sum())
    shape, most = ((words, len(labels)), 2) if target.has_labels else ((words,), len(labels))
    gold = draw.integers(0, most, shape).astype(np.int32)
    found = []
    for _ in range(count):
        guessed = np.where(draw.random(shape) < 0.5, gold, draw.integers(0, most, shape)).astype(np.int32)
        shares = draw.integers(0, 4, (words, len(labels))) / 3 if METRICS[metric].of_probabilities else None
        found.append(ScoredExamples(kind, labels, gold, guessed, lengths, probabilities=shares))
    return found


PARTS = [(f"{name}.{part}", "sequence_labelling") for name, part in
         (("span_f1", "PER"), ("span_precision", "LOC"), ("span_recall", "PER"))]  # fmt: skip
TARGETS = {kinds.get(kind).target: kind for kind in kinds.names()}
"""What is predicted → one kind of it: statistics depend on no more."""
CASES = [(name, TARGETS[target]) for name in METRICS for target in METRICS[name].targets]


def test_every_metric_has_statistics():
    assert SCORERS.keys() == METRICS.keys()


@pytest.mark.parametrize(("metric", "kind"), [*CASES, *PARTS])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), examples=st.integers(1, 12))
def test_the_scores_of_resamples_are_the_metric_on_each_resample_written_out(metric, kind, seed, examples):
    draw = np.random.default_rng(seed)
    runs = runs_of(metric, kind, draw, examples, 2)
    drawn = draw.integers(0, examples, (6, examples))
    counts = np.stack([np.bincount(row, minlength=examples) for row in drawn]).astype(float)
    expected = [[run.only(row).score(metric) for run in runs] for row in drawn]
    assert scorer(metric, runs)(counts) == pytest.approx(np.array(expected), abs=1e-9)


def test_a_metric_without_statistics_is_written_out():
    draw = np.random.default_rng(0)
    runs = runs_of("macro_f1", "sentence_classification", draw, 9, 2)
    counts = draw.multinomial(9, [1 / 9] * 9, 5).astype(float)
    assert written_out("macro_f1", runs)(counts) == pytest.approx(scorer("macro_f1", runs)(counts))


def test_draws_follow_from_the_splits_name_and_are_the_same_for_every_cell_of_a_task():
    first, again, other = (np.concatenate(list(counts_of(30, 50, name))) for name in ("a test", "a test", "b test"))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert (first.sum(axis=1) == 30).all()


def test_resamples_in_chunks_are_as_many_as_asked_for():
    sizes = [len(chunk) for chunk in counts_of(300_000, 10, "large")]
    assert sizes == [3, 3, 3, 1]
    assert resampled(lambda counts: counts[:, :2], 400_000, 5, "large").shape == (5, 2)


def test_groups_are_drawn_whole_as_a_cluster_bootstrap_written_out_draws_them():
    draw = np.random.default_rng(3)
    right, groups = draw.random(60) < 0.7, np.repeat(np.arange(12), draw.multinomial(48, [1 / 12] * 12) + 1)
    gold = np.ones(60, dtype=np.int32)
    run = ScoredExamples(
        "sentence_classification", ("a", "b"), gold, right.astype(np.int32), np.ones(60, dtype=np.int64)
    )
    found = resampled(scorer("accuracy", [run]), 60, 4000, "a test", groups)[:, 0]
    members = [right[groups == group] for group in range(12)]
    written = [np.concatenate([members[at] for at in draw.integers(12, size=12)]).mean() for _ in range(4000)]
    assert found.mean() == pytest.approx(np.mean(written), abs=0.006)
    assert found.std() == pytest.approx(np.std(written), rel=0.05)
    counts = next(counts_of(60, 10, "a test", groups))
    assert all((counts[:, groups == group] == counts[:, groups == group][:, :1]).all() for group in range(12))
    assert (counts[:, np.unique(groups, return_index=True)[1]].sum(axis=1) == 12).all()


def test_rows_that_occur_five_times_give_no_narrower_interval_where_they_are_a_group():
    draw = np.random.default_rng(5)
    single = (draw.random(80) < 0.7).astype(np.int32)

    def spread(predicted, groups):
        ones = np.ones(len(predicted), dtype=np.int64)
        run = ScoredExamples("sentence_classification", ("a", "b"), ones.astype(np.int32), predicted, ones)
        return resampled(scorer("accuracy", [run]), len(predicted), 4000, "a test", groups)[:, 0].std()

    alone, copied = spread(single, None), spread(np.repeat(single, 5), None)
    grouped = spread(np.repeat(single, 5), np.repeat(np.arange(80), 5))
    assert copied == pytest.approx(alone / 5**0.5, rel=0.06), "five copies pass for five times the evidence"
    assert grouped == pytest.approx(alone, rel=0.06)
