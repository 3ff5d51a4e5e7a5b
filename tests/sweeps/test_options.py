"""Options: typed, as the words of a job, and as sent to a cluster."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from meltpoint.launch import app
from meltpoint.reports.commands import search
from meltpoint.sweeps.command_line.spec_from_options import encoder_names
from meltpoint.sweeps.command_line.submission import submission
from meltpoint.sweeps.command_line.typer_options import AsJson, as_words, with_sweep_options
from meltpoint.sweeps.specification.sweep_options import OPTIONS, Overflow, Searcher, SweepOptions

FIELDS = list(OPTIONS)


def names(command: Callable[..., None]) -> list[str]:
    return list(inspect.signature(command).parameters)


def test_sweep_and_plan_have_every_shared_option() -> None:
    assert names(search.sweep) == FIELDS
    assert names(search.plan) == [*FIELDS, "as_json", "verbose"]


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


TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
LISTS = st.none() | st.lists(TEXTS, min_size=1, max_size=3)
PATHS = st.none() | st.sampled_from([Path("/mnt/data"), Path("relative/x.yaml"), Path("/with blank")])
BYTES = st.integers(0, 10**15)
DRAWN: dict[str, Any] = {
    "name": st.none() | TEXTS, "encoder": LISTS, "mode": LISTS, "task": LISTS, "spec": st.none() | TEXTS,
    "replacing": LISTS,
    "head": st.none() | TEXTS, "trials": st.none() | st.integers(-3, 99), "seeds": st.none() | st.integers(0, 9),
    "searcher": st.none() | st.sampled_from(get_args(Searcher)), "default_finals": st.none() | st.booleans(),
    "space": PATHS, "overrides": LISTS, "data_dir": PATHS,
    "max_train_examples": st.none() | st.integers(0, 10**6), "train_sizes": LISTS,
    "max_dev_examples": st.sampled_from(["auto", "all"]) | st.integers(-9, 10**9),
    "test_from": st.none() | TEXTS, "seed": st.integers(-5, 2**40),
    "storage": TEXTS, "tracking_uri": st.sampled_from([None, "folder", "http://host"]),
    "address": st.none() | TEXTS, "cpus_per_trial": st.floats(0.01, 64),
    "gpus_per_trial": st.just("auto") | st.floats(0, 9), "time_budget": st.none() | st.floats(1e-6, 10**7),
    "retry_failed": st.booleans(), "cache_budget": BYTES, "cache_overflow": st.sampled_from(get_args(Overflow)),
    "cache_dir": st.none() | TEXTS, "cache_keep": BYTES,
    "mix_code_versions": st.booleans(), "max_workers": st.none() | st.integers(1, 99),
    "no_epoch_checkpoints": st.booleans(), "grow": st.booleans(),
    "new_test_round": st.booleans(), "margin": st.floats(0.01, 99),
}  # fmt: skip
OPTIONS_DRAWN = st.builds(SweepOptions, **DRAWN)


SEEN: list[SweepOptions] = []
READER = typer.Typer()


@READER.command()
@with_sweep_options()
def keep(options: SweepOptions) -> None:
    SEEN.append(options)


def parsed(words: list[str]) -> SweepOptions:
    """The options that a command gets from these words."""
    result = CliRunner().invoke(READER, words)
    assert result.exit_code == 0, result.output
    return SEEN.pop()


def test_the_strategy_draws_every_option():
    assert set(DRAWN) == set(OPTIONS)


@given(OPTIONS_DRAWN)
def test_options_as_words_are_read_as_the_same_options(options: SweepOptions):
    assert parsed(as_words(options)) == options


GOOD = SweepOptions(
    name="first", encoder=["minilm"], mode=["fine_tuning"], task=["demo_sentiment"], storage="/mnt/sweeps"
)


def test_the_command_joins_the_cluster_by_itself_and_has_the_options_that_were_typed():
    asked = submission(replace(GOOD, trials=3, address="http://head:8265"))
    assert asked.command == (
        "exec python -m meltpoint.launch sweep --name=first --encoder=minilm --mode=fine_tuning --task=demo_sentiment "
        "--trials=3 --storage=/mnt/sweeps --address=auto"
    )
    assert asked.files == {}


def test_space_and_specification_go_along_and_the_command_names_them_where_they_will_lie(tmp_path):
    space, spec = tmp_path / "my space.yaml", tmp_path / "mine.yaml"
    space.write_text("parameters:\n  epochs: 1\n", encoding="utf-8")
    spec.write_text(
        'name: mine\nsummary: "one"\nblocks:\n'
        '  - {name: "b", encoders: minilm, modes: fine_tuning, tasks: demo_sentiment, head: linear}\n',
        encoding="utf-8",
    )
    asked = submission(SweepOptions(spec=str(spec), space=space, storage="/mnt/sweeps"))
    assert asked.spec.name == "mine"
    assert asked.files == {"submitted/space/my space.yaml": space, "submitted/spec/mine.yaml": spec}
    assert {"--space=submitted/space/my space.yaml", "--spec=submitted/spec/mine.yaml"} <= set(asked.words)


def test_what_lies_on_the_cluster_is_not_looked_for_here():
    asked = submission(
        replace(
            GOOD, encoder=["hf:/not/here/bert", "elmo:/not/here/elmo"], task=["/not/here/task.yaml", "sst2"],
            data_dir=Path("/not/here/data"),
        )
    )  # fmt: skip
    assert "--encoder=hf:/not/here/bert" in asked.words
    assert "--data-dir=/not/here/data" in asked.words


def test_a_replaced_encoder_may_lie_on_the_cluster():
    asked = submission(
        SweepOptions(
            spec="to_tune_or_not", replacing=["elmo=/not/here/elmo"], data_dir=Path("/not/here"), storage="/mnt/sweeps"
        )
    )  # fmt: skip
    assert "--with=elmo=/not/here/elmo" in asked.words


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"storage": "runs"}, "--storage runs: name a folder that every node of the cluster sees"),
        ({"data_dir": Path("data")}, "--data-dir data: the job runs on the cluster"),
        ({"task": ["mine.yaml"]}, "--task mine.yaml: the job runs on the cluster"),
        ({"encoder": ["hf:bert"]}, "--encoder hf:bert: the job runs on the cluster"),
        ({"encoder": ["minilmm"]}, "Did you mean minilm"),
        ({"encoder": ["minilmm"], "task": ["/mnt/task.yaml"]}, "Did you mean minilm"),
        ({"task": ["demo_sentimnt"]}, "Did you mean demo_sentiment"),
        ({"overrides": ["dropuot=0.1"]}, "Did you mean dropout"),
        ({"trials": 0}, "--trials 0"),
        ({"time_budget": "soon"}, "--time-budget 'soon'"),
        ({"space": Path("absent.yaml")}, "absent.yaml"),
        ({"name": "a/b"}, "--name 'a/b'"),
    ],
)
def test_what_cannot_run_there_is_refused_here(changes, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bert").mkdir()
    (tmp_path / "minilm").mkdir()  # a folder that is called as an encoder changes nothing
    with pytest.raises(ValueError, match=said):
        submission(replace(GOOD, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"tracking_uri": "http://me:pw0rd@host"}, {"tracking_uri": "postgresql://me:pw0rd@host/db"},
        {"storage": "s3://key:pw0rd@bucket"}, {"overrides": ["x=http://me:pw0rd@h"]},
    ],
)  # fmt: skip
def test_a_password_is_refused_and_not_shown_since_the_dashboard_would_show_the_command(changes):
    with pytest.raises(ValueError, match="contains a password") as told:
        submission(replace(GOOD, **changes))
    assert "pw0rd" not in str(told.value)


@pytest.mark.parametrize(("given_name", "said"), [("ABSENT_HERE", "is not set here"), ("TOKEN=pw0rd", "the name only")])
def test_variables_are_passed_on_by_name_alone(given_name, said):
    words = ["submit", *as_words(GOOD), "--env", given_name]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "pw0rd" not in result.stderr
