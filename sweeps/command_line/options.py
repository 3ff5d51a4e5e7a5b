"""The options of a sweep, as the command line types and explains them. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from meltpoint.sweeps.specification.tracking_uri import check_sign_in

if TYPE_CHECKING:
    from meltpoint.sweeps.specification.sweep_spec import Resources


class SearcherName(StrEnum):
    """Who proposes settings."""

    tpe = "tpe"
    random = "random"
    grid = "grid"


class Overflow(StrEnum):
    """What becomes of frozen states that do not fit the cache."""

    on_the_fly = "on_the_fly"
    bf16 = "bf16"


SWEEP, MACHINE = "What is searched", "Where it runs"

Words = list[str]
NameArgument = Annotated[str, typer.Argument(help="The sweep's name.", show_default=False)]
Name = Annotated[str, typer.Option(help="A name; the same name and options again go on.", rich_help_panel=SWEEP)]
MaybeName = Annotated[
    str | None,
    typer.Option("--name", help="A name; the same again goes on. The --spec's own otherwise.", rich_help_panel=SWEEP),
]
Encoders = Annotated[
    Words | None,
    typer.Option(
        "--encoder", help="bert-base, minilm, hf:ID, hf:FOLDER, elmo:FOLDER; commas or repeats.", rich_help_panel=SWEEP
    ),
]
OneEncoder = Annotated[
    str, typer.Option("--encoder", help="bert-base, minilm, hf:ID, hf:FOLDER or elmo:FOLDER.", show_default=False)
]
Modes = Annotated[
    Words | None,
    typer.Option(
        "--mode", help="feature_extraction (❄), fine_tuning (🔥), stack_and_finetune (❄🔥).", rich_help_panel=SWEEP
    ),
]
Tasks = Annotated[
    Words | None, typer.Option("--task", help="A name of `list tasks`, or your own task.yaml.", rich_help_panel=SWEEP)
]
HeadName = Annotated[
    str | None, typer.Option("--head", help="A head for every cell; each mode's own by default.", rich_help_panel=SWEEP)
]
Trials = Annotated[
    int | None, typer.Option(help="Settings to try, each cell; 16, or as the --spec says.", rich_help_panel=SWEEP)
]
Seeds = Annotated[
    int | None,
    typer.Option(help="Seeds for each cell's best setting; 5, or as the --spec says.", rich_help_panel=SWEEP),
]
SearcherOption = Annotated[
    SearcherName, typer.Option("--searcher", help="Who proposes settings.", rich_help_panel=SWEEP)
]
SpaceFile = Annotated[
    Path | None, typer.Option("--space", help="A space file, in place of the shipped spaces.", rich_help_panel=SWEEP)
]
Overrides = Annotated[
    Words | None,
    typer.Option("--set", help="KEY=VALUE: fix a parameter, or give it a range in YAML.", rich_help_panel=SWEEP),
]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Original files, D/<task folder>/…; the hub otherwise.", rich_help_panel=SWEEP),
]
MaxTrain = Annotated[
    int | None,
    typer.Option("--max-train-examples", help="Train on a seeded sample of this size.", rich_help_panel=SWEEP),
]
TestFrom = Annotated[
    str | None,
    typer.Option("--test-from", help="Carve a labelled test off: train[-1000:] or dev[:400].", rich_help_panel=SWEEP),
]
Seed = Annotated[int, typer.Option("--seed", help="Of the searcher and of the search trials.", rich_help_panel=SWEEP)]
SpecName = Annotated[
    str | None,
    typer.Option("--spec", help="A whole specification: a name of `list specs`, or FILE.yaml.", rich_help_panel=SWEEP),
]
Replacing = Annotated[
    Words | None,
    typer.Option(
        "--with", help="WORD=ENCODER in a --spec: elmo=FOLDER says where it lies, bert-base=minilm puts another.",
        rich_help_panel=SWEEP,
    ),
]  # fmt: skip
BesideName = Annotated[
    str | None, typer.Option("--beside", help="A paper's table to set beside ours, such as to_tune_or_not.")
]
Storage = Annotated[str, typer.Option(help="The folder of all sweeps.", rich_help_panel=MACHINE)]
TrackingUri = Annotated[
    str | None,
    typer.Option("--tracking-uri", help="An MLflow server; SQLite in the storage otherwise.", rich_help_panel=MACHINE),
]
Address = Annotated[
    str | None, typer.Option(help="A running Ray cluster; a local one is started otherwise.", rich_help_panel=MACHINE)
]
Cpus = Annotated[float, typer.Option("--cpus-per-trial", help="CPUs of one trial.", rich_help_panel=MACHINE)]
Gpus = Annotated[
    str,
    typer.Option(
        "--gpus-per-trial",
        help="GPUs of one trial: 0 is the CPU, 0.25 shares one; auto measures, where Ray has any.",
        rich_help_panel=MACHINE,
    ),
]
Budget = Annotated[
    str | None,
    typer.Option("--time-budget", help="Longest search: 90s, 30m, 2h. Finals follow.", rich_help_panel=MACHINE),
]
CacheBudget = Annotated[
    str,
    typer.Option("--cache-budget", help="Room for frozen states, shared by trials: 50GB.", rich_help_panel=MACHINE),
]
CacheOverflow = Annotated[
    Overflow,
    typer.Option("--cache-overflow", help="What to do with those that do not fit.", rich_help_panel=MACHINE),
]
CacheKeep = Annotated[
    str,
    typer.Option("--cache-keep", help="What stays of them once the sweep is done.", rich_help_panel=MACHINE),
]
Retry = Annotated[bool, typer.Option("--retry-failed", help="Run failed trials once more.", rich_help_panel=MACHINE)]
MixCode = Annotated[
    bool,
    typer.Option(
        "--mix-code-versions", help="Go on where other code of Meltpoint began; tables say so.", rich_help_panel=MACHINE
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, nothing else.")]


Analyses = Annotated[
    Words,
    typer.Argument(
        metavar="ANALYSIS…", help="guidelines, genres, diagnostic_classifiers, mutual_information.", show_default=False
    ),
]


class TableFormat(StrEnum):
    """What `report` writes."""

    md = "md"
    html = "html"
    csv = "csv"
    tex = "tex"


class ExportFormat(StrEnum):
    """What `export` writes."""

    yaml = "yaml"
    json = "json"


class Listable(StrEnum):
    """What `list` lists."""

    encoders = "encoders"
    modes = "modes"
    tasks = "tasks"
    heads = "heads"
    tricks = "tricks"
    spaces = "spaces"
    specs = "specs"


def seconds_of(text: str) -> float:
    """`90s`, `30m`, `2h` or `1.5h` in seconds.

    Raises:
        ValueError: anything else.
    """
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    try:
        value = float(text[:-1]) * units[text[-1:]]
    except (ValueError, KeyError):
        value = -1.0
    if value <= 0:
        raise ValueError(f"--time-budget {text!r}: write 90s, 30m, 2h or 1d.")
    return value


def gpus_of(text: str) -> float | Literal["auto"]:
    """`auto`, or a number of GPUs, fractions too.

    Raises:
        ValueError: anything else.
    """
    if text == "auto":
        return "auto"
    try:
        gpus = float(text)
    except ValueError:
        gpus = -1.0
    if not 0 <= gpus < float("inf"):
        raise ValueError(f"--gpus-per-trial {text!r}: write 0, a share as 0.25, a number of GPUs, or auto.")
    return gpus


def bytes_of(option: str, text: str) -> int:
    """`500MB`, `50GB` or `2TB` in bytes.

    Raises:
        ValueError: anything else.
    """
    units = {"MB": 10**6, "GB": 10**9, "TB": 10**12}
    try:
        value = float(text[:-2]) * units[text[-2:].upper()]
    except (ValueError, KeyError):
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(f"{option} {text!r}: write 500MB, 50GB or 2TB; 0MB keeps nothing.")
    return int(value)


def split_words(words: Sequence[str]) -> tuple[str, ...]:
    """`--task a,b --task c` is three words; a folder with a comma in its name is not to be had."""
    return tuple(part.strip() for word in words for part in word.split(",") if part.strip())


def task_words(words: Sequence[str]) -> tuple[str, ...]:
    """A task file by its absolute path: the workers may run elsewhere."""
    return tuple(
        str(Path(word).absolute()) if word.endswith((".yaml", ".yml")) else word for word in split_words(words)
    )


def encoder_words(words: Sequence[str]) -> tuple[str, ...]:
    """Encoders' folders by their absolute paths, for the same reason."""
    return tuple(encoder_word(word) for word in split_words(words))


def encoder_word(word: str) -> str:
    """An encoder's word; a folder in it by its absolute path, and what follows a `#` as it is."""
    family, _, source = word.partition(":")
    folder, mark, variant = source.partition("#")
    path = Path(folder).expanduser()
    return f"{family}:{path.resolve()}{mark}{variant}" if folder and path.is_dir() else word


def resources_of(
    storage: str, tracking_uri: str | None = None, address: str | None = None, cpus: float = 1.0, gpus: str = "auto",
    budget: str | None = None, retry_failed: bool = False, cache_budget: str = "50GB",
    cache_overflow: Overflow = Overflow.on_the_fly, cache_keep: str = "200MB", mix_code_versions: bool = False,
) -> Resources:  # fmt: skip
    """The options of a machine as what a sweep may take of it.

    Raises:
        ValueError: a share, time or size that cannot be read, or is none.
    """
    from meltpoint.sweeps.specification.sweep_spec import Resources

    if cpus <= 0:
        raise ValueError("--cpus-per-trial must be above 0.")
    if tracking_uri is not None:
        check_sign_in(tracking_uri)
    seconds = None if budget is None else seconds_of(budget)
    room, kept = bytes_of("--cache-budget", cache_budget), bytes_of("--cache-keep", cache_keep)
    return Resources(
        storage, tracking_uri, address, cpus, gpus_of(gpus), seconds, retry_failed, room, cache_overflow.value, kept,
        mix_code_versions,
    )  # fmt: skip
