"""launch: bad input ends with status 2 and one clear line, before anything starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from meltpoint.launch import app
from meltpoint.sweeps.command_line.typer_options import Listable
from meltpoint.sweeps.specification.sweep_options import Resources
from meltpoint.tests.tiny_parts import TASK_YAML


def sweep(tmp_path: Path, **changes: str) -> list[str]:
    """The words of a sound sweep, with changes."""
    options = {
        "name": "n", "encoder": "minilm", "mode": "fine_tuning", "task": "demo_sentiment",
        "storage": str(tmp_path / "runs"),
    }  # fmt: skip
    options |= {name.replace("_", "-"): value for name, value in changes.items()}
    return ["sweep", *(word for name, value in options.items() for word in (f"--{name}", value))]


def refused(words: list[str], *parts: str, begun: bool = False) -> None:
    """Status 2, one line on standard error that holds the parts, nothing on standard output, no traceback.

    Args:
        begun: whether it takes seconds to find out, so that the sweep's first words stand before that line.
    """
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    *before, line = result.stderr.splitlines()
    assert [": opening " in one for one in before] == [True] * begun, result.stderr
    assert line.startswith("meltpoint: ")
    assert "Traceback" not in result.stderr
    for part in parts:
        assert part in line, line


def test_what_only_opening_the_cells_finds_out_is_refused_in_one_line_too(tmp_path):
    refused(sweep(tmp_path, head="crf"), "crf", "linear", begun=True)
    unfit = [*sweep(tmp_path, mode="feature_extraction"), "--set", "gradual_unfreezing=true"]
    refused(unfit, "gradual_unfreezing", begun=True)


def test_a_bad_data_file_is_refused_by_file_and_line(tmp_path):
    rows = "sentence\tlabel\nthe film was fine\tgood\nthe meal was cold\tbad\n"
    for split, text in (("train", rows + "no label here\n"), ("dev", rows)):
        (tmp_path / f"{split}.tsv").write_text(text, encoding="utf-8")
    task = tmp_path / "reviews.yaml"
    task.write_text(TASK_YAML.replace(", test: test.tsv", ""), encoding="utf-8")
    refused(sweep(tmp_path, task=str(task)), "train.tsv", "line 4")


def test_a_taken_name_is_refused_with_what_differs(tmp_path):
    made = tmp_path / "runs" / "n"
    made.mkdir(parents=True)
    spec = {"name": "n", "encoders": ["minilm"], "modes": ["fine_tuning"], "tasks": ["demo_sentiment"], "trials": 3}
    (made / "sweep.json").write_text(json.dumps({"spec": spec, "code": "0", "cells": []}))
    refused(sweep(tmp_path, trials="2"), "'n' is taken", "trials 3 → 2", begun=True)
    refused(sweep(tmp_path, trials="7"), "'n' would grow: trials 3 → 7", "Add --grow", begun=True)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"storage": "/dev/null/runs"}, ("--storage", "is not writable")),
        ({"time_budget": "infs"}, ("--time-budget", "2h")),
        ({"cache_budget": "50"}, ("--cache-budget", "50GB")),
        ({"cache_keep": "some"}, ("--cache-keep", "50GB")),
        *(({"cpus_per_trial": cpus}, ("--cpus-per-trial", "at most 4096")) for cpus in ("nan", "inf", "1e9", "0")),
        ({"task": "demo_sentiment,demo_sentiment"}, ("twice",)),
        ({"test_from": "training[1:2]"}, ("training[1:2]",)),
    ],
    ids=lambda value: "-".join(*value.items()) if isinstance(value, dict) else "",
)
def test_an_option_that_makes_no_sense_is_refused(tmp_path, changes, parts):
    refused(sweep(tmp_path, **changes), *parts)


def test_a_file_that_holds_no_single_setting_is_not_trained(tmp_path):
    path = tmp_path / "many.yaml"
    path.write_text(
        "encoder: minilm\nmode: fine_tuning\ntask: demo_sentiment\nparameters:\n  epochs: {choice: [1, 2]}\n"
    )
    refused(["train", str(path)], "several points")


def test_plan_prices_a_sweep_trains_nothing_and_is_the_document_of_the_contract(tmp_path, minilm):
    words = ["plan", *sweep(tmp_path, mode="feature_extraction,fine_tuning", trials="4", seeds="2")[1:], "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert set(document) == {"cells", "trials", "defaults", "answered", "estimated_seconds", "least_seconds"}
    assert document["trials"] == 2 * (4 + 2)
    assert document["defaults"] == 0, "the published setting's finals would be more than a tenth of the runs"
    assert document["answered"] == 0
    assert document["estimated_seconds"] > 0
    assert {"encoder", "mode", "task", "head", "trials", "answered"} <= set(document["cells"][0])
    assert not (tmp_path / "runs" / "n").exists()


@pytest.fixture
def kept(tmp_path: Path) -> list[str]:
    """The ids of two entries of the feature cache, as their files lie on the disk."""
    folder = tmp_path / "runs" / "cache" / "features"
    for number, task in enumerate(("sst2", "mrpc")):
        entry = folder / f"ab{number}0"
        entry.mkdir(parents=True)
        (entry / "shard-0000.json").write_text(json.dumps({"layers": [0, 6]}), encoding="utf-8")
        (entry / "shard-0000.bin").write_bytes(b"0" * 1000)
        facts = {"precision": "fp32", "pieces": "all", "rows": 7, "shards": 1 + number}
        notes = [{"encoder": "minilm", "task": task, "split": "train"}]
        (entry / "entry.json").write_text(json.dumps({**facts, "notes": notes}), encoding="utf-8")
    return ["ab00", "ab10"]


def cache(tmp_path: Path, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["cache", *words, "--storage", str(tmp_path / "runs")])
    return result.exit_code, result.stdout


def kept_ids(tmp_path: Path) -> list[str]:
    return sorted(row["id"] for row in json.loads(cache(tmp_path, "ls", "--json")[1]))


def test_cache_ls_says_of_each_entry_what_it_is(tmp_path, kept):
    rows = json.loads(cache(tmp_path, "ls", "--json")[1])
    assert sorted(row["id"] for row in rows) == kept
    (row,) = [row for row in rows if row["id"] == "ab00"]
    assert row["bytes"] > 1000
    assert row["last_used"] > 0
    del row["bytes"], row["last_used"]
    assert row == {"id": "ab00", "encoder": "minilm", "task": "sst2", "split": "train", "rows": 7}
    code, text = cache(tmp_path, "ls")
    assert code == 0
    assert "ab10" in text
    assert "mrpc" in text


def test_cache_ls_without_a_cache_is_an_empty_list_and_makes_no_folder(tmp_path):
    assert cache(tmp_path, "ls", "--json") == (0, "[]\n")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("words", "left"), [(("ab0",), ["ab10"]), (("--all",), []), (("ab0", "ab1"), [])])
def test_cache_rm_removes_what_is_named_and_nothing_else(tmp_path, kept, words, left):
    assert cache(tmp_path, "rm", *words)[0] == 0
    assert kept_ids(tmp_path) == left


@pytest.mark.parametrize(
    ("words", "part"), [(("xy",), "'xy' matches no entries"), (("ab",), "matches 2 entries"), ((), "--all")]
)
def test_cache_rm_refuses_what_it_cannot_tell(tmp_path, kept, words, part):
    refused(["cache", "rm", *words, "--storage", str(tmp_path / "runs")], part)
    assert kept_ids(tmp_path) == kept


@pytest.mark.parametrize(("keep", "left"), [(0, []), (1500, ["ab10"]), (10_000, ["ab00", "ab10"])])
def test_a_finished_sweep_leaves_the_states_used_last_that_may_stay(tmp_path, kept, keep, left):
    from meltpoint.sweeps.results.removal import trim

    storage = tmp_path / "runs" / "cache"
    os.utime(storage / "features" / "ab00" / "entry.json", (1.0, 1.0))
    there = sum(path.stat().st_size for path in storage.rglob("*.*"))
    freed = trim(Resources(storage=str(tmp_path / "runs"), cache_keep=keep))
    assert kept_ids(tmp_path) == left
    assert freed == there - sum(path.stat().st_size for path in storage.rglob("*.*"))


def test_an_entry_that_is_in_use_is_left_by_a_finished_sweep_and_by_cache_rm_which_says_so(tmp_path, kept):
    from meltpoint.adapters.features import hold
    from meltpoint.sweeps.results.removal import trim

    with hold(tmp_path / "runs" / "cache" / "features", "ab10"):
        trim(Resources(storage=str(tmp_path / "runs"), cache_keep=0))
        assert kept_ids(tmp_path) == ["ab10"]
        assert cache(tmp_path, "rm", "--all")[0] == 1
    assert kept_ids(tmp_path) == ["ab10"]


def test_cache_rm_leaves_an_entry_whole_whose_files_cannot_be_removed_and_takes_the_others(tmp_path, kept, unremovable):
    folder = tmp_path / "runs" / "cache" / "features" / "ab00"
    before, others = sorted(folder.iterdir()), set(kept_ids(tmp_path)) - {"ab00"}
    with unremovable(before[0]):
        said = CliRunner().invoke(app, ["cache", "rm", "--all", "--storage", str(tmp_path / "runs")])
    assert (said.exit_code, {line.split()[0] for line in said.stdout.splitlines()}) == (1, others)
    assert f"ab00: {before[0]} cannot be removed" in said.stderr
    assert (kept_ids(tmp_path), sorted(folder.iterdir())) == (["ab00"], before)
    assert cache(tmp_path, "rm", "ab00")[0] == 0
    assert (kept_ids(tmp_path), folder.exists()) == ([], False)


SPEC = """\
name: mine
summary: "two heads on one task, and an encoder whose folder is the user's"
trials: 3
seeds: 2
folders: {elmo: "the folder with options.json"}
blocks:
  - {name: "small", encoders: bert-base, modes: feature_extraction, tasks: demo_sentiment, head: mlp, variant: small,
     set: {mlp.hidden_size: 8}}
  - {name: "plain", encoders: [bert-base, elmo], modes: feature_extraction, tasks: demo_sentiment, head: linear}
"""


def test_plan_prices_a_specification_block_by_block_and_says_what_is_left_out(tmp_path, minilm):
    (tmp_path / "mine.yaml").write_text(SPEC, encoding="utf-8")
    words = [
        "plan",
        "--spec",
        str(tmp_path / "mine.yaml"),
        "--with",
        "bert-base=minilm",
        "--storage",
        str(tmp_path / "runs"),
    ]
    said = CliRunner().invoke(app, [*words, "--max-train-examples", "32", "--seeds", "1", "--json"])
    assert said.exit_code == 0, said.output
    document = json.loads(said.stdout)
    assert [(cell["head"], cell.get("variant"), cell["trials"]) for cell in document["cells"]] == [
        ("mlp", "small", 3 + 1 + 1), ("linear", None, 3 + 1 + 1),
    ]  # fmt: skip
    assert document["left_out"] == ["elmo"]
    shown = CliRunner().invoke(app, words)
    assert "--with elmo=FOLDER" in " ".join(shown.stdout.split())


def test_a_terminal_that_says_it_has_no_columns_is_shown_its_answer_all_the_same() -> None:
    words = [sys.executable, "-m", "meltpoint.launch", "list", "modes"]
    shown = subprocess.run(words, env={**os.environ, "COLUMNS": "0"}, capture_output=True, text=True, check=True)
    assert "feature_extraction" in shown.stdout


@pytest.mark.parametrize("what", get_args(Listable))
def test_every_list_is_one_json_document(what: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["list", what, "--json", "--storage", str(tmp_path / "runs")])
    assert (result.exit_code, result.stderr) == (0, "")
    assert isinstance(json.loads(result.stdout), list)
