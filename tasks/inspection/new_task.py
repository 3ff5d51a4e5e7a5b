"""`new-task`: a task file from a look at data files, for a person to correct."""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.files import is_file
from meltpoint.tasks.core.kinds import GROUP, LABEL
from meltpoint.tasks.core.task import Split
from meltpoint.tasks.core.wording import counted, some
from meltpoint.tasks.inspection.draft import Draft, draft_of
from meltpoint.tasks.inspection.roles import Asked
from meltpoint.tasks.inspection.yaml_text import findings, yaml_text


@dataclass(frozen=True)
class NewTask:
    """A drafted task file.

    Attributes:
        text: the file with its comments.
        draft: what was guessed and counted.
    """

    text: str
    draft: Draft

    def document(self) -> dict[str, object]:
        """The draft for JSON: the keys, the remarks and the counts."""
        splits = {
            split: {
                "examples": counts.examples,
                # Never of test: how its classes lie is a fact about the locked split that could steer a choice.
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
    """Look at files and draft the task file that reads them; with `out`, write it there.

    Raises:
        ValueError: a file is missing or of no format that is read, or there is a file at `out` already.
    """
    if out is not None and out.exists():
        raise ValueError(f"{out} is there already. Name another file with --out, or remove it.")
    named = out.stem if out else ""
    draft = draft_of([Path(name) for name in files], out.parent if out else Path(), named, Asked(group=group))
    made = NewTask(yaml_text(draft, files), draft)
    if out is not None:
        # "x": another command may have written it since the look above.
        with out.open("x", encoding="utf-8") as file:
            file.write(made.text)
    return made


def tuned_draft(files: Mapping[Split, Path], name: str, asked: Asked) -> Draft:
    """The draft of the task that `tune` makes of a file a split; nobody looks at it, so that doubts are errors.

    Raises:
        ValueError: a file is missing or cannot be read as it was guessed.
    """
    for path in files.values():
        if not is_file(path):
            raise ValueError(f"{path} is {'a folder' if path.is_dir() else 'missing'}. Name a file, such as train.csv.")
    draft = draft_of([], Path(), name, asked=asked, given=files)
    left_out = [remark for remark in draft.remarks.get("files", ()) if remark.startswith("left out")]
    for doubt in (*draft.remarks.get("", ()), *left_out):
        raise ValueError(doubt.removeprefix("NOT YET RIGHT: "))
    if kinds.get(str(draft.keys["kind"])).is_regression is False and len(_labels(draft)) == 1:
        raise ValueError(f"{files['train']} has one label, {_labels(draft)[0]!r}; name another column with --label.")
    return draft


def keep(draft: Draft, files: Mapping[Split, Path], folder: Path, task: str, data: str, asked: Sequence[str]) -> Path:
    """Write a draft and copies of its files into a sweep's folder; or find there what was written before.

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
                f"{folder} was made of other files or other columns. Take another --name, or remove it: meltpoint rm "
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
    labels = _labels(draft)
    shown = some(len(labels), "label") + (f" ({', '.join(labels)})" if len(labels) <= 4 else "")
    target = f"scores {draft.keys['range']}" if "range" in draft.keys else shown
    rows = sum(counts.examples for counts in draft.counts.values())
    return f"{some(rows, 'row')}; {', '.join(named) or draft.keys['format']}; {draft.keys['kind']}, {target}"


def split_sizes(draft: Draft) -> str:
    """`train 125; dev 100 drawn from train; test 75 …`: the splits, and where they come from; about, of groups."""
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


def _labels(draft: Draft) -> list[str]:
    labels = draft.keys.get("labels", ())
    if not labels and isinstance(columns := draft.keys.get("columns"), Mapping):
        labels = columns.get(LABEL, ())  # a column a label
    return [str(label) for label in labels] if isinstance(labels, list | tuple) else []
