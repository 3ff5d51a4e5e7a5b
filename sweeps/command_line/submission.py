"""A sweep for a cluster, from the options of `submit`: checked here as far as possible, with its command to run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from meltpoint.adapters.families import encoder_word
from meltpoint.sweeps.command_line.spec_from_options import asked_spec, split_at_commas
from meltpoint.sweeps.command_line.typer_options import as_words
from meltpoint.sweeps.specification.early_checks import check_spec
from meltpoint.sweeps.specification.sweep_options import SweepOptions
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.specification.tracking_uri import redacted
from meltpoint.tasks.core.files import expanded, is_folder
from meltpoint.tasks.core.registry import is_task_file

SENT = "submitted"
"""The folder of the files sent with a job, below the job's working folder."""

PYTHON = ("python", "-m", "meltpoint.launch")
"""Meltpoint on a cluster node. The console script would not find a package that was sent with the job."""


@dataclass(frozen=True)
class Submission:
    """A sweep to send to a cluster.

    Attributes:
        spec: the specification.
        words: the options of `sweep` on the cluster.
        files: path below the job's working folder → local file.
    """

    spec: SweepSpec
    words: tuple[str, ...]
    files: Mapping[str, Path]

    @property
    def command(self) -> str:
        """The shell command on the cluster. `exec` lets signals reach Python instead of the shell."""
        return shlex.join(["exec", *PYTHON, "sweep", *self.words])


def submission(options: SweepOptions) -> Submission:
    """Build the sweep to submit from its options; on the cluster, it joins the running Ray.

    The files of `--spec` and `--space` are sent with the job. Folders, data and task files must be on the cluster.

    Raises:
        ValueError: any fault that `sweep` would report, a path that is not on the cluster, or a password, which
            everyone who can see the job could read; one line with the remedy.
    """
    _check_secrets(options)
    check_storage(options.storage)
    _check_places(options)
    spec = asked_spec(options)
    _check_task_files(spec.task_words())
    check_spec(spec, is_elsewhere)
    changed, files = _taken_along(options)
    return Submission(spec, tuple(as_words(replace(changed, address="auto"))), files)


def _taken_along(options: SweepOptions) -> tuple[SweepOptions, dict[str, Path]]:
    """The options with the paths of `--spec` and `--space` on the cluster, and those files."""
    files: dict[str, Path] = {}
    if options.space is not None:
        name = f"{SENT}/space/{options.space.name}"
        files[name] = options.space
        options = replace(options, space=Path(name))
    if options.spec is not None and is_task_file(options.spec):
        name = f"{SENT}/spec/{Path(options.spec).name}"
        files[name] = Path(options.spec)
        options = replace(options, spec=name)
    return options, files


def check_storage(storage: str) -> None:
    """Check that a storage is a URI or an absolute path on the cluster.

    Raises:
        ValueError: it is neither; one line with the remedy.
    """
    if not is_absolute(storage) and "://" not in storage:
        raise ValueError(
            f"--storage {storage}: name a folder that every node of the cluster sees by its absolute path, for example "
            "--storage /mnt/sweeps."
        )


def is_absolute(path: str) -> bool:
    """True if a path is absolute on a cluster, which runs Linux, even if this machine does not."""
    return PurePosixPath(path.replace("\\", "/")).is_absolute()


def is_elsewhere(word: str) -> bool:
    """True for an encoder's folder, a task file or a data folder on the cluster."""
    return is_task_file(word) or is_absolute(word) or is_absolute(encoder_word(word).partition(":")[2])


def _check_secrets(options: SweepOptions) -> None:
    """Check that no option contains a password: everyone who sees the dashboard can read a job's command."""
    for word in as_words(options):
        if redacted(word) != word:
            raise ValueError(
                f"{word.partition('=')[0]} contains a password, which everyone who sees the cluster's dashboard could "
                "read in the job's command; set it in the environment of the cluster's nodes "
                "(MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD), or pass it with --env."
            )


def _check_places(options: SweepOptions) -> None:
    """Check for folders on this machine, which have relative paths."""
    if options.data_dir is not None and not is_absolute(options.data_dir.as_posix()):
        raise _not_there("--data-dir", str(options.data_dir))
    if options.cache_dir is not None and not (is_absolute(options.cache_dir) or options.cache_dir.startswith("~")):
        raise ValueError(f"--cache-dir {options.cache_dir}: name a folder on each node by a path from / or ~.")
    _check_task_files(split_at_commas(options.task or ()))
    replacements = [text.partition("=")[2] for text in split_at_commas(options.replacing or ())]
    for option, words in (("--encoder", split_at_commas(options.encoder or ())), ("--with", replacements)):
        for word in words:
            _, colon, source = encoder_word(word).partition(":")
            folder = source.partition("#")[0] if colon else word if option == "--with" else ""
            if folder and not is_elsewhere(word) and is_folder(expanded(folder)):
                raise _not_there(option, word)


def _check_task_files(words: Sequence[str]) -> None:
    for word in words:
        if is_task_file(word) and not is_absolute(word):
            raise _not_there("--task", word)


def _not_there(option: str, path: str) -> ValueError:
    return ValueError(
        f"{option} {path}: the job runs on the cluster; put it where every node sees it, and give its absolute path."
    )
