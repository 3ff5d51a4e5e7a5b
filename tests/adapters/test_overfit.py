"""Every head can learn 32 examples of every kind by heart, on a frozen encoder and on one that trains."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from meltpoint.adapters import heads
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.training.trainer import Trainer
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.task import KINDS, Example, Kind

Make = Callable[..., Any]
CELLS = [(word, kind) for word, kind in itertools.product(heads.names(), KINDS) if kind in heads.get(word).kinds]
ENOUGH = 0.99

PRAISE = (
    "a warm and funny film", "the best thing on stage this year", "I laughed from start to end",
    "a quiet triumph", "beautifully shot and wisely told", "the cast is a joy to watch", "every scene earns its place",
    "a delight for young and old", "sharp, tender and brave", "it moved me to tears", "this one deserves a prize",
    "a clever plot that never cheats", "I would gladly see it twice", "the songs are wonderful",
    "rarely has a story felt so alive", "an honest and generous portrait",
)  # fmt: skip
BLAME = (
    "a cold and tedious film", "the worst thing on stage this year", "I yawned from start to end",
    "a noisy failure", "badly lit and clumsily told", "the cast looks bored throughout", "no scene has any purpose",
    "a chore for young and old", "blunt, cruel and timid", "it bored me to tears", "this one deserves to be forgotten",
    "a silly plot that always cheats", "I would not see it again", "the songs are dreadful",
    "rarely has a story felt so dead", "a false and mean portrait",
)  # fmt: skip
PEOPLE = ("Anna Berg", "John Smith", "Maria Lopez", "Peter Novak")
CITIES = ("London", "Paris", "New York", "Oslo", "Rome", "Hong Kong", "Lima", "Cairo")
FRAMES = (
    "{p} lives in {c} .", "in {c} it rained , said {p} .", "{c} and {d} are far apart .",
    "yesterday {p} left {c} for {d} .",
)  # fmt: skip


def tagged(number: int) -> Example:
    """A sentence whose cities are tagged, its people not."""
    city, other = CITIES[number % 8], CITIES[(number + 3) % 8]
    sentence = FRAMES[number // 8].format(p=PEOPLE[number % 4], c=city, d=other)
    words = sentence.split()
    inside = {word: 1 + (place > 0) for name in (city, other) for place, word in enumerate(name.split())}
    tags = [inside.get(word, 0) for word in words]
    return Example(str(number), words=tuple(words), label=tuple(tags))


def thirty_two(kind: Kind) -> list[Example]:
    """Sixteen sentences of praise and sixteen of blame; pairs that agree or not; sentences that name cities."""
    if kinds.get(kind).labels_words:
        return [tagged(number) for number in range(32)]
    if kinds.get(kind).input == "sentence":
        of_target = {
            "label": lambda n: int(n < 16), "score": lambda n: (4.0 if n < 16 else 1.0) + n % 4 / 4,
            "labels": lambda n: (int(n < 16), n % 2), "grade": lambda n: int(n < 16) + int(n < 8),
        }[kinds.get(kind).target]  # fmt: skip
        return [Example(str(n), texts=(text,), label=of_target(n)) for n, text in enumerate(PRAISE + BLAME)]
    agreeing = [((one, two), True) for one, two in zip(PRAISE, PRAISE[1:] + PRAISE[:1], strict=True)]
    differing = [(pair, False) for pair in zip(PRAISE, BLAME, strict=True)]
    found = []
    for number, (texts, agree) in enumerate(agreeing + differing):
        label = (4.0 if agree else 1.0) + number % 4 / 4 if kind == "pair_regression" else int(agree)
        found.append(Example(str(number), texts=texts, label=label))
    return found


def epochs_to_learn(trainer: Trainer) -> int | None:
    """After how many epochs the training examples, which are dev too, are known; None where they never are."""
    metric = trainer.data.task.metric
    return next((result.epoch for result in trainer.results() if result.dev[metric] >= ENOUGH), None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tiny_random_encoder_that_trains_learns_32_examples_by_heart(make_trainer: Make, kind: Kind):
    trainer = make_trainer(
        "fine_tuning", kind, train=thirty_two(kind), dev=thirty_two(kind), learning_rate=5e-3, epochs=120,
        batch_size=16, dropout=0.0, encoder_dropout=0.0, weight_decay=0.0, max_pieces=64,
    )  # fmt: skip
    assert epochs_to_learn(trainer) is not None


@pytest.mark.slow
@pytest.mark.parametrize(("head", "kind"), CELLS)
@pytest.mark.parametrize(("mode", "rate"), [("feature_extraction", 5e-3), ("fine_tuning", 2e-4)])
def test_every_head_learns_32_examples_by_heart_on_the_real_encoder(
    make_trainer: Make, minilm_encoder: Encoder, mode: str, rate: float, head: str, kind: Kind
):
    widths = {"bilstm": 32, "bilstm_crf": 32, "esim": 32, "bcn": 32, "highway_lstm": 32}
    width = {f"{head.removesuffix('_crf')}__hidden_size": widths[head]} if head in widths else {}
    trainer = make_trainer(
        mode, kind, head, train=thirty_two(kind), dev=thirty_two(kind), encoder=minilm_encoder, learning_rate=rate,
        epochs=200, batch_size=16, dropout=0.0, weight_decay=0.0, **width,
    )  # fmt: skip
    assert epochs_to_learn(trainer) is not None
