"""From the options of `sweep` and `plan`, and a specification file where one is named, to what a sweep is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meltpoint.sweeps.command_line.options import SearcherName, encoder_word, encoder_words, split_words, task_words
from meltpoint.sweeps.specification import spec_files
from meltpoint.sweeps.specification.early_checks import check_overrides, check_spec
from meltpoint.sweeps.specification.spec_files import FileBlock, SpecFile
from meltpoint.sweeps.specification.sweep_spec import Block, SweepSpec
from meltpoint.tasks import get
from meltpoint.tasks.core.words import unknown

TRIALS, SEEDS = 16, 5
"""Of a plain command line that says nothing of them."""

Texts = Sequence[str] | None


def asked_spec(
    name: str | None, encoder: Texts, mode: Texts, task: Texts, head: str | None, trials: int | None,
    seeds: int | None, searcher: SearcherName, space: Path | None, overrides: Texts, data_dir: Path | None,
    max_train_examples: int | None, test_from: str | None, seed: int, spec: str | None = None, replacing: Texts = None,
) -> SweepSpec:  # fmt: skip
    """What a sweep is, by its options.

    Args:
        name: its name; None for that of the specification file.
        encoder, mode, task: words; with a file those of its cells that are wanted, None for all.
        head, trials, seeds: None for those of the file, or the defaults.
        overrides: `--set` texts; with a file they are laid over every block that has the parameter.
        spec: a shipped specification's name, or the path of a file.
        replacing: `WORD=ENCODER` texts, which encoder stands for which word of the file.

    Raises:
        ValueError: options that are missing or do not fit the file, or a mistake in the file; one line.
    """
    common = SweepSpec(
        name=name or "", searcher=searcher.value, space=str(space.absolute()) if space else None,
        overrides=tuple(overrides or ()), data_dir=str(data_dir.absolute()) if data_dir else None,
        max_train_examples=max_train_examples, test_from=test_from, seed=seed,
    )  # fmt: skip
    if spec is None:
        _check_plain(name, encoder, mode, task, replacing)
        words = {"encoders": encoder_words(encoder or ()), "modes": split_words(mode or ())}
        words["tasks"] = task_words(task or ())
        counts = {"trials": TRIALS if trials is None else trials, "seeds": SEEDS if seeds is None else seeds}
        return common.model_copy(update={**words, **counts, "head": head})
    if head is not None:
        raise ValueError(f"--head {head}: the blocks of {spec} name their heads; copy the file and change it there.")
    file = spec_files.read(spec)
    wanted = _wanted(file, spec, encoder, mode, task, _replacements(file, spec, replacing or ()))
    return _merged(common, file, spec, wanted, trials, seeds)


def checked_spec(*options: Any) -> SweepSpec:
    """The same, with every word, file and value checked that can be checked without torch.

    Args:
        options: those of `asked_spec`, in its order.

    Raises:
        ValueError: whatever `asked_spec` and `early_checks.check_spec` refuse; one line.
    """
    spec = asked_spec(*options)
    check_spec(spec)
    return spec


def _check_plain(name: str | None, encoder: Texts, mode: Texts, task: Texts, replacing: Texts) -> None:
    given = {"--name": name, "--encoder": encoder, "--mode": mode, "--task": task}
    missing = [option for option, value in given.items() if not value]
    if missing:
        raise ValueError(f"{missing[0]} is missing; name it, or a whole specification with --spec.")
    if replacing:
        raise ValueError(f"--with {replacing[0]}: goes with --spec; name encoders with --encoder otherwise.")


@dataclass(frozen=True)
class Wanted:
    """Which cells of a file are wanted, by its own words.

    Attributes:
        encoders, modes, tasks: its words.
        replaced: word → the encoder in its place.
    """

    encoders: Sequence[str]
    modes: Sequence[str]
    tasks: Sequence[str]
    replaced: Mapping[str, str]


def _replacements(file: SpecFile, where: str, texts: Iterable[str]) -> dict[str, str]:
    """The encoders that `--with WORD=ENCODER` puts in the place of the file's words."""
    found: dict[str, str] = {}
    for text in split_words(list(texts)):
        word, equals, encoder = (part.strip() for part in text.partition("="))
        if not equals or not word or not encoder:
            raise ValueError(f"--with {text}: write WORD=ENCODER, as in --with bert-base=minilm.")
        if word not in file.words("encoders"):
            raise unknown(word, f"encoder of {where}", file.words("encoders"))
        if word in found:
            raise ValueError(f"--with {text}: {word} is replaced twice; replace it once.")
        found[word] = _encoder(word, encoder, file)
    return found


def _encoder(word: str, said: str, file: SpecFile) -> str:
    """An encoder as `--with` names it: a bare folder is of the word's own family, or else Hugging Face's."""
    folder = Path(said).expanduser()
    if ":" not in said and folder.is_dir():
        return f"{word if word in file.folders else 'hf'}:{folder.resolve()}"
    return encoder_word(said)


def _wanted(file: SpecFile, where: str, encoder: Texts, mode: Texts, task: Texts, replaced: dict[str, str]) -> Wanted:
    """The file's words that the options leave; `--encoder elmo:FOLDER` also says where the file's elmo lies."""
    encoders = file.words("encoders")
    if encoder:
        back = {own: word for word, own in replaced.items()}
        encoders = []
        for said in encoder_words(encoder):
            family = said.partition(":")[0]
            if said not in file.words("encoders") and family in file.folders and family not in replaced:
                replaced = {**replaced, family: said}
                encoders.append(family)
            else:
                encoders.append(_known(back.get(said, said), "encoders", file, where))
    modes = [_known(word, "modes", file, where) for word in split_words(mode)] if mode else file.words("modes")
    tasks = [_known(word, "tasks", file, where) for word in split_words(task)] if task else file.words("tasks")
    return Wanted(encoders, modes, tasks, replaced)


def _known(word: str, what: str, file: SpecFile, where: str) -> str:
    if word not in file.words(what):
        refused = unknown(word, f"{what[:-1]} of {where}", file.words(what))
        example = f"--with {file.words(what)[0]}={word}"
        raise ValueError(f"{refused} To put another in its place: {example}.") if what == "encoders" else refused
    return word


def _merged(
    common: SweepSpec, file: SpecFile, where: str, wanted: Wanted, trials: int | None, seeds: int | None
) -> SweepSpec:
    """The specification of a file's wanted cells, whatever the command line changes about them."""
    missing = [word for word in wanted.encoders if word in file.folders and word not in wanted.replaced]
    there = [word for word in wanted.encoders if word not in missing]
    own = _overrides(common.overrides)
    check_overrides(common.overrides)  # before `_fitting`, which imports torch
    fitting = _fitting(file, own)
    blocks = []
    for block in file.blocks:
        words = {
            "encoders": tuple(wanted.replaced.get(word, word) for word in block.encoders if word in there),
            "modes": tuple(word for word in block.modes if word in wanted.modes),
            "tasks": tuple(word for word in block.tasks if word in wanted.tasks),
        }
        if all(words.values()):
            overrides = {**block.overrides(), **{key: text for key, text in own.items() if fitting(block, key)}}
            blocks.append(
                Block(
                    name=block.name, **words, head=block.head, variant=block.variant,
                    overrides=tuple(f"{key}={text}" for key, text in overrides.items()),
                    trials=block.trials or file.trials if trials is None else trials,
                    seeds=block.seeds or file.seeds if seeds is None else seeds,
                )
            )  # fmt: skip
    if not blocks:
        remedy = " ".join(f"Add --with {word}=FOLDER, {file.folders[word]}." for word in missing)
        raise ValueError(f"--spec {where}: no cell is left. {remedy or 'Name other words, or leave some out.'}")
    replaced = [f"{word}={encoder}" for word, encoder in wanted.replaced.items() if word in there]
    said = {"blocks": tuple(blocks), "origin": file.name, "replaced": tuple(replaced), "left_out": tuple(missing)}
    return common.model_copy(update={**said, "name": common.name or file.name})


def _overrides(texts: Sequence[str]) -> dict[str, str]:
    """`--set` texts as parameter → value; what is malformed stays whole, and is refused where it is read."""
    split = [text.partition("=") for text in texts]
    keys = [key.strip() for key, _, _ in split]
    for key in keys:
        if keys.count(key) > 1:
            raise ValueError(f"--set {key}: is set twice; set it once.")
    return {key: value.strip() for key, (_, _, value) in zip(keys, split, strict=True)}


def _fitting(file: SpecFile, own: Mapping[str, str]) -> Callable[[FileBlock, str], bool]:
    """(block, key) → whether a key of the command line is laid over a block: where all of its cells have it.

    A key that no block has goes to all of them, so that it is refused by its name.
    """
    if not own:
        return lambda block, key: False
    from meltpoint.adapters import (
        modes,
        settings,  # imports torch: only who needs it waits for it
    )

    def has(block: FileBlock, key: str) -> bool:
        heads = {mode: block.head or modes.get(mode).head for mode in block.modes}
        kinds = {get(task).kind for task in block.tasks}
        each = [settings.parameters(mode, head, kind) for mode, head in heads.items() for kind in kinds]
        return key == "early_stopping" or all(key in {own.name for own in allowed} for allowed in each)

    nowhere = {key for key in own if not any(has(block, key) for block in file.blocks)}
    return lambda block, key: key in nowhere or has(block, key)
