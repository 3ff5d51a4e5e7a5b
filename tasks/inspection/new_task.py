"""`new-task`: draft a task file from data files, with findings as comments, for you to correct."""

from __future__ import annotations

import filecmp
import shlex
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.files import is_file
from meltpoint.tasks.core.kinds import GROUP, LABEL
from meltpoint.tasks.core.task import Split
from meltpoint.tasks.core.wording import counted, printable, some
from meltpoint.tasks.inspection.draft import Draft, draft_of
from meltpoint.tasks.inspection.roles import Asked
from meltpoint.tasks.inspection.splits import SplitCounts, shared_texts

WIDTH = 110
MOST_SHOWN = 12
"""The largest number of labels with counts shown."""
RARE = 10
"""The number of examples below which a class causes a remark."""


def yaml_text(draft: Draft, asked: Sequence[str]) -> str:
    """The task file with its comments.

    Args:
        draft: the guesses and counts.
        asked: the files as named on the command line.
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
    return "\n".join(printable(line) if line.startswith("#") else line for line in lines) + "\n"


def _key(key: str, value: object) -> list[str]:
    """A key with its value in YAML: lists and mappings in braces, on several lines if they are long."""
    text = yaml.safe_dump(value, default_flow_style=True, width=WIDTH, allow_unicode=True, sort_keys=False)
    value_lines = text.removesuffix("\n").removesuffix("\n...").split("\n")
    return [f"{key}: {value_lines[0]}", *(f"  {line}" for line in value_lines[1:])]


def findings(draft: Draft) -> Iterator[str]:
    """Lines of findings: sizes and lengths, labels, missing classes, texts that occur twice."""
    for split, counts in draft.counts.items():
        yield _size(split, counts)
        if split != "test" and "range" not in draft.keys:
            yield f"{split}, labels: {_label_counts(counts.labels)}"
    yield from _classes(draft)
    yield from _repeats(draft.counts)


def _size(split: Split, counts: SplitCounts) -> str:
    median, most, longest = counts.percentile(0.5), counts.percentile(0.95), counts.longest()
    words = f"words: median {median}, 95 % have at most {most}, the longest {counted(longest)}"
    return f"{split}: {some(counts.examples, 'example')}; {words}" + (
        f"; {some(counts.empty, 'empty text')}" if counts.empty else ""
    )


def _label_counts(labels: Counter[str]) -> str:
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
                yield f"shared: {some(shared, 'text')} of {second} also in {first}"


@dataclass(frozen=True)
class NewTask:
    """A drafted task file.

    Attributes:
        text: the file with its comments.
        draft: the guesses and counts.
    """

    text: str
    draft: Draft

    def document(self) -> dict[str, object]:
        """The draft for JSON: the keys, the remarks and the counts."""
        splits = {
            split: {
                "examples": counts.examples,
                # Never for test: its class distribution would reveal something about the locked split.
                **({} if split == "test" else {"labels": dict(sorted(counts.labels.items()))}),
                "empty_texts": counts.empty,
                "repeated_rows": counts.repeated,
                "texts_with_several_labels": len(counts.contradicting),
                "words": {
                    "median": counts.percentile(0.5), "p95": counts.percentile(0.95), "longest": counts.longest(),
                },
            }
            for split, counts in self.draft.counts.items()
        }  # fmt: skip
        return {
            "task": self.draft.keys, "remarks": self.draft.remarks, "splits": splits,
            "findings": list(findings(self.draft)),
        }  # fmt: skip


def new_task(files: Sequence[str], out: Path | None = None, group: str = "") -> NewTask:
    """Inspect files and draft the task file that reads them; with `out`, write it there.

    Raises:
        ValueError: a file is missing or has no known format, or `out` exists already.
    """
    if out is not None and out.exists():
        raise ValueError(f"{out} already exists. Name another file with --out, or remove it.")
    named = out.stem if out else ""
    draft = draft_of([Path(name) for name in files], out.parent if out else Path(), named, Asked(group=group))
    made = NewTask(yaml_text(draft, files), draft)
    if out is not None:
        # "x": another command may have written it since the check above.
        with out.open("x", encoding="utf-8") as file:
            file.write(made.text)
    return made


def tuned_draft(files: Mapping[Split, Path], name: str, asked: Asked) -> Draft:
    """The draft of the task that `tune` makes from one file per split; without a review, so doubts are errors.

    Raises:
        ValueError: a file is missing or cannot be read as guessed.
    """
    for path in files.values():
        if not is_file(path):
            raise ValueError(f"{path} is {'a folder' if path.is_dir() else 'missing'}. Name a file, such as train.csv.")
    draft = draft_of([], Path(), name, asked=asked, given=files)
    left_out = [remark for remark in draft.remarks.get("files", ()) if remark.startswith("left out")]
    for doubt in (*draft.remarks.get("", ()), *left_out):
        raise ValueError(doubt.removeprefix("NOT YET RIGHT: "))
    if kinds.get(str(draft.keys["kind"])).is_regression is False and len(_label_names(draft)) == 1:
        raise ValueError(
            f"{files['train']} has one label, {_label_names(draft)[0]!r}; name another column with --label."
        )
    return draft


def keep(draft: Draft, files: Mapping[Split, Path], folder: Path, task: str, data: str, asked: Sequence[str]) -> Path:
    """Write a draft and copies of its files into a sweep's folder, or reuse the files already there.

    Raises:
        ValueError: the folder has a draft of other files, or the files have changed.
    """
    names = {split: f"{data}/{split}{''.join(path.suffixes)}" for split, path in files.items()}
    draft.keys.update({"file": names["train"]} if "file" in draft.keys else {"files": names})
    place, text = folder / task, yaml_text(draft, asked).replace("meltpoint new-task", "meltpoint tune", 1)
    if place.exists():
        same = all((folder / names[split]).exists() and filecmp.cmp(folder / names[split], path, shallow=False)
                   for split, path in files.items())  # fmt: skip
        if not same or place.read_text(encoding="utf-8").partition("\n")[0] != text.partition("\n")[0]:
            raise ValueError(
                f"{folder} was made from other files or columns. Choose another --name, or remove it: meltpoint rm "
                f"{folder.name}."
            )
        return place
    (folder / data).mkdir(parents=True, exist_ok=True)
    for split, path in files.items():
        if path.absolute() != (folder / names[split]).absolute():  # `mp.tune` writes its data there
            shutil.copyfile(path, folder / names[split])
    place.write_text(text, encoding="utf-8")
    return place


def as_read(draft: Draft) -> str:
    """`300 rows; text: question, label: category; sentence_classification, 6 labels`: how a file was read."""
    columns = draft.keys.get("columns") or {}
    assert isinstance(columns, Mapping)
    named = [f"{key}: {' + '.join(map(str, value)) if isinstance(value, list) else value}"
             for key, value in columns.items()]  # fmt: skip
    labels = _label_names(draft)
    shown = some(len(labels), "label") + (f" ({', '.join(labels)})" if len(labels) <= 4 else "")
    target = f"scores {draft.keys['range']}" if "range" in draft.keys else shown
    rows = sum(counts.examples for counts in draft.counts.values())
    return f"{some(rows, 'row')}; {', '.join(named) or draft.keys['format']}; {draft.keys['kind']}, {target}"


def split_sizes(draft: Draft) -> str:
    """`train 125; dev 100 drawn from train; test 75 …`: the splits and their origin; `about` with whole groups."""
    left = draft.counts["train"].examples
    texts: dict[str, str] = {name: counted(counts.examples) for name, counts in draft.counts.items()}
    columns = draft.keys.get("columns") or {}
    assert isinstance(columns, Mapping)
    about, whole = ("about ", " in whole groups") if GROUP in columns else ("", "")
    for name in ("test", "dev"):  # as `carve_train` draws them
        cut = draft.keys.get(f"{name}_from")
        if isinstance(cut, Mapping):
            size = round(left * float(cut["fraction"]))
            left -= size
            texts[name] = f"{about}{counted(size)} drawn from train{whole}"
    test = f"{texts['test']}, locked until the finals"
    kept = counted(left) if left == draft.counts["train"].examples else f"{about}{counted(left)}"
    return f"train {kept}; dev {texts['dev']}; test {test}"


def _label_names(draft: Draft) -> list[str]:
    labels = draft.keys.get("labels", ())
    if not labels and isinstance(columns := draft.keys.get("columns"), Mapping):
        labels = columns.get(LABEL, ())  # one column per label
    return [str(label) for label in labels] if isinstance(labels, list | tuple) else []
