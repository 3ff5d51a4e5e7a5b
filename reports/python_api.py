"""The functions of `import meltpoint as mp`: search, plan, and load sweeps and models from Python or a notebook."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from enum import StrEnum
from numbers import Number
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from meltpoint.reports.loaded_sweep import LoadedSweep
from meltpoint.sweeps.command_line.errors import BAD_INPUT, DONE
from meltpoint.sweeps.command_line.options import Overflow, SearcherName, SweepOptions, as_words
from meltpoint.sweeps.command_line.spec_from_options import asked_spec
from meltpoint.sweeps.command_line.submission import PYTHON
from meltpoint.sweeps.machine.terminal import show
from meltpoint.tasks.core.registry import unknown

if TYPE_CHECKING:  # torch, which takes seconds
    from meltpoint.adapters.exported_model import ExportedModel
    from meltpoint.sweeps.driver.plan import SweepPlan

Words = str | Sequence[str]
PathLike = str | Path


class SweepArguments(TypedDict, total=False):
    """The options of the command `sweep`, by its names with `_` for `-`; `replacing` is `--with`, `overrides` `--set`.

    `meltpoint sweep --help` explains each. One word or a list of words where an option repeats.
    """

    name: str
    encoder: Words
    mode: Words
    task: Words
    spec: str
    replacing: Words
    head: str
    trials: int
    seeds: int
    searcher: Literal["tpe", "random", "grid"]
    default_finals: bool
    space: PathLike
    overrides: Words
    data_dir: PathLike
    max_train_examples: int
    max_dev_examples: int
    test_from: str
    seed: int
    margin: float
    storage: PathLike
    tracking_uri: str
    address: str
    cpus_per_trial: float
    gpus_per_trial: float | str
    max_workers: int
    time_budget: str
    retry_failed: bool
    cache_budget: str
    cache_dir: str
    cache_overflow: Literal["on_the_fly", "bf16"]
    cache_keep: str
    mix_code_versions: bool
    grow: bool
    new_test_round: bool
    no_epoch_checkpoints: bool
    register: bool


LISTS = ("encoder", "mode", "task", "replacing", "overrides")
PATHS = ("space", "data_dir")
TEXTS = ("storage", "gpus_per_trial")
EXAMPLES = {
    "encoder": ["bert-base", "minilm"], "mode": ["feature_extraction", "fine_tuning"], "task": "reviews.yaml",
    "replacing": ["bert-base=minilm"], "overrides": ["epochs=3", "dropout=0.1"],
    "test_from": "{from: train, fraction: 0.1, seed: 0}",
}  # fmt: skip
"""What to write for arguments that are given as tables or mappings."""
TERMINAL_CLAIMS = ("FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""Variables by which a notebook's kernel says that output goes to a terminal."""
ENUMS: Mapping[str, type[StrEnum]] = {"searcher": SearcherName, "cache_overflow": Overflow}


class SweepFailedError(RuntimeError):
    """A sweep that ended without a result somewhere, or was stopped.

    Attributes:
        exit_status: of the command.
        sweep: what there is of it; None where it never began.
    """

    def __init__(self, message: str, exit_status: int, found: LoadedSweep | None) -> None:
        super().__init__(message)
        self.exit_status, self.sweep = exit_status, found


def sweep(**arguments: Unpack[SweepArguments]) -> LoadedSweep:
    """Run `meltpoint sweep` and load its result; the same call again goes on where it was cut off.

    The search runs in a process of its own, so that Ray, signals and memory are not the notebook's. Its progress comes
    on standard error. An interrupt (the notebook's stop button, Ctrl-C) stops it cleanly: what finished is kept.

    Raises:
        ValueError: bad input, as the command refuses it.
        SweepFailedError: it ended with status 1 or by a signal; `error.sweep` has what finished.
        KeyboardInterrupt: it was interrupted.
    """
    options = options_of(arguments)
    name = options.name or asked_spec(options).name
    last = _run([sys.executable, *PYTHON[1:], "sweep", *as_words(options)])
    place = Path(options.storage) / name if "://" not in options.storage else None
    where = str(place) if place is not None else f"{options.storage.rstrip('/')}/{name}"
    if last.status == BAD_INPUT:
        raise ValueError(last.message)
    if last.status != DONE:
        found = load_sweep(where) if place is None or (place / "sweep.json").exists() else None
        raise SweepFailedError(last.message or f"the sweep ended with status {last.status}", last.status, found)
    return load_sweep(where)


def plan(**arguments: Unpack[SweepArguments]) -> SweepPlan:
    """The plan of the sweep that the same arguments run: cells, trials, what the ledger answers, cost; trains nothing.

    Raises:
        ValueError: bad input, as the command refuses it.
    """
    from meltpoint.sweeps.command_line.option_values import resources_of
    from meltpoint.sweeps.command_line.spec_from_options import checked_spec
    from meltpoint.sweeps.driver.plan import plan_sweep

    options = options_of(arguments)
    return plan_sweep(checked_spec(options), resources_of(options))


def load_sweep(place: PathLike) -> LoadedSweep:
    """A sweep from its folder, `runs/NAME` or `s3://BUCKET/PREFIX/NAME`, finished or not.

    Raises:
        ValueError: there is no sweep, or one of its files is damaged.
    """
    return LoadedSweep.at(str(place))


def load_model(folder: PathLike, device: str = "cpu") -> ExportedModel:
    """A finalist from the folder that `meltpoint export --model` wrote; its `predict` takes a list of texts.

    Args:
        device: `cpu`, `cuda` or `cuda:0`.

    Raises:
        ValueError: it is not such a folder, one of its files is damaged, or the device is not there.
    """
    from meltpoint.adapters.exported_model import load_folder

    return load_folder(str(folder), device)


def options_of(arguments: Mapping[str, Any]) -> SweepOptions:
    """The options that keyword arguments stand for.

    Raises:
        ValueError: an unknown argument; near misses are named.
    """
    known = [field.name for field in fields(SweepOptions)]
    for name in arguments:
        if name not in known:
            raise unknown(name, "argument", known)
    return SweepOptions(**{name: _value(name, value) for name, value in arguments.items() if value is not None})


def _value(name: str, value: Any) -> Any:
    if name in LISTS and isinstance(value, list | tuple):
        return [str(_one(name, word)) for word in value]
    _one(name, value)
    if name in LISTS:
        return [str(value)]
    if name in PATHS:
        return Path(value)
    if name in TEXTS:
        return str(value)
    if name in ENUMS:
        words = [str(word) for word in ENUMS[name]]
        if value not in words:
            raise unknown(str(value), name, words)
        return ENUMS[name](value)
    return value


def _one(name: str, value: Any) -> Any:
    """A text, path, number or truth value; a table or a mapping would give the names of its columns or keys.

    Raises:
        ValueError: anything else; the message has the right form.
    """
    if isinstance(value, str | os.PathLike | bool | Number):
        return value
    listed = "a word or a list of words" if name in LISTS else "one word or number"
    example = f", as in {name}={EXAMPLES[name]!r}" if name in EXAMPLES else ""
    data = "; data go into a file, which `meltpoint new-task train.csv --out reviews.yaml` makes a task of"
    raise ValueError(f"{name} is a {type(value).__name__}; write {listed}{example}{data if name == 'task' else ''}.")


class _Ended:
    """The end of a command: its status, and its last line of an error."""

    def __init__(self) -> None:
        self.status, self.message = 0, ""


def _run(words: Sequence[str]) -> _Ended:
    """Run a command, passing its output on line by line to this process's standard error.

    `sys.stderr` is a notebook's cell there, which a child process does not write to by itself.
    """
    ended = _Ended()
    with _process(words) as process:
        assert process.stdout is not None
        for line in process.stdout:
            show(line, err=True)
            if line.startswith("meltpoint: "):
                ended.message = line.removeprefix("meltpoint: ").strip()
        ended.status = process.wait()
    return ended


def _without_terminal() -> dict[str, str]:
    """The environment without a claim that output goes to a terminal.

    ipykernel sets FORCE_COLOR for what runs in a cell. rich then takes the pipe for a terminal, and draws its live
    table anew several times a second, thousands of lines in the notebook, in place of plain lines of progress.
    """
    return {name: value for name, value in os.environ.items() if name not in TERMINAL_CLAIMS}


@contextmanager
def _process(words: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A child process that ends with the block: after an interrupt it is asked to stop, and waited for."""
    import signal

    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, encoding="utf-8",
        errors="replace", start_new_session=True, env=_without_terminal(),
    )  # fmt: skip
    try:
        yield process
    except BaseException:
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        for line in process.stdout:  # its last tables may be more than a pipe holds
            show(line, err=True)
        process.wait()
        raise
