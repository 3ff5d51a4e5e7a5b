"""options: one object for `sweep` and `plan`, and what names on the command line become before a sweep keeps them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from meltpoint.reports.commands import search
from meltpoint.sweeps.command_line.options import AsJson, with_sweep_options
from meltpoint.sweeps.command_line.spec_from_options import encoder_names
from meltpoint.sweeps.specification.sweep_options import OPTIONS, SweepOptions

FIELDS = list(OPTIONS)


def names(command: Callable[..., None]) -> list[str]:
    return list(inspect.signature(command).parameters)


def test_sweep_and_plan_have_every_shared_option() -> None:
    assert names(search.sweep) == FIELDS
    assert names(search.plan) == [*FIELDS, "as_json", "explain", "verbose"]


def typed(*words: str) -> tuple[int, list[tuple[SweepOptions, bool]]]:
    """The exit status of a command without `--seeds`, and what it was called with."""
    calls = []
    app = typer.Typer()

    @app.command()
    @with_sweep_options(without=("seeds",))
    def command(options: SweepOptions, as_json: AsJson = False) -> None:
        calls.append((options, as_json))

    return CliRunner().invoke(app, words).exit_code, calls


def test_a_command_without_options_gets_the_defaults_of_the_shared_object() -> None:
    assert typed() == (0, [(SweepOptions(), False)])


def test_a_command_gets_each_shared_option_by_its_own_name_and_its_own_options_beside() -> None:
    words = ("--task", "a", "--task", "b", "--with", "c=d", "--cache-overflow", "bf16", "--seed", "7", "--json")
    wanted = SweepOptions(task=["a", "b"], replacing=["c=d"], cache_overflow="bf16", seed=7)
    assert typed(*words) == (0, [(wanted, True)])


def test_a_shared_option_that_a_command_leaves_out_is_bad_usage_there() -> None:
    assert typed("--seeds", "3") == (2, [])


def test_folders_of_every_family_become_absolute_and_keep_their_variant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models" / "st").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    folder = (tmp_path / "models" / "st").resolve()
    found = encoder_names(["minilm,hf:models/st", "skipthoughts:models/st#uni+eos", "skipthoughts:./models/st"])
    assert found == ("minilm", f"hf:{folder}", f"skipthoughts:{folder}#uni+eos", f"skipthoughts:{folder}")


def test_words_that_name_no_folder_stay_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("hf:some/model@main", "skipthoughts:", "hf:", "skipthoughts:#uni", "skipthoughts:nowhere#uni", "bert-base")
    assert encoder_names(words) == words
