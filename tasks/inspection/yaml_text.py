"""The text of a drafted task file: its keys, and what was found as comments."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import yaml

from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.task import Split
from meltpoint.tasks.core.wording import counted, some
from meltpoint.tasks.inspection.counts import SplitCounts, shared_texts
from meltpoint.tasks.inspection.draft import Draft

WIDTH = 110
MOST_SHOWN = 12
"""The most labels whose counts are shown."""
RARE = 10
"""Fewer examples of a class than this are remarked on."""


def yaml_text(draft: Draft, asked: Sequence[str]) -> str:
    """The task file with its comments.

    Args:
        draft: what was guessed and counted.
        asked: the files as they were named on the command line.
    """
    lines = [
        f"# Written by: meltpoint new-task {shlex.join(asked)}",
        "# These are guesses from the files. Correct what is wrong, then try: meltpoint plan --task THIS_FILE",
    ]
    lines += [f"# {remark}" for remark in draft.remarks.get("", ())]
    for key, value in draft.keys.items():
        lines += [f"# {remark}" for remark in draft.remarks.get(key, ())]
        lines += _key(key, value)
    lines += ["", *(f"# {line}" for line in findings(draft))]
    return "\n".join(one_line(line) if line.startswith("#") else line for line in lines) + "\n"


def one_line(text: str) -> str:
    """A comment on one line, without characters that YAML does not print."""
    return "".join(character if character.isprintable() else " " for character in text)


def _key(key: str, value: object) -> list[str]:
    """A key with its value in YAML: lists and mappings in braces, on several lines if they are long."""
    text = yaml.safe_dump(_plain(value), default_flow_style=True, width=WIDTH, allow_unicode=True, sort_keys=False)
    value_lines = text.removesuffix("\n").removesuffix("\n...").split("\n")
    return [f"{key}: {value_lines[0]}", *(f"  {line}" for line in value_lines[1:])]


def _plain(value: object) -> object:
    """A value with whole numbers as numbers, so that they stand without quotes; a task file reads both alike."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    is_whole = isinstance(value, str) and value.isascii() and value.isdecimal() and str(int(value)) == value
    return int(value) if is_whole and len(str(value)) < 10 else value  # type: ignore[call-overload]


def findings(draft: Draft) -> Iterator[str]:
    """Lines on what was found: sizes and lengths, labels, missing classes, texts that occur twice."""
    for split, counts in draft.counts.items():
        yield _size(split, counts)
        if split != "test" and "range" not in draft.keys:
            yield f"{split}, labels: {_labels(counts.labels)}"
    yield from _classes(draft)
    yield from _repeats(draft.counts)


def _size(split: Split, counts: SplitCounts) -> str:
    median, most, longest = counts.percentile(0.5), counts.percentile(0.95), counts.longest()
    words = f"words: median {median}, 95 % have at most {most}, the longest {counted(longest)}"
    return f"{split}: {some(counts.examples, 'example')}; {words}" + (
        f"; {some(counts.empty, 'empty text')}" if counts.empty else ""
    )


def _labels(labels: Counter[str]) -> str:
    total = labels.total() or 1
    common = sorted(labels.items(), key=lambda pair: (-pair[1], pair[0]))
    shown = [f"{label!r} {counted(number)} ({100 * number / total:.0f} %)" for label, number in common[:MOST_SHOWN]]
    more = len(common) - MOST_SHOWN
    return ", ".join([*shown, f"and {more} more"] if more > 0 else shown)


def _classes(draft: Draft) -> Iterator[str]:
    """Remarks on classes that are missing in a split, or rare."""
    skipped = draft.keys.get("skip_labels", ())
    assert isinstance(skipped, Sequence)
    train = {label for label in draft.counts["train"].labels if label not in skipped} if draft.counts else set()
    if "range" in draft.keys or kinds.get(str(draft.keys["kind"])).has_spans:
        return
    for split, counts in draft.counts.items():
        there = {label for label in counts.labels if label not in skipped}
        if split == "dev" and train - there:
            yield f"dev lacks {_named(train - there)}"
        if split != "train" and there - train:
            yield f"{split} has {_named(there - train)}, which train lacks"
    rare = {label for label in train if draft.counts["train"].labels[label] < RARE}
    if rare:
        yield f"fewer than {RARE} examples of {_named(rare)} in train"


def _named(labels: set[str]) -> str:
    shown = sorted(labels)[:MOST_SHOWN]
    more = len(labels) - len(shown)
    return ", ".join(map(repr, shown)) + (f" and {more} more" if more else "")


def _repeats(counts: Mapping[Split, SplitCounts]) -> Iterator[str]:
    for split, one in counts.items():
        if one.repeated:
            several = len(one.contradicting) if split != "test" else 0
            clash = f"; {some(several, 'text')} with different labels" if several else ""
            yield f"duplicates: {some(one.repeated, 'row')} of {split} whose text occurred before{clash}"
    splits = list(counts)
    for number, first in enumerate(splits):
        for second in splits[number + 1 :]:
            shared = shared_texts(counts[first], counts[second])
            if shared:
                yield f"shared: {some(shared, 'text')} of {second} in {first} too"
