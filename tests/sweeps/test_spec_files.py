"""Options of a sweep: typed, as words of a job, sent to a cluster, and as a specification file with its mistakes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from meltpoint.launch import app
from meltpoint.search_spaces import build
from meltpoint.sweeps.command_line.spec_from_options import encoder_names
from meltpoint.sweeps.command_line.submission import submission
from meltpoint.sweeps.command_line.typer_options import as_words, with_sweep_options
from meltpoint.sweeps.specification import spec_files
from meltpoint.sweeps.specification.sweep_options import (
    OPTIONS,
    Overflow,
    Searcher,
    SweepOptions,
    as_typed,
    checked_options,
)

WRITTEN = """\
name: mine
summary: "what it is"
trials: 4
blocks:
  - name: "first"
    encoders: minilm
    modes: [feature_extraction, fine_tuning]
    tasks: [mrpc, stsb]
    head: linear
    set: {epochs: {integer: [2, 5], first: 3}, dropout: 0.2, schedule: constant}
  - name: "second"
    encoders: [minilm]
    modes: fine_tuning
    tasks: mrpc
    variant: again
    trials: 2
    seeds: 1
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(WRITTEN, encoding="utf-8")
    return path


def test_a_file_is_read_as_written_and_one_word_stands_for_a_list_of_one(file):
    found = spec_files.read(str(file))
    first, second = found.blocks
    assert (first.encoders, first.modes, first.tasks) == (
        ("minilm",), ("feature_extraction", "fine_tuning"), ("mrpc", "stsb"),
    )  # fmt: skip
    assert (first.trials, first.seeds, second.trials, second.seeds) == (None, None, 2, 1)
    assert (found.trials, found.seeds, second.variant) == (4, 5, "again")
    assert [block.size for block in found.blocks] == [4, 1]


def test_a_file_with_a_base_has_its_own_values_and_the_bases_blocks(file):
    file.write_text("name: mine\nsummary: small\nbase: table_5\ntrials: 2\n", encoding="utf-8")
    found, base = spec_files.read(str(file)), spec_files.read("table_5")
    assert (found.name, found.trials, found.base) == ("mine", 2, "table_5")
    assert (found.blocks, found.folders, found.seeds, found.split) == (base.blocks, base.folders, 5, "dev")


@pytest.mark.parametrize("value", [1e-5, 2e-05, 1e20, True, None, "no", "1e-5", [1, 2.5], {"choice": ["a", "b"]}])
def test_a_value_in_a_block_means_the_same_as_behind_set(value):
    block = spec_files.FileBlock(name="b", encoders="e", modes="m", tasks="t", set={"key": value})
    ((entry, _),) = build.overrides([f"key={text}" for text in block.overrides().values()]).values()
    assert entry == value
    assert type(entry) is type(value)


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("trials: 4", "trails: 4", ("Unknown key of a specification 'trails'", "Did you mean trials")),
        ("    head: linear", "    haed: linear", ("block 1 'first'", "'haed'", "Did you mean head")),
        ("trials: 4", "split: train", ("split is 'train'", "write dev, which leaves test closed, or test")),
        ("trials: 4", "base: table_44", ("base is 'table_44'", "write one of", "table_4")),
        ("trials: 4", "trials: 0", ("trials is 0", "write a whole number of at least 1")),
        ("trials: 4", "searcher: luck", ("searcher is 'luck'", "auto, gp, tpe, random or grid, as in")),
        ("    trials: 2", "    searcher: 3", ("block 2 'second'", "searcher is 3", "gp, tpe, random or grid")),
        ("    trials: 2", "    trials: two", ("block 2 'second'", "trials is 'two'", "whole number")),
        ("    modes: fine_tuning", "    modes: []", ("block 2 'second'", "modes is []", "a word or a list of words")),
        ('  - name: "second"\n', "  - source: a paper\n", ("block 2", "name is missing", "as in name: ")),
        ("name: mine", "name: a/b", ("name is 'a/b'",)),
        ("set: {", "set: [{", ("mine.yaml:11", "not valid YAML")),
        ("set: {epochs: {integer: [2, 5], first: 3}, dropout: 0.2, schedule: constant}", "set: linear",
         ("block 1 'first'", "set is 'linear'", "write a mapping")),
        ("    trials: 2\n", "    trials: 2\n    trials: 3\n", ("'trials' is given twice",)),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_its_place_and_what_would_be_right(file, old, new, parts):
    assert old in WRITTEN
    file.write_text(WRITTEN.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ValueError, match=r"mine\.yaml") as refused:
        spec_files.read(str(file))
    assert "\n" not in str(refused.value)
    for part in parts:
        assert part in str(refused.value)


KEYS = (*spec_files.SpecFile.model_fields, *(f"block.{key}" for key in spec_files.FileBlock.model_fields))
WRONG = ("oddity odd", 3, 0, -1, 2.5, True, None, [], [[1]], [None], {}, {"a": 1}, {"a": {"b": []}})


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
@pytest.mark.parametrize("key", KEYS)
def test_a_value_of_a_wrong_type_is_answered_with_what_to_write_and_never_in_pydantics_words(file, key, wrong):
    document = yaml.safe_load(WRITTEN)
    part, _, inner = key.partition(".")
    (document["blocks"][1] if inner else document)[inner or part] = wrong
    file.write_text(yaml.dump(document), encoding="utf-8")
    try:
        spec_files.read(str(file))
    except ValueError as error:
        said = str(error)
        assert said.startswith(str(file))
        at = rf"\b{inner or part}(\.\w+)? is "
        assert re.search(at, said) or said.endswith("mapping with name, encoders, modes and tasks.")
        assert "write" in said
        assert "\n" not in said
        assert not re.search(r"nput should|valid|pydantic|tuple|dictionary|instance", said), said
    else:
        fits = (key, wrong) == ("notes", []) or isinstance(wrong, (str, int, dict, type(None)))
        assert fits, f"{key} takes no {wrong!r}"


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "name: x\nsummary: y\nblocks: []\n", "name: x\nsummary: y\n"])
def test_a_file_without_blocks_is_refused(file, text):
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"mine\.yaml.*blocks"):
        spec_files.read(str(file))


def test_an_unknown_name_is_refused_with_its_near_miss_and_a_missing_file_by_its_path(tmp_path):
    with pytest.raises(ValueError, match=r"'to_tune_or_nto'.*Did you mean to_tune_or_not"):
        spec_files.read("to_tune_or_nto")
    with pytest.raises(ValueError, match=r"absent\.yaml: file not found.*table_4"):
        spec_files.read(str(tmp_path / "absent.yaml"))


def test_every_shipped_file_is_named_as_it_names_itself_and_is_plain_json():
    assert spec_files.shipped()
    for name in spec_files.shipped():
        found = spec_files.read(name)
        assert found.name == name
        assert json.loads(found.model_dump_json())
        assert len({block.name for block in found.blocks}) == len(found.blocks), "a message names a block"
        assert set(found.folders) <= set(found.words("encoders"))


def test_a_shared_option_that_a_command_leaves_out_is_bad_usage_there() -> None:
    app = typer.Typer()

    @app.command()
    @with_sweep_options(without=("seeds",))
    def command(options: SweepOptions) -> None:
        raise AssertionError(options)

    assert CliRunner().invoke(app, ["--seeds", "3"]).exit_code == 2


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
    "head": st.none() | TEXTS, "trials": st.none() | st.just("auto") | st.integers(-3, 99),
    "race": st.none() | st.booleans(), "seeds": st.none() | st.integers(0, 9),
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
    "new_test_round": st.booleans(), "margin": st.floats(0.01, 99), "price_per_hour": st.none() | st.floats(0.01, 99),
    "max_gpu_hours": st.none() | st.floats(0.01, 99), "log_to": LISTS,
    "notify": st.sampled_from([None, "https://host/x"]),
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
        submission(checked_options(as_typed(GOOD) | changes))


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
