"""The options of a sweep, each written once: its name, type, default, help text and check.

The fields of `SweepOptions` become the options of the command line (`command_line.typer_options`), the arguments of
`mp.sweep`, `mp.plan` and `mp.tune` (`reports.python_api`), and the command of a job (`as_words`). Values are checked
and converted when the model is created: `30m` and `50GB` become seconds and bytes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
)
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo

from meltpoint.sweeps.specification.tracking_uri import check_scheme, check_sign_in
from meltpoint.tasks.core.registry import unknown
from meltpoint.tasks.core.wording import shown

Searcher = Literal["auto", "gp", "tpe", "random", "grid"]
Overflow = Literal["on_the_fly", "bf16"]
SEARCHERS = get_args(Searcher)
MODELS = frozenset({"auto", "gp", "tpe"})
"""The searchers that learn from results."""

TRIALS, SEEDS = 8, 5
"""Defaults of a sweep without a specification file."""
MOST_AUTO_TRIALS = 16
"""The most trials of a cell with `--trials auto`."""
MOST_BY_GP = 32
"""The trials of a cell up to which `--searcher auto` is `gp`; the comparison was of 8 (docs/internals/log.md)."""
MOST_CPUS = 4096
"""The limit for one trial: more than any machine has."""
CACHE_BYTES = 50 * 10**9
"""The default `--cache-budget`: the states of BERT-base (13 layers of 768, bf16) for 2.5 million subword tokens."""
TIMES = {"s": 1, "m": 60, "h": 3600, "d": 86400}
SIZES = {"MB": 10**6, "GB": 10**9, "TB": 10**12}
LARGEST_SHARE = 0.02
"""The largest share of the training time since the last save that saving an epoch may take."""
REMEDIES = {
    "trials": "write a number of settings, or auto",
    "max_dev_examples": "write a number of examples, all, or auto",
    "price_per_hour": "write a number above 0, or omit it",
    "cpus_per_trial": f"write a number above 0 and at most {MOST_CPUS}",
    "gpus_per_trial": "write 0, a share such as 0.25, a number of GPUs, or auto",
    "max_workers": "write a number of at least 1, or omit it",
    "max_gpu_hours": "write a number above 0, or omit it",
    "time_budget": "write 90s, 30m, 2h or 1d",
    "cache_budget": "write 500MB, 50GB or 2TB; 0MB keeps nothing",
    "cache_keep": "write 500MB, 50GB or 2TB; 0MB keeps nothing",
    "notify": "write a web address that starts with https:// or http://",
}
"""An option with limits → the remedy for a value outside them."""
SHARE = "MELTPOINT_SAVING_SHARE"
"""The environment variable that sets another share: 0.1 loses less on machines that are often preempted."""


def largest_share() -> float:
    """The share that the environment sets, or otherwise the default.

    Raises:
        ValueError: the environment variable is not a number from 0 to 1.
    """
    said = os.environ.get(SHARE, str(LARGEST_SHARE))
    try:
        share = float(said)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"{SHARE}={said}: write a share from 0 to 1, such as 0.02.")
    return share


def _number(value: object, units: Mapping[str, int]) -> float:
    """A number, or a text such as `1.5h` or `50GB`, in seconds or bytes; -1 for any other value."""
    if isinstance(value, int | float):
        return float(value)
    number, unit = re.fullmatch(r"(.*?)([A-Za-z]{0,2})", str(value), re.DOTALL).groups()  # type: ignore[union-attr]
    try:
        return float(number) * (units.get(unit) or units[unit.upper()])
    except (ValueError, KeyError):
        return -1.0


def _bytes(value: object) -> int:
    size = _number(value, SIZES)
    return round(size) if size < float("inf") else -1


def in_units(value: float, units: Mapping[str, int]) -> str:
    """A value as typed, in the largest unit that gives a whole number: `10m`, `50GB`."""
    for unit, size in reversed(list(units.items())):
        if value % size == 0:
            return f"{value / size:.0f}{unit}"
    unit, size = next(iter(units.items()))
    return f"{value / size!r}{unit}"


def _uri(uri: str | None) -> str | None:
    if uri is not None:
        check_sign_in(uri)
        check_scheme(uri)
    return uri


def check_margin(points: float) -> float:
    """Check that `--margin` is above 0 and below 100 points.

    Raises:
        ValueError: one line with the remedy.
    """
    if not 0 < points < 100:
        raise ValueError(f"--margin {points:g}: write points above 0 and below 100, for example --margin 2.")
    return points


def check_cache_dir(text: str | None) -> str | None:
    """Check that `--cache-dir` is a folder on each node, not a URI.

    Raises:
        ValueError: one line with the remedy.
    """
    if text is not None and "://" in text:
        raise ValueError(f"--cache-dir {text}: name a folder on each node's disk; use an object store for --storage.")
    return text


def _text(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


def _words(value: object) -> object:
    return [_text(word) for word in value] if isinstance(value, list | tuple) else [_text(value)]


Text = Annotated[str, BeforeValidator(_text)]
Words = Annotated[list[str], BeforeValidator(_words)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds = Annotated[
    Positive,
    BeforeValidator(lambda value: _number(value, TIMES)),
    PlainSerializer(lambda value: in_units(value, TIMES)),
]
Bytes = Annotated[int, Field(ge=0), BeforeValidator(_bytes), PlainSerializer(lambda value: in_units(value, SIZES))]


@dataclass(frozen=True)
class Searched:
    """The options that define the search; changing one makes a different sweep. A `--spec` has its own defaults."""

    name: str | None = Field(
        default=None,
        description="The sweep's name; the same command resumes it. Default: the name of the task or --spec.",
    )
    encoder: Words | None = Field(
        default=None,
        description="A name of `list encoders`, hf:ID, hf:FOLDER, NAME=hf:FOLDER, elmo:FOLDER; use commas, or repeat.",
    )
    mode: Words | None = Field(
        default=None,
        description="feature_extraction (❄), fine_tuning (🔥) and stack_and_finetune (❄🔥) by default; others in `list "
        "modes`; ladder for all.",
    )
    task: Words | None = Field(default=None, description="A name from `list tasks`, or your own task.yaml.")
    spec: Text | None = Field(
        default=None, description="A whole specification: a name from `list specs`, or FILE.yaml."
    )
    replacing: Words | None = Field(
        default=None,
        description="WORD=ENCODER for a --spec: elmo=FOLDER locates an encoder, bert-base=minilm replaces one.",
    )
    head: str | None = Field(default=None, description="The head of every cell; by default, each mode has its own.")
    trials: int | Literal["auto"] | None = Field(
        default=None,
        description=f"Settings to try in each cell; auto: up to {MOST_AUTO_TRIALS} while they gain. Default: {TRIALS}, "
        "or the --spec's number.",
    )
    race: bool | None = Field(
        default=None,
        description="Give no further trials to modes and encoders unlikely to come within --margin of the best.",
    )
    seeds: int | None = Field(
        default=None, description=f"Seeds for each cell's best setting. Default: {SEEDS}, or the --spec's number."
    )
    searcher: Searcher | None = Field(
        default=None,
        description=f"How settings are proposed: gp, tpe, random or grid; auto (default): gp up to {MOST_BY_GP} "
        "trials, else tpe.",
    )
    default_finals: bool | None = Field(
        default=None,
        description="Also run the published setting with the same seeds; by default, only if this adds less than a "
        "tenth of the runs.",
    )
    space: Path | None = Field(default=None, description="A space file to use instead of the shipped spaces.")
    overrides: Words | None = Field(default=None, description="KEY=VALUE: fix a parameter, or give it a range in YAML.")
    data_dir: Path | None = Field(
        default=None,
        description="Folder of the original files, with a folder for each task. Default: download the data.",
    )
    max_train_examples: int | None = Field(
        default=None, description="Train on a random sample of this size, drawn with a fixed seed."
    )
    train_sizes: Words | None = Field(
        default=None,
        description="Compare training sizes, a cell for each; every sample contains the smaller ones: 64,256,1024,all.",
    )
    max_dev_examples: int | Literal["auto", "all"] = Field(
        default="auto",
        description="Score epochs on a dev sample of this size, or on all; auto samples if dev far exceeds train.",
    )
    test_from: str | None = Field(
        default=None, description="Split off a labelled test set: train[-1000:], dev[:10%], …; see docs/tasks.md."
    )
    seed: int = Field(default=0, description="Seed of the searcher and of the search trials.")
    margin: Annotated[float, AfterValidator(check_margin)] = Field(
        default=1.0,
        description="The cheapest mode that is shown to be within this many points of all others is recommended.",
    )
    price_per_hour: Positive | None = Field(
        default=None,
        description="Price of a GPU-hour (without a GPU, of an hour of a trial's CPUs); reports show the cost.",
    )


@dataclass(frozen=True)
class Resources:
    """The options of the machine, which may change between runs of one sweep because they do not affect the search.

    Their effects on numbers are recorded: threads and GPU affect the last bits (`HardwareRecord`), and so may a full
    cache (the trial's notes). Only `cache_overflow`, which may round cached states, is fixed for a sweep.
    """

    storage: Text = Field(default="runs", description="The folder of all sweeps; or s3://BUCKET/PREFIX, gs://….")
    tracking_uri: Annotated[str | None, AfterValidator(_uri)] = Field(
        default=None, description="An MLflow server, database or folder; by default SQLite in the storage."
    )
    address: Annotated[str | None, AfterValidator(lambda text: None if text == "local" else text)] = Field(
        default=None,
        description="A running Ray cluster: HOST:PORT, or auto (RAY_ADDRESS or this machine's). Default: a local one.",
    )
    cpus_per_trial: float = Field(default=1.0, gt=0, le=MOST_CPUS, description="CPUs for each trial.")
    gpus_per_trial: Annotated[float, Field(ge=0, allow_inf_nan=False)] | Literal["auto"] = Field(
        default="auto",
        description="GPUs for each trial: 0 uses the CPU, 0.25 shares a GPU, auto measures a share if Ray has GPUs.",
    )
    max_workers: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="The most trials at once; by default, all that the cluster has room for."
    )
    time_budget: Seconds | None = Field(
        default=None, description="The longest time for the search: 90s, 30m, 2h. Finals follow."
    )
    max_gpu_hours: Positive | None = Field(
        default=None, description="The search starts no trial after this many GPU-hours; finals follow."
    )
    log_to: Words | None = Field(
        default=None,
        description="Loggers in addition to MLflow: tensorboard, trackio, wandb, or your own FILE.py.",
    )
    notify: Annotated[str, Field(pattern=r"^https?://[^/\s]")] | None = Field(
        default=None, description="An http(s) address to post the result to, as JSON, when the command ends."
    )
    retry_failed: bool = Field(default=False, description="Run failed trials once more.")
    cache_budget: Bytes = Field(
        default=CACHE_BYTES, description="Disk space for the frozen states that trials share, for example 50GB."
    )
    cache_dir: Annotated[Text | None, AfterValidator(check_cache_dir)] = Field(
        default=None, description="A folder on each node for frozen states; by default, in the storage."
    )
    cache_overflow: Overflow = Field(
        default="on_the_fly",
        description="Frozen states that do not fit: on_the_fly computes them again, bf16 rounds them to fit.",
    )
    # Enough for a few small tasks: encoding a split again costs less than an epoch without a cache.
    cache_keep: Bytes = Field(
        default=200 * 10**6, description="Disk space for the frozen states that are kept when the sweep is done."
    )
    mix_code_versions: bool = Field(
        default=False, description="Resume a sweep that another version of Meltpoint started; tables say so."
    )
    grow: bool = Field(
        default=False, description="Add trials, seeds or cells to the sweep of that name; the rest is kept."
    )
    new_test_round: bool = Field(
        default=False, description="Continue a search after its test split was opened, as a new round; tables say so."
    )
    no_epoch_checkpoints: bool = Field(
        default=False, description="Do not save the epochs of long trials: a lost trial starts over."
    )
    budget_began: float | None = None
    """The `time.monotonic()` at which the time budget started; the budget then covers finals and test too. None: it
    covers only the search, from its first trial. Not an option: `tune` sets it."""

    def __post_init__(self) -> None:
        """Check the share in the environment before anything starts."""
        largest_share()

    @property
    def loggers(self) -> list[str]:
        """The names of `--log-to`, each once."""
        names = [name.strip() for word in self.log_to or [] for name in word.split(",")]
        return list(dict.fromkeys(filter(None, names)))

    @property
    def saving_share(self) -> float:
        """The share of training time that saving epochs may take (`SavingRule`); 0 saves none."""
        return 0.0 if self.no_epoch_checkpoints else largest_share()


@dataclass(frozen=True)
class SweepOptions(Resources, Searched):
    """The options of `sweep` and `plan`, in the order of the help."""


OPTIONS: dict[str, FieldInfo] = {
    name: field for name, field in cast(Any, SweepOptions).__pydantic_fields__.items() if field.description
}
"""An option's name as a Python argument → its field."""
_AS_TYPED = TypeAdapter(SweepOptions)


def bare(annotation: Any) -> Any:
    """A field's type without checks, and without a `None` that means "not given"."""
    if get_origin(annotation) is Annotated:
        return bare(get_args(annotation)[0])
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    members = [member for member in get_args(annotation) if member is not NoneType]
    return bare(members[0]) if len(members) == 1 else annotation


def checked_options(values: Mapping[str, Any]) -> SweepOptions:
    """The options for values as typed on the command line or given in Python.

    Raises:
        ValueError: an unknown name or an invalid value; one line.
    """
    for name in values:
        if name not in OPTIONS:
            raise unknown(name, "argument", OPTIONS)
    try:
        return SweepOptions(**values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name, value = str(first["loc"][0]) if first["loc"] else "", first["input"]
        if first["type"] == "value_error":
            raise ValueError(first["msg"].removeprefix("Value error, ")) from None
        if name in REMEDIES:
            raise ValueError(f"--{name.replace('_', '-')} {shown(values[name])}: {REMEDIES[name]}.") from None
        if first["type"] == "literal_error":
            raise unknown(str(value), name, get_args(bare(OPTIONS[name].annotation))) from None
        raise ValueError(f"{name} is {shown(value)}; {first['msg'][0].lower()}{first['msg'][1:]}.") from None


def as_typed(options: SweepOptions, all_of_them: bool = False) -> dict[str, Any]:
    """The options by name, as typed: `10m`, `50GB`. Options at their defaults are left out unless `all_of_them`."""
    given: dict[str, Any] = _AS_TYPED.dump_python(options, exclude_defaults=not all_of_them)
    return {name: value for name, value in given.items() if name in OPTIONS}
