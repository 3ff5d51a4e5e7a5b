"""Demo: does a sentence follow from another? Small scenes of who does what, with what, wearing what, and where.

A colour, a place or a "not" has to be compared with the premise: a bag of words of both sentences, or of the hypothesis
alone, gets about 0.6 where chance is 0.35.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from meltpoint.tasks.core.task import Example
from meltpoint.tasks.demo_sentiment import Draw, demo, sentence

LABELS = ("entailment", "neutral", "contradiction")
ENTAILMENT, NEUTRAL, CONTRADICTION = range(3)

# (who, what they are in general, what they are not)
PEOPLE = (
    ("boy", "child", "woman"), ("girl", "child", "man"), ("nurse", "person", "baby"), ("farmer", "person", "baby"),
    ("grandmother", "woman", "man"), ("king", "man", "woman"), ("policeman", "man", "woman"),
    ("mother", "woman", "man"), ("toddler", "child", "man"), ("schoolboy", "child", "woman"),
    ("soldier", "person", "baby"), ("tourist", "person", "baby"), ("waitress", "woman", "man"),
    ("queen", "woman", "man"), ("monk", "man", "woman"), ("grandfather", "man", "woman"),
)  # fmt: skip

# (doing, thing, the thing in general, what cannot be done at the same time)
ANYWHERE = (
    ("playing", "guitar", "instrument", "sleeping"), ("playing", "violin", "instrument", "swimming"),
    ("eating", "apple", "fruit", "sleeping"), ("eating", "banana", "fruit", "singing"),
    ("holding", "puppy", "animal", "swimming"), ("feeding", "parrot", "bird", "sleeping"),
    ("painting", "chair", "piece of furniture", "dancing"), ("carrying", "table", "piece of furniture", "sleeping"),
)  # fmt: skip
OUTDOORS = (
    ("riding", "bicycle", "vehicle", "cooking"), ("riding", "motorbike", "vehicle", "reading"),
    ("picking", "rose", "flower", "sleeping"), ("watering", "tulip", "flower", "swimming"),
    ("repairing", "truck", "vehicle", "sleeping"), ("washing", "car", "vehicle", "swimming"),
    ("leading", "horse", "animal", "reading"), ("chasing", "goose", "bird", "cooking"),
)  # fmt: skip
ACTIONS = ANYWHERE + OUTDOORS

COLOURS = ("red", "blue", "green", "yellow", "white", "black", "purple", "grey")
CLOTHES = ("hat", "shirt", "coat", "jacket", "scarf", "sweater", "apron", "cap")

# (where, in general, what it is not)
INSIDE = tuple((f"in the {room}", "indoors", "outdoors") for room in ("kitchen", "library", "bedroom", "attic"))
OUTSIDE = tuple(
    (where, "outdoors", "indoors") for where in ("in a field", "on the beach", "in the garden", "by the river")
)

NOISE_SHARE = 0.04


@dataclass(frozen=True)
class Scene:
    """The facts behind a premise; its sentence omits the colour or the place if the flag is False."""

    person: tuple[str, str, str]
    action: tuple[str, str, str, str]
    colour: str
    garment: str
    place: tuple[str, str, str]
    mentions_colour: bool
    mentions_place: bool

    def premise(self, draw: Draw) -> str:
        """The scene in one sentence, in one of a few orders."""
        who = self.person[0]
        what = f"{self.action[0]} a {self.action[1]}"
        where = self.place[0] if self.mentions_place else ""
        worn = f"a {self.colour} {self.garment}" if self.mentions_colour else f"a {self.garment}"
        forms = (
            f"A {who} in {worn} is {what} {where} .",
            f"{where} a {who} wearing {worn} is {what} .",
            f"There is a {who} with {worn} {what} {where} .",
        )
        return sentence(draw.any(forms))


def _scene(draw: Draw) -> Scene:
    action = draw.word(ACTIONS)
    place = draw.word(INSIDE if action in ANYWHERE and draw.chance(0.7) else OUTSIDE)
    person, colour, garment = draw.word(PEOPLE), draw.word(COLOURS), draw.word(CLOTHES)
    return Scene(person, action, colour, garment, place, draw.chance(0.6), draw.chance(0.6))


def _about_colour(scene: Scene, draw: Draw) -> tuple[str, int]:
    same = draw.chance(0.5)
    colour = scene.colour if same else draw.other(COLOURS, scene.colour)
    label = NEUTRAL if not scene.mentions_colour else ENTAILMENT if same else CONTRADICTION
    forms = (f"The {scene.garment} is {colour} .", f"Someone is wearing a {colour} {scene.garment} .")
    return draw.any(forms), label


def _about_place(scene: Scene, draw: Draw) -> tuple[str, int]:
    if scene.action in OUTDOORS and not scene.mentions_place:
        return _about_colour(scene, draw)  # the action implies the place
    inside = draw.chance(0.5)
    where = scene.place[1 if inside else 2]
    label = NEUTRAL if not scene.mentions_place else ENTAILMENT if inside else CONTRADICTION
    return f"The {scene.person[0]} is {where} .", label


def _about_thing(scene: Scene, draw: Draw) -> tuple[str, int]:
    doing, thing, general, _ = scene.action
    who = scene.person[1]
    label = draw.any((ENTAILMENT, NEUTRAL, CONTRADICTION))
    if label == CONTRADICTION:
        return f"There is no {thing} .", label
    if label == ENTAILMENT:
        return draw.any((f"There is a {thing} .", f"A {who} is {doing} a {general} .")), label
    other = draw.other(ACTIONS, scene.action)[1]
    return draw.any(
        (f"There is no {other} .", f"There is a {other} .", f"A {who} is {doing} a borrowed {thing} .")
    ), label


def _about_person(scene: Scene, draw: Draw) -> tuple[str, int]:
    doing, thing, _, _ = scene.action
    what = f"is {doing} a {thing}"
    label = draw.any((ENTAILMENT, NEUTRAL, CONTRADICTION))
    if label == NEUTRAL:
        return f"A tired {scene.person[1]} {what} .", label
    return f"A {scene.person[1 if label == ENTAILMENT else 2]} {what} .", label


def _about_doing(scene: Scene, draw: Draw) -> tuple[str, int]:
    doing, thing, _, impossible = scene.action
    who = scene.person[0]
    label = draw.any((ENTAILMENT, NEUTRAL, CONTRADICTION))
    negated = draw.chance(0.5)
    if label == NEUTRAL:
        return f"The {who} is {'not ' if negated else ''}{draw.any(('smiling', 'alone', 'in a hurry'))} .", label
    if negated:
        what = impossible if label == ENTAILMENT else f"{doing} a {thing}"
        return f"The {who} is not {what} .", label
    return f"The {who} is {f'{doing} something' if label == ENTAILMENT else impossible} .", label


FORMS: tuple[Callable[[Scene, Draw], tuple[str, int]], ...] = (
    _about_colour, _about_place, _about_thing, _about_person, _about_doing,
)  # fmt: skip


def _make(draw: Draw) -> Example:
    scene = _scene(draw)
    hypothesis, label = draw.any(FORMS)(scene, draw)
    if draw.chance(NOISE_SHARE):
        label = draw.any(range(3))
    return Example("", texts=(scene.premise(draw), sentence(hypothesis)), label=label)


TASK = demo(
    "demo_entailment", _make, "pair_classification", "accuracy", "does a sentence follow from a small scene?", LABELS
)
