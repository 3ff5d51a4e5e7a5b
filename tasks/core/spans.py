"""Spans of tagged sentences and their F1, as defined by CoNLL's `conlleval` and by seqeval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Span = tuple[int, int, str]
"""(first word, one past the last word, type)."""


@dataclass(frozen=True)
class SpanScores:
    """Precision, recall and F1, micro-averaged over the spans of all sentences; fractions, 0 if undefined."""

    precision: float
    recall: float
    f1: float


def spans(tags: Sequence[int], labels: Sequence[tuple[str, str]]) -> list[Span]:
    """The spans of one sentence; an I- tag that continues no span of its type starts one, as in conlleval.

    Args:
        tags: label ids.
        labels: (prefix, type) of each label id: ("B", "PER"), ("O", "").
    """
    result: list[Span] = []
    start, kind = -1, ""
    for position, tag in enumerate(tags):
        prefix, type_ = labels[tag]
        if start >= 0 and (prefix != "I" or type_ != kind):
            result.append((start, position, kind))
            start = -1
        if prefix != "O" and start < 0:
            start, kind = position, type_
    if start >= 0:
        result.append((start, len(tags), kind))
    return result


def split_labels(names: Sequence[str]) -> list[tuple[str, str]]:
    """(prefix, type) of each IOB2 label name."""
    return [("O", "") if name == "O" else (name[0], name[2:]) for name in names]


def span_scores(
    gold: Sequence[Sequence[int]], predicted: Sequence[Sequence[int]], names: Sequence[str], of_type: str | None = None
) -> SpanScores:
    """Exact-match precision, recall and F1 of spans.

    Args:
        gold, predicted: label ids, one sequence per sentence, of equal lengths.
        names: the labels' IOB2 names in id order.
        of_type: count the spans of this type alone; None for all.
    """
    labels = split_labels(names)
    hits = in_gold = in_predicted = 0
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        gold_spans, predicted_spans = (
            [span for span in spans(tags, labels) if of_type in (None, span[2])] for tags in (gold_tags, predicted_tags)
        )
        in_gold += len(gold_spans)
        in_predicted += len(predicted_spans)
        hits += len(set(gold_spans).intersection(predicted_spans))
    precision = hits / in_predicted if in_predicted else 0.0
    recall = hits / in_gold if in_gold else 0.0
    f1 = 2 * hits / (in_predicted + in_gold) if hits else 0.0
    return SpanScores(precision, recall, f1)
