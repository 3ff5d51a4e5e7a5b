"""The options of the command line: names, types, defaults and help texts. Imports nothing heavy."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec, cast, get_type_hints

import typer
from typer.models import OptionInfo

P = ParamSpec("P")


class SearcherName(StrEnum):
    """Values of `--searcher`."""

    tpe = "tpe"
    random = "random"
    grid = "grid"


class Overflow(StrEnum):
    """Values of `--cache-overflow`: how hidden states that do not fit the cache are treated."""

    on_the_fly = "on_the_fly"
    bf16 = "bf16"


class TableFormat(StrEnum):
    """Formats that `report` writes."""

    md = "md"
    html = "html"
    csv = "csv"
    json = "json"
    tex = "tex"


class ExportFormat(StrEnum):
    """Formats that `export` writes."""

    yaml = "yaml"
    json = "json"


class Listable(StrEnum):
    """Kinds of things that `list` lists."""

    encoders = "encoders"
    modes = "modes"
    tasks = "tasks"
    heads = "heads"
    tricks = "tricks"
    spaces = "spaces"
    specs = "specs"
    sweeps = "sweeps"


_search_option = functools.partial(typer.Option, rich_help_panel="What is searched")
_machine_option = functools.partial(typer.Option, rich_help_panel="Where it runs")

NameArgument = Annotated[str, typer.Argument(help="The sweep's name.", show_default=False)]
AnalysesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="ANALYSIS…",
        show_default=False,
        help="cost, diagnostic_classifiers, genres, guidelines, mutual_information, tuning_curves.",
    ),
]

Name = Annotated[str, _search_option(help="A name; the same name and options again go on.")]
Encoders = Annotated[
    list[str] | None,
    _search_option(
        "--encoder", help="bert-base, minilm, hf:ID, hf:FOLDER, NAME=hf:FOLDER, elmo:FOLDER; commas or repeats."
    ),
]
Tasks = Annotated[list[str] | None, _search_option("--task", help="A name of `list tasks`, or your own task.yaml.")]
DataDir = Annotated[
    Path | None, _search_option("--data-dir", help="Original files, D/<task folder>/…; the hub otherwise.")
]
MaxTrainExamples = Annotated[
    int | None, _search_option("--max-train-examples", help="Train on a seeded sample of this size.")
]

Group = Annotated[
    str,
    typer.Option(
        "--group", help="The column of documents or authors, whose examples stay together.", show_default=False
    ),
]
Margin = Annotated[
    float, _search_option("--margin", help="Points within which modes are level: then the cheapest is recommended.")
]

Storage = Annotated[str, _machine_option(help="The folder of all sweeps; or s3://BUCKET/PREFIX, gs://….")]
CacheDir = Annotated[
    str | None,
    _machine_option("--cache-dir", help="Each node's own folder for frozen states; in the storage otherwise."),
]
TrackingUri = Annotated[
    str | None, _machine_option("--tracking-uri", help="An MLflow server; SQLite in the storage otherwise.")
]
Address = Annotated[
    str | None,
    _machine_option(help="A running Ray cluster, HOST:PORT; auto: RAY_ADDRESS, or this machine's. Else a local one."),
]
CpusPerTrial = Annotated[float, _machine_option("--cpus-per-trial", help="CPUs of one trial.")]
GpusPerTrial = Annotated[
    str,
    _machine_option(
        "--gpus-per-trial", help="GPUs of one trial: 0 is the CPU, 0.25 shares one; auto measures, where Ray has any."
    ),
]

MixCode = Annotated[
    bool, _machine_option("--mix-code-versions", help="Go on where other code of Meltpoint began; tables say so.")
]
NoEpochCheckpoints = Annotated[
    bool, _machine_option("--no-epoch-checkpoints", help="Save no long epochs: a lost trial begins from the start.")
]
JobAddress = Annotated[
    str | None,
    typer.Option(
        "--address", help="The cluster's dashboard, http://HOST:8265; RAY_API_SERVER_ADDRESS otherwise.",
        rich_help_panel="Where it runs",
    ),
]  # fmt: skip
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, nothing else.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Each cell, what is searched, and every note.")]
Beside = Annotated[
    str | None, typer.Option("--beside", help="A paper's table to set beside ours, such as to_tune_or_not.")
]


@dataclass(frozen=True)
class SweepOptions:
    """The options of `sweep` and `plan` as they were typed, in the order of the help, which explains each.

    `spec_from_options` and `option_values.resources_of` translate them.
    """

    name: Annotated[
        str | None,
        _search_option("--name", help="A name; the same again goes on. The task's or the --spec's own otherwise."),
    ] = None
    encoder: Encoders = None
    mode: Annotated[
        list[str] | None,
        _search_option(
            "--mode", help="feature_extraction (❄), fine_tuning (🔥), stack_and_finetune (❄🔥); all otherwise."
        ),
    ] = None
    task: Tasks = None
    spec: Annotated[
        str | None, _search_option("--spec", help="A whole specification: a name of `list specs`, or FILE.yaml.")
    ] = None
    replacing: Annotated[
        list[str] | None,
        _search_option(
            "--with",
            help="WORD=ENCODER in a --spec: elmo=FOLDER says where it lies, bert-base=minilm puts another.",
        ),
    ] = None
    head: Annotated[str | None, _search_option("--head", help="A head for every cell; each mode's own by default.")] = (
        None
    )
    trials: Annotated[int | None, _search_option(help="Settings to try, each cell; 16, or as the --spec says.")] = None
    seeds: Annotated[
        int | None, _search_option(help="Seeds for each cell's best setting; 5, or as the --spec says.")
    ] = None
    searcher: Annotated[
        SearcherName | None, _search_option(help="Who proposes settings; tpe, or as the --spec says.")
    ] = None
    default_finals: Annotated[
        bool | None,
        _search_option(
            "--default-finals/--no-default-finals",
            help="Run the published setting with the same seeds too; by default where it is under a tenth of the runs.",
        ),
    ] = None
    space: Annotated[Path | None, _search_option("--space", help="A space file, in place of the shipped spaces.")] = (
        None
    )
    overrides: Annotated[
        list[str] | None,
        _search_option("--set", help="KEY=VALUE: fix a parameter, or give it a range in YAML."),
    ] = None
    data_dir: DataDir = None
    max_train_examples: MaxTrainExamples = None
    max_dev_examples: Annotated[
        str,
        _search_option(
            "--max-dev-examples",
            help="Score epochs on a sample of dev of this size, or on all; auto samples a dev many times train.",
        ),
    ] = "auto"
    test_from: Annotated[
        str | None,
        _search_option("--test-from", help="Carve a labelled test off: train[-1000:], dev[:10%]; docs/tasks.md."),
    ] = None
    seed: Annotated[int, _search_option("--seed", help="Of the searcher and of the search trials.")] = 0
    margin: Margin = 1.0
    storage: Storage = "runs"
    tracking_uri: TrackingUri = None
    address: Address = None
    cpus_per_trial: CpusPerTrial = 1.0
    gpus_per_trial: GpusPerTrial = "auto"
    max_workers: Annotated[
        int | None, _machine_option("--max-workers", help="The most trials at once; else a fair share of the cluster.")
    ] = None
    time_budget: Annotated[
        str | None, _machine_option("--time-budget", help="Longest search: 90s, 30m, 2h. Finals follow.")
    ] = None
    retry_failed: Annotated[bool, _machine_option("--retry-failed", help="Run failed trials once more.")] = False
    cache_budget: Annotated[
        str, _machine_option("--cache-budget", help="Room for frozen states, shared by trials: 50GB.")
    ] = "50GB"
    cache_dir: CacheDir = None
    cache_overflow: Annotated[
        Overflow, _machine_option("--cache-overflow", help="What to do with those that do not fit.")
    ] = Overflow.on_the_fly
    cache_keep: Annotated[str, _machine_option("--cache-keep", help="What stays of them once the sweep is done.")] = (
        "200MB"
    )
    mix_code_versions: MixCode = False
    grow: Annotated[
        bool, _machine_option("--grow", help="Add trials, seeds or cells to the sweep of that name; it keeps the rest.")
    ] = False
    new_test_round: Annotated[
        bool,
        _machine_option("--new-test-round", help="Search on where test was opened, in a round that tables name."),
    ] = False
    no_epoch_checkpoints: NoEpochCheckpoints = False
    register: Annotated[
        bool,
        _machine_option("--register", help="Put each cell's best finalist into MLflow as a model, with alias best."),
    ] = False


def as_words(options: SweepOptions) -> list[str]:
    """The words of a command line that gives these options; those that have their defaults are left out."""
    types = get_type_hints(SweepOptions, include_extras=True)
    words: list[str] = []
    for field in fields(SweepOptions):
        value = getattr(options, field.name)
        if value == field.default:
            continue
        option, _, negation = _option_name(field.name, types[field.name].__metadata__[0]).partition("/")
        values = value if isinstance(value, list) else [value]
        switch = {True: option, False: negation}.get(value) if isinstance(value, bool) else None
        words += [switch] if switch is not None else [f"{option}={_as_word(each)}" for each in values]
    return words


def _option_name(field: str, info: OptionInfo) -> str:
    """The option of a field, `--yes/--no` where it has a word for its contrary.

    Inside `Annotated` typer has the first name of an option in the place of its default.
    """
    names = [name for name in (info.default, *(info.param_decls or ())) if str(name).startswith("--")]
    return str(names[0]) if names else f"--{field.replace('_', '-')}"


def _as_word(value: object) -> str:
    return value.as_posix() if isinstance(value, Path) else str(value)


def with_sweep_options(
    *, without: tuple[str, ...] = ()
) -> Callable[[Callable[Concatenate[SweepOptions, P], None]], Callable[..., None]]:
    """Decorator of a command that takes `SweepOptions`: on the command line each field is an option of its own.

    Typer reads a command's options from its signature. That of the decorated command has a parameter for each field
    in the place of the first parameter, and then the command's own parameters.

    Args:
        without: fields that are no options of this command; they have their defaults.

    Raises:
        KeyError: a name in `without` is no field.
    """

    def decorate(command: Callable[Concatenate[SweepOptions, P], None]) -> Callable[..., None]:
        types = get_type_hints(SweepOptions, include_extras=True)
        options = {field.name: field.default for field in fields(SweepOptions)}
        for name in without:
            del options[name]
        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        kind = inspect.Parameter.KEYWORD_ONLY
        shared = [
            inspect.Parameter(name, kind, default=default, annotation=types[name]) for name, default in options.items()
        ]

        @functools.wraps(command)
        def called(**values: Any) -> None:
            given = SweepOptions(**{name: values.pop(name) for name in options})
            cast(Callable[..., None], command)(given, **values)

        parameters = [*shared, *(parameter.replace(kind=kind) for parameter in own)]
        cast(Any, called).__signature__ = inspect.Signature(parameters, return_annotation=None)
        return called

    return decorate
