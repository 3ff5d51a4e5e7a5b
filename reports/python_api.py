"""The functions of `import meltpoint as mp`: search, plan, and load sweeps and models from Python or a notebook."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from numbers import Number
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, get_origin

from meltpoint.reports.loaded_sweep import LoadedSweep
from meltpoint.sweeps.command_line.spec_from_options import asked_spec
from meltpoint.sweeps.command_line.submission import PYTHON
from meltpoint.sweeps.command_line.typer_options import HINTS, as_words
from meltpoint.sweeps.ledger.ledger import DATA, Ledger
from meltpoint.sweeps.machine.terminal import BAD_INPUT, DONE, show, tell
from meltpoint.sweeps.specification.sweep_options import Overflow, Searcher, SweepOptions, bare, checked_options
from meltpoint.sweeps.specification.sweep_spec import check_name
from meltpoint.tasks.core.files import expanded
from meltpoint.tasks.core.task import Split
from meltpoint.tasks.inspection.splits import SPLIT_WORDS, split_word

if TYPE_CHECKING:  # torch and pandas take seconds
    import pandas

    from meltpoint.adapters.exported_model import ExportedModel
    from meltpoint.sweeps.driver.plan import SweepPlan

Words = str | Sequence[str]
PathLike = str | Path
P = ParamSpec("P")
R = TypeVar("R")


TERMINAL_CLAIMS = ("FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""Variables with which a notebook's kernel claims that output goes to a terminal. With them, rich takes a pipe for one
and redraws its live table several times a second: thousands of lines in place of plain progress lines."""


class SweepFailedError(RuntimeError):
    """The error of a sweep that ended with a result missing, or was stopped.

    Attributes:
        exit_status: of the command.
        sweep: the part that exists; None if it never began.
    """

    def __init__(self, message: str, exit_status: int, found: LoadedSweep | None) -> None:
        super().__init__(message)
        self.exit_status, self.sweep = exit_status, found


def sweep(
    *, name: str | None = None, encoder: Words | None = None, mode: Words | None = None,
    task: Words | PathLike | None = None, spec: str | None = None, replacing: Words | None = None,
    head: str | None = None, trials: int | str | None = None, race: bool | None = None, seeds: int | None = None,
    searcher: Searcher | None = None, default_finals: bool | None = None, space: PathLike | None = None,
    overrides: Mapping[str, Any] | Words | None = None,
    data_dir: PathLike | None = None, max_train_examples: int | None = None, train_sizes: Words | None = None,
    max_dev_examples: int | str = "auto", test_from: str | None = None, seed: int = 0, margin: float = 1.0,
    price_per_hour: float | None = None,
    storage: PathLike = "runs", tracking_uri: str | None = None, address: str | None = None,
    cpus_per_trial: float = 1.0, gpus_per_trial: float | str = "auto", max_workers: int | None = None,
    time_budget: str | None = None, max_gpu_hours: float | None = None, log_to: Words | None = None,
    notify: str | None = None, retry_failed: bool = False,
    cache_budget: str = "50GB", cache_dir: str | None = None, cache_overflow: Overflow = "on_the_fly",
    cache_keep: str = "200MB",
    mix_code_versions: bool = False, grow: bool = False, new_test_round: bool = False,
    no_epoch_checkpoints: bool = False,
) -> LoadedSweep:  # fmt: skip
    """Run `meltpoint sweep` and load its result; the same call again resumes it where it was cut off.

    The arguments are the command's options, which `meltpoint sweep --help` explains; `replacing` is `--with`,
    `overrides` is `--set`: `{"epochs": 3}`.

    The search runs in its own process, so that it does not share Ray, signals or memory with the notebook. Its progress
    goes to standard error. An interrupt (the notebook's stop button, Ctrl-C) stops it cleanly: finished trials are
    kept.

    Raises:
        ValueError: bad input, as the command refuses it.
        SweepFailedError: it ended with status 1 or by a signal; `error.sweep` has what finished.
        KeyboardInterrupt: it was interrupted.
    """
    options = options_of(locals())
    name = options.name or asked_spec(options).name
    return _run_sweep(["sweep", *as_words(options)], options.storage, name)


def _folder_of(storage: PathLike) -> str:
    """A storage with `~` expanded, as the commands expand it."""
    return str(storage) if "://" in str(storage) else str(expanded(str(storage)))


def _run_sweep(words: Sequence[str], storage: str, name: str) -> LoadedSweep:
    """Run a command that runs a sweep, and load it."""
    status, message = _run([sys.executable, *PYTHON[1:], *words])
    place = f"{_folder_of(storage).rstrip('/')}/{name}"
    if status == BAD_INPUT:
        raise ValueError(message)
    if status != DONE:
        is_there = "://" in storage or (Path(place) / "sweep.json").exists()
        message = message or f"the sweep ended with status {status}"
        raise SweepFailedError(message, status, load_sweep(place) if is_there else None)
    return load_sweep(place)


def _takes_arguments_of(other: Callable[P, Any]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Give a function of `**arguments` the signature of another one, so that `help` and mypy show each argument."""

    def decorate(function: Callable[..., R]) -> Callable[P, R]:
        own = inspect.signature(function)
        signature = inspect.signature(other).replace(return_annotation=own.return_annotation)
        cast(Any, function).__signature__ = signature
        return cast(Callable[P, R], function)

    return decorate


@_takes_arguments_of(sweep)
def plan(**arguments: Any) -> SweepPlan:
    """Plan the sweep that the same arguments run: cells, trials, results already in the ledger, cost; trains nothing.

    Raises:
        ValueError: bad input, as the command refuses it.
    """
    from meltpoint.sweeps.command_line.spec_from_options import checked_spec
    from meltpoint.sweeps.driver.plan import plan_sweep

    options = options_of(arguments)
    return plan_sweep(checked_spec(options), options)


def tune(
    data: Any, *, text: Words | None = None, label: str | None = None, kind: str | None = None,
    group: str | None = None, test: Any = None, dev: Any = None, name: str | None = None,
    encoder: Words | None = None, mode: Words | None = None, trials: int | str | None = None, race: bool | None = None,
    seeds: int | None = None, overrides: Mapping[str, Any] | None = None, time_budget: str | None = None,
    margin: float = 1.0, storage: PathLike = "runs",
) -> LoadedSweep:  # fmt: skip
    """Run `meltpoint tune` on data, and load its result; the same call again resumes it.

    Args:
        data: a pandas frame, a `datasets.Dataset`, a pair (texts, labels), a path, or a dict of splits of these; data
            that is not in files is written to `STORAGE/NAME/data`.
        text: the text column, two for pairs; found if not named.
        label: the label column; found if not named.
        kind: of the task, such as `pair_classification` (docs/tasks.md); found if not named.
        group: the column of documents or authors, whose examples are split and resampled together.
        test, dev: these splits, if `data` has none; otherwise they are split off train.
        name: of the sweep; by default the training file's name, or a name unique to the data.
        trials: settings to try in each cell; by default "auto", at most 16 while they still gain.
        race: whether a mode that can no longer win gets no further trials; true by default.
        overrides: hyperparameters that are fixed or have another range, `{"epochs": 3}`; `--set` of the command.
        time_budget: `90s`, `10m`, `2h`; without `mode`, it also decides which modes take part.
        margin: points within which modes are level; the cheapest is then recommended.

    Raises:
        ValueError: bad input, as the command refuses it.
        SweepFailedError: it ended with status 1 or by a signal; `error.sweep` has what finished.
        KeyboardInterrupt: it was interrupted.
    """
    parts, place = splits_of(data, test, dev), _folder_of(storage)
    named = name or name_of(parts)
    check_name(named)
    if "://" in place:
        raise ValueError(f"storage {place}: tune keeps its data in a folder; write it to files there and use mp.sweep.")
    files = write_splits(parts, Path(place) / named / DATA)
    words = ["tune", str(files["train"]), *([str(files["test"])] if "test" in files else [])]
    words += [f"--dev={files['dev']}"] if "dev" in files else []
    columns = [] if text is None else [text] if isinstance(text, str | int) else text
    words += [f"--text={column}" for column in columns]
    asked = {"label": label, "kind": kind, "group": group}
    words += [f"--{option}={value}" for option, value in asked.items() if value is not None]
    common = options_of({
        "name": named, "encoder": encoder, "mode": mode, "trials": trials, "race": race, "seeds": seeds,
        "overrides": overrides, "time_budget": time_budget, "margin": margin, "storage": storage,
    })  # fmt: skip
    words += as_words(common)
    return _run_sweep(words, place, named)


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
        ValueError: it is not such a folder, one of its files is damaged, or the device is not available.
    """
    from meltpoint.adapters.exported_model import load_folder

    return load_folder(expanded(str(folder)), device)


def options_of(arguments: Mapping[str, Any]) -> SweepOptions:
    """The options that keyword arguments name.

    Raises:
        ValueError: an unknown argument; close matches are listed.
    """
    return checked_options({name: _value(name, value) for name, value in arguments.items() if value is not None})


def _value(name: str, value: Any) -> Any:
    """A value in the form of its option, so that a table is not read as the names of its columns.

    Raises:
        ValueError: the value has another form; the message gives the right one.
    """
    if name == "overrides" and isinstance(value, Mapping):
        return [f"{key}={_yaml(each)}" for key, each in value.items()]
    is_list = name in HINTS and get_origin(bare(HINTS[name])) is list
    for each in value if is_list and isinstance(value, list | tuple) else [value]:
        if isinstance(each, str | os.PathLike | bool | Number):
            continue
        wanted = "a dict" if name == "overrides" else "a word or a list of words" if is_list else "one word or number"
        data = "; pass data to mp.tune(data), or draft a task with `meltpoint new-task train.csv --out reviews.yaml`"
        raise ValueError(f"{name} is a {type(each).__name__}; write {wanted}{data if name == 'task' else ''}.")
    return value


def _yaml(value: Any) -> str:
    """A value on one line, as `--set` reads it."""
    import yaml

    from meltpoint.search_spaces.documents import Writer

    text: str = yaml.dump(value, Dumper=Writer, default_flow_style=True, width=float("inf"))
    return text.removesuffix("...\n").strip()


def _run(words: Sequence[str]) -> tuple[int, str]:
    """Run a command, passing its output on line by line to this process's standard error.

    On an error or interrupt, the command is told to stop and waited for. In a notebook, `sys.stderr` is the cell's
    output, which a child process cannot write to by itself.

    Returns:
        Its status, and its last error line.
    """
    message = ""
    environment = {name: value for name, value in os.environ.items() if name not in TERMINAL_CLAIMS}
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, encoding="utf-8",
        errors="replace", start_new_session=True, env=environment,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        for line in process.stdout:
            show(line, err=True)
            if line.startswith("meltpoint: "):
                message = line.removeprefix("meltpoint: ").strip()
        return process.wait(), message
    except BaseException:
        process.send_signal(signal.SIGINT)
        for line in process.stdout:  # its last tables may be more than a pipe holds
            show(line, err=True)
        process.wait()
        raise


# The data of `mp.tune` as files: frames, datasets, pairs of texts and labels, or paths.

WANTED = (
    "a pandas frame, a datasets.Dataset, a pair (texts, labels), a path, or a dict of splits of these, as in "
    '{"train": frame, "test": frame}'
)


def splits_of(data: Any, test: Any = None, dev: Any = None) -> dict[Split, Path | str]:
    """Split → the path of its file, or the JSON lines to write to one.

    Raises:
        ValueError: data of another form, an unknown split, or none to train on.
    """
    parts: dict[Split, Any] = {}
    is_of_splits = isinstance(data, Mapping) and bool(set(data) & set(SPLIT_WORDS))
    for name, part in data.items() if is_of_splits else [("train", data)]:
        split = split_word(str(name))
        if split is None and not hasattr(part, "features"):  # a DatasetDict of the hub may have others
            raise ValueError(f"data has an unknown split {name!r}; name the splits train, dev and test.")
        if split is None or split in parts:  # of MNLI's validation_matched and …_mismatched, the first is read
            tell(f"Note    the split {name} is not read", err=True)
        else:
            parts[split] = part
    named: dict[Split, Any] = {"test": test, "dev": dev}
    for split, part in named.items():
        if part is not None and split in parts:
            raise ValueError(f"{split} is given twice: in data, and as an argument; leave one out.")
        parts |= {} if part is None else {split: part}
    if "train" not in parts:
        raise ValueError("data has no split train; name it, as in {'train': frame, 'test': frame}.")
    return {
        split: Path(part) if isinstance(part, str | os.PathLike) else _lines(_frame(part, split))
        for split, part in parts.items()
    }


def name_of(parts: Mapping[Split, Path | str]) -> str:
    """The name of a sweep without one: its training file's, or a name unique to the data."""
    train = parts["train"]
    if isinstance(train, Path):
        return re.sub(r"[^A-Za-z0-9_-]+", "-", train.name.partition(".")[0]).strip("-_") or "data"
    return f"data-{hashlib.sha256(train.encode()).hexdigest()[:8]}"


def write_splits(parts: Mapping[Split, Path | str], folder: Path) -> dict[Split, Path]:
    """Split → its file; data not yet in a file, and files in another format beside it, go to `FOLDER/SPLIT.jsonl`.

    Raises:
        ValueError: the file exists and holds other data, with which the sweep has begun.
    """
    files: dict[Split, Path] = {}
    begun = Ledger(folder.parent).has_begun("test" in parts)
    is_mixed = any(isinstance(part, str) for part in parts.values())
    for split, part in parts.items():
        if isinstance(part, Path) and is_mixed and part.suffix != ".jsonl":
            part = _lines(_frame(part, split))
        files[split] = path = part if isinstance(part, Path) else folder / f"{split}.jsonl"
        if isinstance(part, Path):
            continue
        if begun and path.exists() and path.read_text(encoding="utf-8") != part:
            raise ValueError(f"{path} holds other data; choose another name, or remove that sweep.")
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(part, encoding="utf-8")
    return files


def _frame(part: Any, split: str) -> pandas.DataFrame:
    """The frame of one split."""
    import pandas

    if isinstance(part, str | os.PathLike):
        from meltpoint.sweeps.results.text_files import ROWS, read_pieces

        return pandas.concat(list(read_pieces(Path(part), ROWS)))
    if isinstance(part, pandas.DataFrame):
        return part
    if hasattr(part, "to_pandas") and hasattr(part, "features"):
        part = part.with_format(None)
        return pandas.DataFrame({name: _named(part[name], feature) for name, feature in part.features.items()})
    if isinstance(part, tuple) and len(part) == 2:
        if len(part[0]) != len(part[1]):
            raise ValueError(f"{split} has {len(part[0])} texts and {len(part[1])} labels; give one label a text.")
        texts, labels = list(part[0]), list(part[1])
        is_pairs = bool(texts) and isinstance(texts[0], list) and not isinstance(labels[0], list)
        if texts and (isinstance(texts[0], tuple) or (is_pairs and all(len(one) == 2 for one in texts))):
            return pandas.DataFrame({"text_a": [a for a, _ in texts], "text_b": [b for _, b in texts], "label": labels})
        is_words = bool(texts) and isinstance(texts[0], list)
        return pandas.DataFrame({"words": texts, "tags": labels} if is_words else {"text": texts, "label": labels})
    if isinstance(part, Mapping):
        return pandas.DataFrame(part)
    raise ValueError(f"{split} is a {type(part).__name__}; pass {WANTED}.")


def _named(values: Any, feature: Any) -> list[Any]:
    """A column of a dataset with the names of its classes in place of their numbers; -1 is no label."""
    inner = getattr(feature, "feature", feature)
    names = getattr(inner, "names", None)
    if not names:
        return list(values)

    def name(value: Any) -> Any:
        if isinstance(value, list):
            return [name(one) for one in value]
        return None if value is None or value < 0 else names[value]

    return [name(value) for value in values]


def _lines(frame: pandas.DataFrame) -> str:
    text: str = frame.to_json(orient="records", lines=True, force_ascii=False)
    return text if text.endswith("\n") else text + "\n"
