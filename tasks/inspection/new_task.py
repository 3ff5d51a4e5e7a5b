"""`new-task`: draft a task file from data files, with remarks as comments, for you to correct."""

from __future__ import annotations

import filecmp
import shlex
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.files import schema_line
from meltpoint.tasks.core.kinds import GROUP, LABEL
from meltpoint.tasks.core.task import Split
from meltpoint.tasks.core.wording import counted, printable, some
from meltpoint.tasks.inspection.draft import Draft, draft_of
from meltpoint.tasks.inspection.roles import Asked
from meltpoint.tasks.inspection.splits import check_file
from meltpoint.tasks.inspection.text_shape import is_number

WIDTH = 110
MOST_SHOWN = 12
"""The largest number of labels with counts shown."""


def yaml_text(draft: Draft, asked: Sequence[str]) -> str:
    """The task file with its comments.

    Args:
        draft: the guesses and counts.
        asked: the files as named on the command line.
    """
    lines = [
        schema_line("task"),
        f"# Written by: meltpoint new-task {shlex.join(asked)}",
        "# These are guesses from the files. Correct what is wrong, then try: meltpoint plan --task THIS_FILE",
    ]
    lines += [f"# {remark}" for remark in draft.remarks.get("", ())]
    for key, value in draft.keys.items():
        lines += [f"# {remark}" for remark in draft.remarks.get(key, ())]
        lines += _key(key, value)
    lines += ["", *(f"# {line}" for line in _counts(draft))]
    return "\n".join(printable(line) if line.startswith("#") else line for line in lines) + "\n"


def _key(key: str, value: object) -> list[str]:
    """A key with its value in YAML: lists and mappings in braces, on several lines if they are long."""
    text = yaml.safe_dump(value, default_flow_style=True, width=WIDTH, allow_unicode=True, sort_keys=False)
    value_lines = text.removesuffix("\n").removesuffix("\n...").split("\n")
    return [f"{key}: {value_lines[0]}", *(f"  {line}" for line in value_lines[1:])]


def _counts(draft: Draft) -> Iterator[str]:
    """The size of each split and the counts of its labels; labels of test stay unknown."""
    for split, counts in draft.counts.items():
        empty = f"; {some(counts.empty, 'empty text')}" if counts.empty else ""
        yield f"{split}: {some(counts.examples, 'example')}{empty}"
        if split != "test" and "range" not in draft.keys:
            yield f"{split}, labels: {_label_counts(counts.labels)}"


def _label_counts(labels: Counter[str]) -> str:
    total = labels.total() or 1
    common = sorted(labels.items(), key=lambda pair: (-pair[1], pair[0]))
    shown = [f"{label!r} {counted(number)} ({100 * number / total:.0f} %)" for label, number in common[:MOST_SHOWN]]
    more = len(common) - MOST_SHOWN
    return ", ".join([*shown, f"and {more} more"] if more > 0 else shown)


def new_task(files: Sequence[str], out: Path | None = None, group: str = "") -> str:
    """Inspect files and draft the text of the task file that reads them; with `out`, write it there.

    Raises:
        ValueError: a file is missing or has no known format, or `out` exists already.
    """
    if out is not None and out.exists():
        raise ValueError(f"{out} already exists. Name another file with --out, or remove it.")
    named = out.stem if out else ""
    draft = draft_of([Path(name) for name in files], out.parent if out else Path(), named, Asked(group=group))
    text = yaml_text(draft, files)
    if out is not None:
        # "x": another command may have written it since the check above.
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    return text


def tuned_draft(files: Mapping[Split, Path], name: str, asked: Asked) -> Draft:
    """The draft of the task that `tune` makes from one file per split; without a review, so doubts are errors.

    Raises:
        ValueError: a file is missing or cannot be read as guessed.
    """
    for path in files.values():
        check_file(path)
    draft = draft_of([], Path(), name, asked=asked, given=files)
    labels = _label_names(draft)
    if draft.remarks.get("quoting"):
        raise ValueError(f"{files['train']}: {draft.remarks['quoting'][0]}")
    if "test" in draft.counts and not draft.counts["test"].kept:
        raise ValueError("No row of test has a label. Leave test out: a part of train is then used.")
    if kinds.get(draft.keys["kind"]).target == "grade" and not all(map(is_number, labels)):
        raise ValueError(
            f"{files['train']} has the grades {', '.join(labels[:6])}, whose order the file does not tell. Draft a "
            "task with new-task, write its labels from the lowest to the highest, and run sweep."
        )
    if len(labels) == 1:
        raise ValueError(f"{files['train']} has one label, {labels[0]!r}; name another column with --label.")
    return draft


def copy_name(split: Split, path: Path, data: str) -> str:
    """The name of the copy of a split's file in a sweep's folder, whose subfolder of data is `data`."""
    return f"{data}/{split}{''.join(path.suffixes)}"


def keep(
    draft: Draft, files: Mapping[Split, Path], folder: Path, task: str, data: str, asked: Sequence[str],
    begun: bool = False,
) -> Path:  # fmt: skip
    """Write a draft and copies of its files into a sweep's folder, or reuse the files already there.

    Args:
        begun: whether the sweep has begun; until then, a corrected file replaces its copy.

    Raises:
        ValueError: the sweep has begun with other files or columns.
    """
    names = {split: copy_name(split, path, data) for split, path in files.items()}
    draft.keys.update({"file": names["train"]} if "file" in draft.keys else {"files": names})
    place, text = folder / task, yaml_text(draft, asked).replace("meltpoint new-task", "meltpoint tune", 1)
    if place.exists():
        same = all((folder / names[split]).exists() and filecmp.cmp(folder / names[split], path, shallow=False)
                   for split, path in files.items())  # fmt: skip
        if same and _writer(place.read_text(encoding="utf-8")) == _writer(text):
            return place
        if begun:
            raise ValueError(
                f"{folder} was made from other files or columns. Choose another --name, or remove it: meltpoint rm "
                f"{folder.name}."
            )
    (folder / data).mkdir(parents=True, exist_ok=True)
    for split, path in files.items():
        if path.absolute() != (folder / names[split]).absolute():  # `mp.tune` writes its data there
            shutil.copyfile(path, folder / names[split])
    place.write_text(text, encoding="utf-8")
    return place


def _writer(text: str) -> list[str]:
    """The words of the command that wrote a task file; of paths the names, since folders may have moved."""
    line = next((line for line in text.splitlines() if line.startswith("# Written by: ")), "")
    columns = ("--text=", "--label=", "--group=")
    return [word if word.startswith(columns) else word.rpartition("/")[2] for word in shlex.split(line)]


def as_read(draft: Draft) -> str:
    """`300 rows; text: question, label: category; sentence_classification, 6 labels`: how a file was read."""
    columns = {key: value if isinstance(value, list) else [value] for key, value in draft.keys["columns"].items()}
    named = [f"{key}: {' + '.join(map(str, names))}" for key, names in columns.items()]
    labels = _label_names(draft)
    shown = some(len(labels), "label") + (f" ({', '.join(labels)})" if len(labels) <= 4 else "")
    target = f"scores {draft.keys['range']}" if "range" in draft.keys else shown
    rows, empty, unlabelled = (
        sum(getattr(counts, name) for counts in draft.counts.values()) for name in ("examples", "empty", "unlabelled")
    )
    left_out = f"; {some(unlabelled, 'row')} without a label left out" if unlabelled else ""
    left_out += f"; {some(empty, 'empty text')} left out" if empty else ""
    return f"{some(rows, 'row')}; {', '.join(named)}; {draft.keys['kind']}, {target}{left_out}"


def split_sizes(draft: Draft) -> str:
    """`train 125; dev 100 drawn from train; test 75 …`: the splits and their origin; `about` with whole groups."""
    left = draft.counts["train"].kept
    texts: dict[str, str] = {name: counted(counts.kept) for name, counts in draft.counts.items()}
    about, whole = ("about ", " in whole groups") if GROUP in draft.keys["columns"] else ("", "")
    for name in ("test", "dev"):  # as `carve` draws them
        cut = draft.keys.get(f"{name}_from")
        if cut:
            size = round(left * float(cut["fraction"]))
            left -= size
            texts[name] = f"{about}{counted(size)} drawn from train{whole}"
    test = f"{texts['test']}, locked until the finals"
    kept = counted(left) if left == draft.counts["train"].kept else f"{about}{counted(left)}"
    return f"train {kept}; dev {texts['dev']}; test {test}"


def _label_names(draft: Draft) -> list[str]:
    labels = draft.keys.get("labels") or draft.keys["columns"].get(LABEL)  # of several labels, each may have a column
    return [str(label) for label in labels] if isinstance(labels, list) else []
