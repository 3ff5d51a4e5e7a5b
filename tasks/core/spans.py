"""Spans of tagged sentences and their F1, with the meaning of CoNLL's `conlleval` and of seqeval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Span = tuple[int, int, str]
"""(first word, one past the last word, type)."""


@dataclass(frozen=True)
class SpanScores:
    """Micro-averaged over the spans of all sentences; fractions from 0 to 1, 0 where nothing can be divided."""

    precision: float
    recall: float
    f1: float


def spans(tags: Sequence[int], labels: Sequence[tuple[str, str]]) -> list[Span]:
    """The spans of one sentence; an I- without a span of its type before it starts one, as in conlleval.

    Args:
        tags: label ids.
        labels: (prefix, type) of each label id: ("B", "PER"), ("O", "").
    """
    found: list[Span] = []
    start, kind = -1, ""
    for position, tag in enumerate(tags):
        prefix, type_ = labels[tag]
        if start >= 0 and (prefix != "I" or type_ != kind):
            found.append((start, position, kind))
            start = -1
        if prefix != "O" and start < 0:
            start, kind = position, type_
    if start >= 0:
        found.append((start, len(tags), kind))
    return found


def split_labels(names: Sequence[str]) -> list[tuple[str, str]]:
    """(prefix, type) of each IOB2 label name."""
    return [("O", "") if name == "O" else (name[0], name[2:]) for name in names]


def span_scores(gold: Sequence[Sequence[int]], predicted: Sequence[Sequence[int]], names: Sequence[str]) -> SpanScores:
    """Exact-match precision, recall and F1 of spans.

    Args:
        gold, predicted: label ids, one sequence a sentence, of equal lengths.
        names: the labels' IOB2 names in id order.
    """
    labels = split_labels(names)
    right = in_gold = in_predicted = 0
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        wanted, found = spans(gold_tags, labels), spans(predicted_tags, labels)
        in_gold += len(wanted)
        in_predicted += len(found)
        right += len(set(wanted).intersection(found))
    precision = right / in_predicted if in_predicted else 0.0
    recall = right / in_gold if in_gold else 0.0
    f1 = 2 * right / (in_predicted + in_gold) if right else 0.0
    return SpanScores(precision, recall, f1)
