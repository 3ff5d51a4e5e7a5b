"""Dev and test splits carved off another split: a slice, a random fraction, or one fold of several.

One grammar serves `dev_from` and `test_from` of a task file and `--test-from` of the command line. A slice counts the
examples in the file's order. A fraction or a fold is drawn with a seed; examples with classes are stratified, so each
class keeps its share.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import yaml

from meltpoint.tasks.core import registry
from meltpoint.tasks.core.files import TextLoader, parse_yaml
from meltpoint.tasks.core.task import Example, Split
from meltpoint.tasks.core.wording import some

_END = r"(-?\d+%?)?"
_FORM = re.compile(rf"(train|dev)\[{_END}:{_END}\]")

TEST_FROM = "--test-from"


@dataclass(frozen=True)
class Slice:
    """A slice of a split, with the semantics of Python's slices; an end may be a percentage of the split.

    Attributes:
        text: the slice as written by the user (`train[-1000:]`, `train[:10%]`), for the tables.
        split: the split that is sliced.
        start, stop: the ends as written; "" for an open end.
        asked_by: the option or key that holds the slice, for messages.
        by_group: True if the examples of a group must stay together.
    """

    text: str
    split: Literal["train", "dev"]
    start: str
    stop: str
    asked_by: str = TEST_FROM
    by_group: bool = False

    def positions(self, examples: Sequence[Example]) -> list[int]:
        """The positions of the slice's examples, ascending.

        Raises:
            ValueError: the slice is empty, covers the whole split, or cuts a group apart.
        """
        count = len(examples)
        first, last, _ = slice(_position(self.start, count), _position(self.stop, count)).indices(count)
        if last <= first or last - first == count:
            problem = "is empty" if last <= first else "leaves nothing of the split"
            has = some(count, "example")
            raise ValueError(f"{self.asked_by} {self.text} {problem}: {self.split} has {has}. Choose other ends.")
        inside = {example.group for example in examples[first:last]} if self.by_group else set()
        both = next((one.group for one in (*examples[:first], *examples[last:]) if one.group in inside), None)
        if both is not None:
            remedy = f"Write {{from: {self.split}, fraction: 0.1}}, which keeps groups whole"
            raise ValueError(f"{self.asked_by} {self.text} cuts the group '{both[:40]}' apart. {remedy}.")
        return list(range(first, last))

    def note(self, examples: Sequence[Example]) -> str:
        """The slice for the tables."""
        return self.text


def _position(end: str, count: int) -> int | None:
    """An end as a position: a percentage is rounded down, so that `[:10%]` and `[10%:]` share nothing."""
    if not end.endswith("%"):
        return int(end) if end else None
    percent = int(end[:-1])
    return count * percent // 100 if percent >= 0 else -(count * -percent // 100) or count


KEYS = ("from", "fraction", "fold", "of", "seed", "stratified")
FORMS = "train[-500:], train[:10%], {from: train, fraction: 0.1, seed: 0} or {from: train, fold: 0, of: 5, seed: 0}"


@dataclass(frozen=True)
class Draw:
    """A seeded part of a split: a fraction of it, or one fold of several.

    Attributes:
        split: the split that is drawn from.
        seed: the seed of the draw.
        stratified: True if each class keeps its share; None for the default: True if the examples have classes.
        fraction: the part of the split, between 0 and 1; None for a fold.
        fold, of: the number of the fold, from 0, and the number of folds; each example is in exactly one. None for a
            fraction.
        asked_by: the option or key that holds the draw, for messages.
        by_group: True if whole groups are drawn, each with the most common class of its examples.
    """

    split: Literal["train", "dev"]
    seed: int
    stratified: bool | None
    fraction: float | None
    fold: int | None
    of: int | None
    asked_by: str = TEST_FROM
    by_group: bool = False

    def positions(self, examples: Sequence[Example]) -> list[int]:
        """The positions of the drawn examples, ascending.

        Raises:
            ValueError: nothing or everything is drawn, or examples without classes cannot be stratified.
        """
        is_stratified = self._is_stratified(examples)
        units = _groups(examples) if self.by_group else [[position] for position in range(len(examples))]
        drawn_from = [_commonest([examples[position] for position in unit]) for unit in units]
        if self.fraction is None:
            assert self.fold is not None
            chosen = _in_turn(drawn_from, self.seed, is_stratified)[self.fold :: self.of]
        else:
            fraction = self.fraction
            if self.by_group and round(len(units) * fraction) == 0:  # of few groups, one
                fraction = 1 / len(units)
            chosen = _fraction(drawn_from, fraction, self.seed, is_stratified)
        if not chosen or len(chosen) == len(units):
            problem = "draws nothing" if not chosen else "leaves nothing of the split"
            has = some(len(examples), "example") + (f" in {some(len(units), 'group')}" if self.by_group else "")
            raise ValueError(f"{self.asked_by} {problem}: {self.split} has {has}. Choose another part.")
        return sorted(position for unit in chosen for position in units[unit])

    def note(self, examples: Sequence[Example]) -> str:
        """The draw for the tables, such as `10 % of train, stratified, seed 0`."""
        if self.fraction is None:
            part = f"fold {self.fold} (of 0 to {(self.of or 0) - 1})"
        else:
            part = f"{self.fraction * 100:.6g} %"
            if self.by_group and round(len(_groups(examples)) * self.fraction) == 0:
                part = f"1 of {some(len(_groups(examples)), 'group')}"
        how = ", stratified" * self._is_stratified(examples) + ", whole groups" * self.by_group
        return f"{part} of {self.split}{how}, seed {self.seed}"

    def _is_stratified(self, examples: Sequence[Example]) -> bool:
        has_classes = all(isinstance(example.label, int) for example in examples)
        if self.stratified and not has_classes:
            raise ValueError(f"{self.asked_by}: only examples with a class can be stratified. Write stratified: false.")
        return has_classes if self.stratified is None else self.stratified


Cut = Slice | Draw


def _groups(examples: Sequence[Example]) -> list[list[int]]:
    """The positions of each group's examples, in the order in which the groups occur."""
    places: dict[str, list[int]] = defaultdict(list)
    for position, example in enumerate(examples):
        places[example.group].append(position)
    return list(places.values())


def _commonest(group: Sequence[Example]) -> Example:
    """The first example with the most common label of a group."""
    most = Counter(example.label for example in group).most_common(1)[0][0]
    return next(example for example in group if example.label == most)


def _in_turn(examples: Sequence[Example], seed: int, is_stratified: bool) -> list[int]:
    """All positions in random order; stratified: class by class, so that every n-th position has each class's share.

    Only `Random.random` is used: no other method gives the same numbers in all versions of Python.
    """
    rng = random.Random(seed)
    keys = [rng.random() for _ in examples]
    group = [str(example.label) if is_stratified else "" for example in examples]
    return sorted(range(len(examples)), key=lambda position: (group[position], keys[position]))


def _fraction(examples: Sequence[Example], fraction: float, seed: int, is_stratified: bool) -> list[int]:
    """The drawn positions: each class's share, rounded so that the shares add up to the fraction of all examples."""
    by_class: dict[str, list[int]] = defaultdict(list)
    for position in _in_turn(examples, seed, is_stratified):
        by_class[str(examples[position].label) if is_stratified else ""].append(position)
    shares = {name: len(group) * fraction for name, group in by_class.items()}
    counts = {name: int(share) for name, share in shares.items()}
    lacking = round(len(examples) * fraction) - sum(counts.values())
    for name in sorted(shares, key=lambda name: (counts[name] - shares[name], name))[:lacking]:
        counts[name] += 1
    return [position for name, group in by_class.items() for position in group[: counts[name]]]


def parse_cut(written: object, asked_by: str = TEST_FROM) -> Cut:
    """Parse a slice or a draw: a text (`train[-500:]`, or a mapping in braces), or a mapping of a task file.

    Raises:
        ValueError: any other form; the message lists the valid forms.
    """
    if isinstance(written, str) and written.strip().startswith("{"):
        try:
            written = parse_yaml(written, TextLoader)
        except yaml.YAMLError:
            raise _no_form(written, asked_by) from None
    if isinstance(written, str) and (match := _FORM.fullmatch(written.replace(" ", ""))) and (match[2] or match[3]):
        return Slice(match[0], SPLITS[match[1]], match[2] or "", match[3] or "", asked_by)
    if not isinstance(written, Mapping):
        raise _no_form(written, asked_by)
    for key in written:
        if key not in KEYS:
            raise ValueError(f"{asked_by}: {registry.unknown(str(key), 'key', KEYS)}")
    return _draw(written, asked_by)


def _no_form(written: object, asked_by: str) -> ValueError:
    return ValueError(f"{asked_by} {str(written)[:80]!r} is not a part of train or dev. Write {FORMS}.")


def _draw(keys: Mapping[str, object], asked_by: str) -> Draw:
    try:
        split, stratified = SPLITS[keys.get("from")], TRUTH[keys.get("stratified")]
        fraction = float(str(keys["fraction"])) if "fraction" in keys else None
        seed, fold, of = (int(str(keys[key])) if key in keys else None for key in ("seed", "fold", "of"))
    except (KeyError, ValueError, TypeError):
        raise _no_form(dict(keys), asked_by) from None
    if (fraction is None) == (fold is None) or (fold is None) != (of is None) or (seed or 0) < 0:
        raise _no_form(dict(keys), asked_by)
    if fraction is not None and not 0 < fraction < 1:
        raise ValueError(f"{asked_by}: fraction is {fraction:g}; write a number between 0 and 1, as in fraction: 0.1.")
    if fold is not None and of is not None and not (0 <= fold < of and of > 1):
        raise ValueError(
            f"{asked_by}: there is no fold {fold} of {of}. Write fold: 0 to fold: {of - 1}, of at least 2."
        )
    return Draw(split, seed or 0, stratified, fraction, fold, of, asked_by)


SPLITS: Mapping[object, Literal["train", "dev"]] = {"train": "train", "dev": "dev"}
TRUTH: Mapping[object, bool | None] = {None: None, "true": True, "false": False, True: True, False: False}


def carve(examples: list[Example], cuts: Mapping[Split, Cut]) -> tuple[list[Example], dict[Split, list[Example]]]:
    """Carve parts off a split: (the rest, the part of each name), in the original order; no two share an example.

    A slice counts the examples of the file. A draw takes from the examples that the other part's slice leaves. With two
    draws, test comes first, so that it does not depend on dev.

    Raises:
        ValueError: the parts share an example, or leave nothing.
    """
    parts: dict[Split, list[Example]] = {}
    left = list(range(len(examples)))
    for name, cut in sorted(cuts.items(), key=lambda part: (isinstance(part[1], Draw), part[0] != "test")):
        if isinstance(cut, Slice):
            chosen = cut.positions(examples)
        else:
            chosen = [left[position] for position in cut.positions([examples[place] for place in left])]
        wanted = set(chosen)
        if not wanted <= set(left):
            note = cut.note(examples)
            raise ValueError(f"{cut.asked_by} {note} shares examples with the other part. Choose other ends.")
        parts[name] = [examples[position] for position in chosen]
        left = [position for position in left if position not in wanted]
    if not left:
        raise ValueError("dev_from and test_from leave nothing of train. Choose other ends.")
    return [examples[position] for position in left], parts
