"""The cells of a sweep: encoder, head, space and data, loaded and checked before the first trial starts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from meltpoint.adapters import encoders, heads, modes, settings
from meltpoint.adapters.data.document_context import documents_fingerprint
from meltpoint.adapters.data.input_format import CONTEXT, OWN_POOLING, PAIRING, POOLING_KIND
from meltpoint.adapters.encoders import EncoderReference
from meltpoint.adapters.families import encoder_word, short_name
from meltpoint.adapters.hyperparameters import CLASS_WEIGHTS, Parameter, Setting
from meltpoint.adapters.multiplier_table import DefaultHead
from meltpoint.adapters.settings import check_mode, check_own_pooling, check_possible
from meltpoint.search_spaces import files
from meltpoint.search_spaces.space import Space
from meltpoint.sweeps.ledger.records import CellKey, Role, SuggestedBy, Trial, cell_key
from meltpoint.sweeps.specification.space_rules import (
    CellLength,
    InputLengths,
    pooler_notes,
    possible_values,
    with_enough_steps,
    with_own_pooling,
    with_word_tokenizer,
)
from meltpoint.sweeps.specification.sweep_options import Searcher
from meltpoint.sweeps.specification.sweep_spec import Block, SweepSpec, check, within
from meltpoint.tasks import get, names
from meltpoint.tasks.core import sources
from meltpoint.tasks.core.carving import Slice, parse_cut
from meltpoint.tasks.core.registry import is_task_file
from meltpoint.tasks.core.splits import data_warnings, load_training_data
from meltpoint.tasks.core.task import DataSpec, Kind, Task, TrainingData
from meltpoint.tasks.core.wording import some

_ON_DEV_ALONE = (
    "finals are scored only on dev, which also chose their setting, so their scores are too optimistic; --test-from "
    "'train[-10%:]' splits a test set off train"
)
WITHOUT_TEST: dict[sources.TestState, str] = {
    "absent": f"there is no test split: {_ON_DEV_ALONE}",
    "hidden": f"the test labels are hidden: predictions are written for the server, and {_ON_DEV_ALONE}",
}
"""State of a test split that cannot be scored → the consequence for a sweep."""


@dataclass(frozen=True)
class OpenCell:
    """One encoder × mode × task with its head, ready to be searched.

    Attributes:
        encoder: the encoder's name as given by the user; its short name, if it has one.
        mode: the mode's name.
        task: the task.
        task_name: the task's name (a user's task file contains one).
        head: the head's name.
        head_source: the source of the choice of the head.
        space: the search space.
        reference: the location of the encoder's weights.
        encoder_fingerprint: of the encoder's files.
        data: the specification of the data, for workers.
        data_fingerprint: of the train and dev split.
        documents_fingerprint: of the grouping of their sentences by document; "" if no trial reads document context.
        train_examples, dev_examples: numbers of examples.
        epoch_dev_examples: the number of dev examples on which each epoch is scored.
        mean_words: mean number of words per example, for estimates.
        length: the longest input of its trials, and its cuts.
        notes: notes on the data for tables.
        variant: distinguishes cells of the same encoder, mode and task; "" if there is only one.
        trials: number of settings to search.
        seeds: number of seeds with which the best setting is run again.
        warnings: faults of the data that affect conclusions (`tasks.core.splits`).
        searcher: "gp", "tpe", "random" or "grid".
        encoder_word: the location of an encoder with a short name; "" if its name is its location.
    """

    encoder: str
    mode: str
    task: Task
    task_name: str
    head: str
    head_source: str
    space: Space
    reference: EncoderReference
    encoder_fingerprint: str
    data: DataSpec
    data_fingerprint: str
    documents_fingerprint: str
    train_examples: int
    dev_examples: int
    epoch_dev_examples: int
    mean_words: float
    length: CellLength
    notes: tuple[str, ...]
    variant: str
    trials: int
    seeds: int
    searcher: Searcher
    warnings: tuple[str, ...] = ()
    encoder_word: str = ""

    @property
    def located_encoder(self) -> str:
        """The location of the encoder, as given by the user."""
        return self.encoder_word or self.encoder

    @property
    def key(self) -> CellKey:
        """The key that identifies the cell within a sweep."""
        return cell_key(self.encoder, self.mode, self.task_name, self.variant)

    def trial(
        self, trial_id: str, number: int, role: Role, setting: Setting, seed: int, by: SuggestedBy | None = None
    ) -> Trial:  # fmt: skip
        """A trial of this cell; the arguments are the attributes of `Trial`."""
        return Trial(
            id=trial_id, number=number, encoder=self.encoder, mode=self.mode, task=self.task_name, variant=self.variant,
            role=role, seed=seed, setting=dict(setting), suggested_by=by,
        )  # fmt: skip

    @property
    def metric(self) -> str:
        """The metric by which settings are chosen."""
        return self.task.metric

    @property
    def name(self) -> str:
        """E.M.T, or E.M.T.VARIANT; usable as a file name."""
        return cell_name(*self.key)


def cell_name(*key: str) -> str:
    """The name of a cell, E.M.T or E.M.T.VARIANT, with `_` in place of characters that file names cannot contain."""
    return ".".join(re.sub(r"[^A-Za-z0-9_-]+", "_", part).strip("_") for part in key)


def word_of(spec: SweepSpec, task: str) -> str:
    """The task as given on a sweep's command line, found by its name: the name itself, or a task file."""
    if task in spec.task_words() or task.partition(":")[0] in names():
        return task
    files = [word for word in spec.task_words() if is_task_file(word)]
    # A single file is not read for its name, because it may have been moved since.
    return files[0] if len(files) == 1 else next(word for word in files if get(word).name == task)


def data_spec(spec: SweepSpec, task: str, variant: str = "") -> DataSpec:
    """The data specification of a task, given by its name or file, for the cells of a variant in a sweep."""
    own = spec.train_examples_of(variant)
    sizes = own or spec.max_train_examples, spec.max_dev_examples
    is_closed = spec.split == "dev"
    return DataSpec(task, spec.data_dir, sizes[0], spec.test_from, sizes[1], is_test_closed=is_closed, nested=own > 0)


def cell_space(
    spec: SweepSpec, block: Block, encoder: str, mode: str, task: Task, head: str, has_pooling: bool = False
) -> Space:  # fmt: skip
    """The search space of a cell: the user's file or the shipped layers, then the overrides.

    Args:
        spec, block, encoder, mode, task, head: the cell.
        has_pooling: whether the encoder has its own pooling.

    Raises:
        ValueError: unknown or impossible keys, values outside their limits; one line.
    """
    allowed: dict[str, Parameter] = {
        parameter.name: parameter for parameter in settings.parameters(mode, head, task.kind)
    }
    every = {parameter.name: parameter for parameter in settings.all_parameters()}
    if spec.space is not None:
        space = files.load(spec.space, allowed, mode=mode, every=every)
    else:
        space = files.find(mode, encoder, task.name, head, allowed, has_pooling=has_pooling, every=every)
    return space.with_overrides(block.overrides)


def open_cells(spec: SweepSpec) -> list[OpenCell]:
    """Open every cell of a sweep, in the order of blocks and of the matrix; reads train and dev of each task once.

    Raises:
        ValueError: a mistake in the names, the spaces or the data; one line with the remedy.
    """
    check(spec)
    tasks = [get(word) for word in spec.task_words()]
    if len({task.name for task in tasks}) < len(tasks):
        raise ValueError(f"--task names the same task twice: {', '.join(spec.task_words())}.")
    for word in spec.task_words():
        sources.check(data_spec(spec, word))
    for block in spec.products():
        with within(block):
            check_block(spec, block)
    wanted = dict.fromkeys((word, block.variant) for block in spec.products() for word in block.tasks)
    asked = {key: data_spec(spec, *key) for key in wanted}
    read = {data: load_training_data(data) for data in dict.fromkeys(asked.values())}
    loaded = {key: read[data] for key, data in asked.items()}
    for (word, variant), data in loaded.items():
        has_all = any(other == word and not spec.train_examples_of(one) for other, one in loaded)
        _check_size(spec.train_examples_of(variant), data, has_all)
    cells: list[OpenCell] = []
    lengths = InputLengths()
    for block in spec.products():
        with within(block):
            product = itertools.product(block.encoders, block.modes, block.tasks)
            cells += [_open(spec, block, key, loaded[key[2], block.variant], lengths) for key in product]
    warnings = {
        (data.task.name, variant): tuple(data_warnings(replace(data, dev=data.all_dev)))
        for (_, variant), data in loaded.items()
    }
    return [replace(cell, warnings=warnings[cell.task_name, cell.variant]) for cell in cells]


def _check_size(size: int, data: TrainingData, has_all: bool) -> None:
    """Refuse a training size that the data do not have: its cells would repeat those of `all`."""
    if size > len(data.train) or (has_all and size == len(data.train)):
        has = some(len(data.train), "training example")
        raise ValueError(f"--train-sizes {size}: {data.task.name} has {has}; leave that size out, or write all.")


def check_block(spec: SweepSpec, block: Block) -> None:
    """Check a block's encoders, modes, tasks, heads and spaces.

    Raises:
        ValueError: one line with the remedy.
    """
    for task, encoder in itertools.product(map(get, block.tasks), block.encoders):
        reference = encoders.resolve(encoder, task.kind)
        if reference.is_folder:  # an encoder on the hub is checked when it is downloaded, after the data
            encoders.check(reference)
        for mode in block.modes:
            if encoders.knows_pooling(reference):  # otherwise head and space depend on files that may not be here
                _head_and_space(spec, block, reference, mode, task)


def _head_and_space(
    spec: SweepSpec, block: Block, reference: EncoderReference, mode: str, task: Task
) -> tuple[DefaultHead, Space]:
    """A cell's head and search space, checked against each other, the encoder and the kind of task."""
    head = head_of(block, reference, mode, task.kind)
    heads.get(head.name, task.kind)
    space = cell_space(spec, block, reference.word, mode, task, head.name, reference.has_pooling)
    space = with_own_pooling(with_word_tokenizer(space, reference, task), mode, head)
    pairing = "joint" if "joint" in possible_values(space, PAIRING) else "auto"
    check_possible(reference, head.name, task.kind, pairing)
    check_mode(reference, mode, head.name, task.kind)
    if "task" in possible_values(space, CLASS_WEIGHTS) and not task.class_weights:
        raise ValueError(
            f"class_weights may be task, but {task.name} names none; write balanced, or name them in its file."
        )
    return head, space


def _open(
    spec: SweepSpec, block: Block, key: tuple[str, str, str], data: TrainingData, lengths: InputLengths
) -> OpenCell:  # fmt: skip
    """Open one cell of a block: `key` is its encoder, mode and task, as given by the user."""
    encoder, mode, word = key
    name = short_name(encoder)
    reference = encoders.resolve(encoder, data.task.kind)
    encoders.check(reference)
    reference = encoders.with_pooling(reference)
    chosen, space = _head_and_space(spec, block, reference, mode, data.task)
    head = chosen.name
    own = space.parameters.get(POOLING_KIND)
    if own is not None and own.match(OWN_POOLING) is not None:
        check_own_pooling(reference)
    documents = _documents(space, data)
    space, length = lengths.settle(space, name, reference, head, data)
    space, epochs = with_enough_steps(space, mode, len(data.train))
    unread = encoders.unread_files(reference, data.task.kind)
    pooler = pooler_notes(reference, head, data.task.kind, space)
    notes = (*data.notes, *unread, *pooler, *([epochs] if epochs else []))
    words = sum(len(e.words) + sum(len(text.split()) for text in e.texts) for e in data.train)
    return OpenCell(
        encoder=name, mode=mode, task=data.task, task_name=data.task.name, head=head, head_source=chosen.source,
        space=space, reference=reference, encoder_fingerprint=encoders.fingerprint(reference),
        data=data_spec(spec, word, block.variant), data_fingerprint=data.fingerprint, documents_fingerprint=documents,
        train_examples=len(data.train), dev_examples=len(data.all_dev), epoch_dev_examples=len(data.dev),
        mean_words=words / max(1, len(data.train)), length=length, notes=notes,
        variant=block.variant, trials=block.trials, seeds=block.seeds if modes.get(mode).is_random else 1,
        searcher=spec.searcher_of(block),
        encoder_word="" if name == encoder else encoder_word(encoder),
    )  # fmt: skip


def head_of(block: Block, reference: EncoderReference, mode: str, kind: Kind) -> DefaultHead:
    """The head of a block's cell: the named one, or the default of its mode, encoder and kind of task."""
    if block.head is None:
        return modes.get(mode).default_heads.of(reference, kind)
    return DefaultHead(block.head, f"named by the block '{block.name}'" if block.name else "--head")


def length_lines(cells: Sequence[OpenCell], only_cut: bool = False) -> list[str]:
    """The longest inputs of cells and their cuts, once for each task, encoder and length.

    Args:
        cells: the cells.
        only_cut: whether to leave out cells that lose no text.
    """
    chosen = (cell for cell in cells if cell.length.notes or not only_cut)
    lines = (f"{cell.task_name}, {cell.encoder}: {line}" for cell in chosen for line in cell.length.lines())
    return list(dict.fromkeys(lines))


def fault_lines(cells: Sequence[OpenCell]) -> list[str]:
    """The faults of the tasks' data that affect conclusions, once per task."""
    return list(dict.fromkeys(f"{cell.task_name}: {line}" for cell in cells for line in cell.warnings))


def test_lines(cells: Sequence[OpenCell]) -> list[str]:
    """The consequence of a test split that cannot be scored, one line for each such task."""
    by_task = {cell.task_name: sources.check(cell.data) for cell in cells}
    return [f"{task}: {WITHOUT_TEST[state]}" for task, state in by_task.items() if state in WITHOUT_TEST]


def _documents(space: Space, data: TrainingData) -> str:
    """The fingerprint of the data's documents if a trial may read document context; else "".

    Raises:
        ValueError: the data have no documents, so that trials would silently train on single sentences.
    """
    if "document" not in possible_values(space, CONTEXT):
        return ""
    if not any(example.group for example in data.train):
        raise ValueError(
            f"context is document, but this copy of {data.task.name} does not mark its documents; name the original "
            "files with --data-dir, or set context=sentence."
        )
    return documents_fingerprint((data.train, data.whole_train), (data.dev, data.whole_dev))


def declared_test_examples(cell: OpenCell) -> int | None:
    """The number of labelled test examples of a cell, according to `--test-from` or the task.

    Returns:
        None if neither determines it (for example a random part), if the labels are hidden, or if test stays closed.
    """
    if cell.data.is_test_closed:
        return None
    test_from = cell.data.test_from or cell.task.test_from
    if test_from is not None:
        cut = parse_cut(test_from)
        return _length(cut) if isinstance(cut, Slice) else None
    return None if cell.task.test_labels == "hidden" else cell.task.test_examples


def _length(cut: Slice) -> int | None:
    """The length of a slice whose ends count from the same side of a long enough split; otherwise None."""
    if "%" in cut.start + cut.stop:
        return None
    start, stop = (int(end) if end else None for end in (cut.start, cut.stop))
    if start is not None and start < 0 and (stop is None or stop < 0):
        return (stop or 0) - start
    if stop is not None and stop >= 0 and (start is None or start >= 0):
        return stop - (start or 0)
    return None
