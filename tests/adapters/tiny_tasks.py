"""A tiny task of each kind, with examples that can be learned."""

from __future__ import annotations

from collections.abc import Mapping

from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.task import Example, Kind, Label, Task

PLACES = ("London", "Paris", "harbour", "bank")


LABELS: Mapping[str, tuple[str, ...]] = {
    "tags": ("O", "B-LOC", "I-LOC"), "score": (), "label": ("no", "yes"), "labels": ("no", "yes"),
    "grade": ("low", "middle", "high"), "classes": ("other", "place", "rest"),
}  # fmt: skip
METRICS = {
    "tags": "span_f1", "score": "pearson", "label": "accuracy", "labels": "micro_f1", "grade": "quadratic_kappa",
    "classes": "word_accuracy",
}  # fmt: skip
"""By what is predicted."""


def tiny_task(kind: Kind) -> Task:
    """A task of a kind, without data of its own."""
    target = kinds.get(kind).target
    limits = (0.0, 5.0) if target == "score" else None
    return Task("tiny", kind, METRICS[target], "", {}, labels=LABELS[target], label_range=limits)


def opposite_examples() -> dict[str, list[Example]]:
    """Train, and a dev with the opposite labels: the better a trial learns, the lower its dev."""
    texts = ("the old harbour", "a quiet film", "ships came home", "prices rose")
    return {
        split: [Example(str(n), texts=(text,), label=(n + moved) % 2) for n, text in enumerate(texts)]
        for moved, split in enumerate(("train", "dev"))
    }


def tiny_examples(kind: Kind, count: int) -> list[Example]:
    """Sentences of three to seven words; what is to be learned is which places they name."""
    plain = ("the", "old", "ships", "came", "home", "and", "quiet", "film", "prices", "rose")
    found = []
    for number in range(count):
        words = [plain[(number * 7 + place * 3) % len(plain)] for place in range(3 + number % 5)]
        place = number % 4
        words[number % 3] = PLACES[place]
        of_target: Mapping[str, Label] = {
            "tags": tuple(int(word in PLACES) for word in words), "score": place // 2 * 2.5, "label": place // 2,
            "labels": (place // 2, place % 2), "grade": min(place, 2),
            "classes": tuple(int(word in PLACES) for word in words),
        }  # fmt: skip
        label, texts = of_target[kinds.get(kind).target], (" ".join(words),)
        if kinds.get(kind).is_pair:
            texts = (*texts, "the film is long" if number % 2 else f"in {words[0]}")
        if kinds.get(kind).labels_words:
            found.append(Example(str(number), words=tuple(words), label=label))
        else:
            found.append(Example(str(number), texts=texts, label=label))
    return found
