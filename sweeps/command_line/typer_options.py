"""Typer options: those of a sweep, built from `SweepOptions`, and others that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Concatenate, Literal, ParamSpec, Union, cast, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo

from meltpoint.sweeps.specification.sweep_options import (
    OPTIONS,
    Bytes,
    Resources,
    Seconds,
    SweepOptions,
    as_typed,
    bare,
    checked_options,
)

P = ParamSpec("P")


TableFormat = Literal["md", "html", "csv", "json", "tex"]
"""Formats that `report` writes."""
ExportFormat = Literal["yaml", "json"]
"""Formats that `export` writes."""
Listable = Literal["encoders", "modes", "tasks", "heads", "tricks", "spaces", "specs", "sweeps"]
"""Arguments of `list`."""

HINTS = get_type_hints(SweepOptions, include_extras=True)
DEFAULTS = as_typed(SweepOptions(), all_of_them=True)
MACHINE = {field.name for field in fields(Resources)}
WORDS = {"replacing": "with", "overrides": "set"}
"""Python argument → its word on the command line, where that word is a keyword or built-in name in Python."""


def option_of(name: str, description: str | None = None) -> OptionInfo:
    """The Typer option for a field of `SweepOptions`.

    Args:
        description: a help text that replaces the field's own.
    """
    field, word = OPTIONS[name], WORDS.get(name, name).replace("_", "-")
    is_switch = bare(field.annotation) is bool and field.default is None
    panel = "Where it runs" if name in MACHINE else "What is searched"
    flags = f"--{word}/--no-{word}" if is_switch else f"--{word}"
    # A short metavar: types such as `<tpe|random|grid>` would truncate long option names at 80 columns.
    kind = bare(_typed_as(name))
    metavar = None if kind is bool else "N" if kind in (int, float) else "PATH" if kind is Path else "TEXT"
    option: OptionInfo = typer.Option(
        flags, help=description or field.description, rich_help_panel=panel, metavar=metavar
    )
    return option


def _typed_as(name: str) -> Any:
    """The type with which Typer reads an option: `str` if the model parses the text, for example `30m` or `auto`."""
    hint = HINTS[name]
    kind = bare(hint)
    if get_origin(kind) in (Union, UnionType) or any(one in (hint, *get_args(hint)) for one in (Seconds, Bytes)):
        kind = str
    return kind if OPTIONS[name].default is not None else kind | None


NameArgument = Annotated[str, typer.Argument(help="The sweep's name.", show_default=False)]
AnalysesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="ANALYSIS…",
        show_default=False,
        help="diagnostic_classifiers, genres, guidelines, mutual_information, sizes, suspects.",
    ),
]

Name = Annotated[str, option_of("name", "The sweep's name; the same command resumes it.")]
Encoders = Annotated[list[str] | None, option_of("encoder")]
Tasks = Annotated[list[str] | None, option_of("task")]
DataDir = Annotated[Path | None, option_of("data_dir")]
MaxTrainExamples = Annotated[int | None, option_of("max_train_examples")]
Storage = Annotated[str, option_of("storage")]
CacheDir = Annotated[str | None, option_of("cache_dir")]
TrackingUri = Annotated[str | None, option_of("tracking_uri")]
Address = Annotated[str | None, option_of("address")]

Group = Annotated[
    str,
    typer.Option(
        "--group", help="The column of documents or authors; examples of one group stay together.", show_default=False
    ),
]
JobAddress = Annotated[
    str | None,
    typer.Option(
        "--address", help="The cluster's dashboard, http://HOST:8265. Default: RAY_API_SERVER_ADDRESS.",
        rich_help_panel="Where it runs",
    ),
]  # fmt: skip
AsJson = Annotated[bool, typer.Option("--json", help="Print only one JSON document on standard output.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show each cell, its searched parameters, and every note.")]
Beside = Annotated[
    str | None, typer.Option("--beside", help="A paper's table to show next to yours, for example to_tune_or_not.")
]


def as_words(options: SweepOptions) -> list[str]:
    """The command-line words for these options; options at their defaults are left out."""
    words: list[str] = []
    for name, value in as_typed(options).items():
        flag, _, negation = str(option_of(name).default).partition("/")
        if isinstance(value, bool):
            words.append(flag if value else negation)
        else:
            values = value if isinstance(value, list) else [value]
            words += [f"{flag}={each.as_posix() if isinstance(each, Path) else each}" for each in values]
    return words


def with_sweep_options(
    *, only: Collection[str] = OPTIONS, without: Collection[str] = (), texts: Mapping[str, str] | None = None
) -> Callable[[Callable[Concatenate[SweepOptions, P], None]], Callable[..., None]]:
    """Decorator for a command that takes `SweepOptions`: on the command line, each field is a separate option.

    Typer reads a command's options from its signature. The decorated command's signature replaces the first parameter
    by one parameter per field, followed by the command's own parameters.

    Args:
        only: the fields that are options of this command; the others keep their defaults.
        without: fields that are not options.
        texts: field → the command's own help for it.
    """
    names = [name for name in OPTIONS if name in only and name not in without]
    kind = inspect.Parameter.KEYWORD_ONLY
    own_texts = texts or {}
    types = {name: Annotated[_typed_as(name), option_of(name, own_texts.get(name))] for name in names}
    shared = [inspect.Parameter(name, kind, default=DEFAULTS[name], annotation=types[name]) for name in names]

    def decorate(command: Callable[Concatenate[SweepOptions, P], None]) -> Callable[..., None]:
        _, *own = inspect.signature(command, eval_str=True).parameters.values()

        @functools.wraps(command)
        def called(**values: Any) -> None:
            given = checked_options({name: values.pop(name) for name in names})
            cast(Callable[..., None], command)(given, **values)

        parameters = [*shared, *(parameter.replace(kind=kind) for parameter in own)]
        cast(Any, called).__signature__ = inspect.Signature(parameters, return_annotation=None)
        return called

    return decorate
