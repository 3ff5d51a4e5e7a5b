"""Values of options: durations, sizes, resources, and the question before a sweep grows."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from meltpoint.adapters.families.reference import encoder_word
from meltpoint.adapters.training.epochs import largest_share
from meltpoint.sweeps.command_line.options import SweepOptions
from meltpoint.sweeps.machine.terminal import tell
from meltpoint.sweeps.specification.sweep_spec import Resources, SweepSpec
from meltpoint.sweeps.specification.tracking_uri import check_scheme, check_sign_in
from meltpoint.tasks.core.files import expanded, is_folder
from meltpoint.tasks.core.wording import plural, some

if TYPE_CHECKING:
    from meltpoint.sweeps.ledger.ledger import Ledger


def asked_to_grow(spec: SweepSpec, resources: Resources) -> Resources:
    """The resources, with `grow` where a person at the terminal agrees to it.

    Without a terminal nothing is asked: then `--grow` has to say it, and a sweep that asks for more is refused.

    Raises:
        ValueError: the person does not agree; nothing was changed.
    """
    if resources.grow or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return resources
    from meltpoint.sweeps.ledger.ledger import Ledger
    from meltpoint.sweeps.results.sweep_file import read_sweep
    from meltpoint.sweeps.storage.files import storage_folder

    ledger = Ledger(storage_folder(resources.storage) / spec.name)
    if not ledger.specification.exists():
        return resources
    then = read_sweep(ledger).spec
    if not spec.growth(then) or spec.differences(then, may_grow=True):
        return resources  # nothing to ask; or refused later, with all that differs
    import typer

    for line in question(ledger, then, spec):
        tell(line, err=True)
    if not typer.confirm("Go on?", err=True):
        raise ValueError(f"Nothing was changed; the sweep '{spec.name}' is as it was.")
    return replace(resources, grow=True)


def question(ledger: Ledger, then: SweepSpec, now: SweepSpec) -> list[str]:
    """The additions, the most work that they are, and the cells that stay closed; a line each."""
    from meltpoint.sweeps.results.summary import summarise

    lines = [f"The sweep '{now.name}' grows: {'; '.join(now.growth(then))}.", f"{added_work(then, now)}."]
    closed = [".".join(cell.header.key) for cell in summarise(ledger).cells if cell.closing is not None]
    if closed:
        names = f"{', '.join(closed[:3])}{', …' if len(closed) > 3 else ''}"
        lines.append(
            f"{some(len(closed), 'cell')} {'stays' if len(closed) == 1 else 'stay'} closed to more search trials, "
            f"because test was opened ({names}); --new-test-round searches on."
        )
    return lines


def added_work(then: SweepSpec, now: SweepSpec) -> str:
    """The number of cells that join, and the most search trials and finals that are added, in words."""
    # A block is no mapping: its `keys` are a method of its own.
    old, new = ({key: block for block in spec.products() for key in block.keys()} for spec in (then, now))  # noqa: SIM118
    joining = [key for key in new if key not in old]
    trials = sum(block.trials - (old[key].trials if key in old else 0) for key, block in new.items())
    seeds = sum(block.seeds - (old[key].seeds if key in old else 0) for key, block in new.items())
    finals = 2 * seeds if now.default_finals else seeds
    return (
        f"{some(len(joining), 'cell')} {'joins' if len(joining) == 1 else 'join'}; at most {trials} more search "
        f"{plural('trial')} and {finals} more finals"
    )


MOST_CPUS = 4096
"""Of one trial: more than any machine has."""


def resources_of(options: SweepOptions) -> Resources:
    """The resources of a sweep, by its options.

    Raises:
        ValueError: a share, time or size that cannot be read, or is none, on the command line or in the environment.
    """
    if not 0 < options.cpus_per_trial <= MOST_CPUS:
        raise ValueError(f"--cpus-per-trial {options.cpus_per_trial:g}: above 0, at most {MOST_CPUS}.")
    if options.max_workers is not None and options.max_workers < 1:
        raise ValueError(f"--max-workers {options.max_workers}: at least 1, or leave it out.")
    if options.tracking_uri is not None:
        check_sign_in(options.tracking_uri)
        check_scheme(options.tracking_uri)
    return Resources(
        storage=options.storage,
        tracking_uri=options.tracking_uri,
        address=None if options.address == "local" else options.address,
        cpus=options.cpus_per_trial,
        gpus=gpus_of(options.gpus_per_trial),
        time_budget_seconds=None if options.time_budget is None else seconds_of(options.time_budget),
        retry_failed=options.retry_failed,
        cache_bytes=bytes_of("--cache-budget", options.cache_budget),
        cache_overflow=options.cache_overflow.value,
        cache_dir=cache_dir_of(options.cache_dir),
        cache_keep_bytes=bytes_of("--cache-keep", options.cache_keep),
        mix_code_versions=options.mix_code_versions,
        grow=options.grow,
        new_test_round=options.new_test_round,
        saving_share=0.0 if options.no_epoch_checkpoints else largest_share(),
        max_workers=options.max_workers,
        register=options.register,
    )


def cache_dir_of(text: str | None) -> str | None:
    """A folder of each node: an absolute path, or one that begins with `~`, the home on the node that uses it.

    Raises:
        ValueError: a URI, which is no folder of a node.
    """
    if text is None or text.startswith("~"):
        return text
    if "://" in text:
        raise ValueError(f"--cache-dir {text}: a folder of each node's own disk; leave an object store to --storage.")
    return str(Path(text).absolute())


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
    if not 0 < value < float("inf"):
        raise ValueError(f"--time-budget {text!r}: write 90s, 30m, 2h or 1d.")
    return value


def margin_of(points: float) -> float:
    """`--margin` in points as a fraction.

    Raises:
        ValueError: no number of points above 0, or as many as all.
    """
    if not 0 < points < 100:
        raise ValueError(f"--margin {points:g}: write points above 0 and below 100, as in --margin 2.")
    return points / 100


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


def dev_examples_of(text: str) -> int | Literal["auto"] | None:
    """The value of `--max-dev-examples`; None for all of dev.

    Raises:
        ValueError: neither a number nor `auto` nor `all`.
    """
    if text in ("auto", "all"):
        return "auto" if text == "auto" else None
    if not re.fullmatch(r"-?\d{1,18}", text):
        raise ValueError(f"--max-dev-examples {text}: a number of examples, all, or auto.")
    return int(text)


def bytes_of(option: str, text: str) -> int:
    """`500MB`, `50GB` or `2TB` in bytes.

    Raises:
        ValueError: anything else; the message names the option.
    """
    units = {"MB": 10**6, "GB": 10**9, "TB": 10**12}
    try:
        value = float(text[:-2]) * units[text[-2:].upper()]
    except (ValueError, KeyError):
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(f"{option} {text!r}: write 500MB, 50GB or 2TB; 0MB keeps nothing.")
    return int(value)


def split_at_commas(texts: Sequence[str]) -> tuple[str, ...]:
    """The names in the values of a repeated option: `--task a,b --task c` has three. No name can hold a comma."""
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


def task_names(texts: Sequence[str]) -> tuple[str, ...]:
    """The names of `--task`; a task file by its absolute path, because workers may run in another folder."""
    return tuple(
        str(Path(name).absolute()) if name.endswith((".yaml", ".yml")) else name for name in split_at_commas(texts)
    )


def encoder_names(texts: Sequence[str]) -> tuple[str, ...]:
    """The names of `--encoder`; folders by their absolute paths, because workers may run in another folder."""
    return tuple(encoder_name(name) for name in split_at_commas(texts))


def encoder_name(text: str) -> str:
    """An encoder's name: the folder of `FAMILY:FOLDER#VARIANT` by its absolute path, any other name as it is.

    A short name before it (`NAME=FAMILY:FOLDER`) stays.
    """
    word = encoder_word(text)
    label = text[: len(text) - len(word)]
    family, _, source = word.partition(":")
    folder, mark, variant = source.partition("#")
    path = expanded(folder)
    return f"{label}{family}:{path.resolve()}{mark}{variant}" if folder and is_folder(path) else text
