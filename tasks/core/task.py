"""Data types of the tasks: examples, hub sources, tasks, and the data of a cell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.kinds import TaskKind

Kind = str
"""The name of a kind of task (`kinds.BUILT_IN`)."""
KINDS: tuple[Kind, ...] = kinds.names()

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

Label = int | float | tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Example:
    """One example of any kind.

    Attributes:
        id: unique within its split, stable between runs; the source's own id where it has one.
        texts: one sentence, or the two sentences of a pair; empty for sequence labelling.
        words: the words of a sentence to label; empty for the other kinds.
        label: a class id (an index into `Task.labels`), a score in `Task.label_range`, one label id per
            word, 0 or 1 for each of several labels, or None if the label is hidden.
        group: the source's grouping: a document (CoNLL-2003), a genre (MultiNLI), a domain (CoLA), a task file's
            column `group`, or "".
    """

    id: str
    texts: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    label: Label = None
    group: str = ""


class ReadExamples(list[Example]):
    """The examples of one split as they were read, with remarks on rows that were left out, for the tables."""

    def __init__(self, examples: Iterable[Example] = (), notes: Sequence[str] = ()) -> None:
        super().__init__(examples)
        self.notes = tuple(notes)


RowReader = Callable[[Mapping[str, object], int, tuple[str, ...]], Example | None]
"""See `HubSource.example`."""


@dataclass(frozen=True)
class HubSource:
    """A task's parquet files on the Hugging Face hub, and the meaning of their columns.

    Attributes:
        id: the dataset's id on the hub.
        revision: the pinned commit or the `refs/convert/parquet` branch; never a moving branch with scripts.
        config: the configuration's name, or None.
        splits: split → the dataset's name of the split.
        example: (row, index in its split, the label column's class names or ()) → an example; None for a row that does
            not belong to this task or split.
        label_column: the column whose feature holds the class names.
        pattern: the path of a split's parquet files in the repository; `{config}` and `{split}` (the dataset's name)
            are filled in. The default is the layout of the hub's `refs/convert/parquet` branches.
        columns: the columns to read; empty for all.
        elsewhere: splits that come from another dataset: a release with labels, or a server's test split.
        counts_left_out: True if the rows that `example` leaves out are counted in the tables.
    """

    id: str
    revision: str
    config: str | None
    splits: Mapping[Split, str]
    example: RowReader
    label_column: str = "label"
    pattern: str = "{config}/{split}/*.parquet"
    columns: tuple[str, ...] = ()
    elsewhere: Mapping[Split, HubSource] = field(default_factory=dict)
    counts_left_out: bool = False


def glue(config: str, example: RowReader, splits: Mapping[Split, str] | None = None) -> HubSource:
    """A task's files in GLUE's copy on the hub; by default with all splits."""
    every: dict[Split, str] = {"train": "train", "dev": "validation", "test": "test"}
    revision = "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c"
    return HubSource("nyu-mll/glue", revision, config, splits or every, example, pattern="{config}/{split}-*.parquet")


@dataclass(frozen=True)
class PinnedFiles:
    """Original files of a task at one commit of a public repository.

    Attributes:
        url: the URL of the folder that holds them, at the commit.
        sha256: a file's name in `Task.files` → its SHA-256, 64 hexadecimal digits.
        renamed: a file's name in `Task.files` → its name in the repository, if they differ, quoted as in a URL.
    """

    url: str
    sha256: Mapping[str, str]
    renamed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """A dataset with its kind, labels, metric and splits, to which a model is adapted.

    Attributes:
        name: its module name, which is its name on the command line; a variant's parts follow after a colon.
        kind: one of `KINDS`.
        metric: the key in `metrics.METRICS` that settings are selected by; the lowest value of an error (MSE) is the
            best.
        beside: further metrics, which tables show in their own columns; nothing is selected by them.
        labels: the label names in id order; empty for regression. Sequence labelling uses IOB2 names.
        label_range: lowest and highest score, for regression only.
        folder: the folder under `--data-dir` that holds the original files; absolute for a user's own task.
        readers: split → a function from that folder to the examples; a split that the original release
            lacks is absent.
        hub: the same data on the hub, or None.
        pinned: original files that can be downloaded, or None; they take precedence over `hub`, split by split. A task
            with neither needs `--data-dir`.
        test_examples: the published number of labelled test examples, for `plan`, which opens no test; None if unknown.
        test_labels: "public", or "hidden" if only a server (GLUE) can score the test split.
        description: one line for `meltpoint list tasks`.
        files: split → the names of its original files in `folder`, `a|b` for alternatives, `a/` for a folder, with `*`
            for several; their existence is checked before the first trial.
        generated: the examples come from a seeded generator; no file is read and `--data-dir` is ignored.
        notes: remarks on the task's splits for the result tables, whatever the source.
        tokenised: the words of its texts are already separated by white space (SST, the demos), so that a word
            tokenizer has nothing to do; raw text has punctuation attached to its words. No effect on sequence
            labelling, whose examples are words.
        sample: the same task on a published sample of the data, with its own splits; used if the folder has the
            sample's training file but not the task's.
        dev_from, test_from: the part of train (or, for test, of dev) that is carved off as that split, in the grammar
            of `core.carving`; None if the split has its own files. `DataSpec.test_from` overrides `test_from`.
        class_weights: a weight per label, for settings with `class_weights: task`; () for none.
        conll_columns: the columns of words and tags if the files are column files, for `predict`; otherwise None.
        text_columns: the columns of each text in other files with names, for `predict`; several are joined by `joiner`.
        is_grouped: examples of a group depend on each other: they are carved and resampled together.
        also_test: further test splits by name (other domains), which are opened and scored together with test:
            functions from the folder to the examples. Their files are among `files` of test.
    """

    name: str
    kind: Kind
    metric: str
    folder: str
    readers: Mapping[Split, Callable[[Path], list[Example]]]
    labels: tuple[str, ...] = ()
    label_range: tuple[float, float] | None = None
    hub: HubSource | None = None
    pinned: PinnedFiles | None = None
    test_labels: Literal["public", "hidden"] = "public"
    test_examples: int | None = None
    description: str = ""
    files: Mapping[Split, tuple[str, ...]] = field(default_factory=dict)
    generated: bool = False
    notes: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    tokenised: bool = False
    sample: Task | None = None
    dev_from: str | None = None
    test_from: str | None = None
    class_weights: tuple[float, ...] = ()
    conll_columns: tuple[int, int] | None = None
    text_columns: tuple[tuple[str, ...], ...] = ()
    joiner: str = " "
    is_grouped: bool = False
    also_test: Mapping[str, Callable[[Path], list[Example]]] = field(default_factory=dict)

    @property
    def of_kind(self) -> TaskKind:
        """The kind of the task: the contents of its examples, and its target."""
        return kinds.get(self.kind)

    @property
    def outputs(self) -> int:
        """The number of a head's outputs per example (or per word): one per label, or one score."""
        return self.of_kind.outputs(len(self.labels))


@dataclass(frozen=True)
class DataSpec:
    """The data that a cell is trained and scored on; part of a sweep's specification.

    Attributes:
        task: a task's name, a variant (`yahoo:sports+health`), or the path of a user's task file (`*.yaml`).
        data_dir: the folder with the original files, or None for the hub (or for a generated task).
        max_train_examples: train on a seeded sample of this size.
        test_from: a part of train or dev (`train[-1000:]`, `{from: dev, fraction: 0.5}`; see `core.carving`) that is
            carved off as the labelled test split, or None for the task's own.
        max_dev_examples: score epochs on a seeded sample of this size of dev; "auto" for `splits.dev_sample_size`, None
            for all of dev. Finals are scored on all of it; test is never sampled.
        is_test_closed: whether test stays closed: finals are scored on dev alone.
        nested: whether the sample of train holds every smaller one and keeps the classes' shares (`splits.nested`).
    """

    task: str
    data_dir: str | None = None
    max_train_examples: int | None = None
    test_from: str | None = None
    max_dev_examples: int | Literal["auto"] | None = None
    is_test_closed: bool = False
    nested: bool = False


@dataclass(frozen=True)
class TrainingData:
    """The data that a training worker may see: train and dev, never test.

    Attributes:
        fingerprint: sha256 (hex, 16 characters) over the task's labels and every example of both splits (texts, words
            and label, and group where the task is grouped; not ids or paths, so the same data from the hub or from a
            folder has the same fingerprint).
        notes: remarks on this data for the result tables ("1 000 of 6 920 training examples, seed 0").
        all_dev: all of dev, on which finals are scored; epochs are scored on `dev`, which may be a sample of it.
        whole_train, whole_dev: for labelled words of documents, the complete splits that train and dev are sampled
            from: the sentences left out still give context. None if nothing was left out, and for other kinds.
    """

    task: Task
    train: list[Example]
    dev: list[Example]
    fingerprint: str
    notes: tuple[str, ...] = field(default=())
    whole_train: list[Example] | None = None
    whole_dev: list[Example] | None = None
    all_dev: list[Example] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Set `all_dev` to `dev` if nothing was left out."""
        if not self.all_dev:
            object.__setattr__(self, "all_dev", self.dev)
