"""`new-task`: a task file from a look at data files, for a person to correct."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meltpoint.tasks.inspection.draft import Draft, draft_of
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


def new_task(files: Sequence[str], out: Path | None = None, group: str | None = None) -> NewTask:
    """Look at files and draft the task file that reads them; with `out`, write it there.

    Raises:
        ValueError: a file is missing or of no format that is read, or there is a file at `out` already.
    """
    if out is not None and out.exists():
        raise ValueError(f"{out} is there already. Name another file with --out, or remove it.")
    draft = draft_of([Path(name) for name in files], out.parent if out else Path(), out.stem if out else "", group)
    made = NewTask(yaml_text(draft, files), draft)
    if out is not None:
        # "x": another command may have written it since the look above.
        with out.open("x", encoding="utf-8") as file:
            file.write(made.text)
    return made
