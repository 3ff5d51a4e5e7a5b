"""A whole sweep on a real local Ray and a real MLflow store: through the door, as a stranger would."""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter

import pytest
import torch
from typer.testing import CliRunner

from meltpoint.launch import app
from meltpoint.tests.json_documents import assert_published
from meltpoint.tests.sweeps.whole_sweeps import SEEDS, TRIALS, assert_whole, command, records, run


def test_a_sweep_ends_with_every_trial_once_in_the_ledger_and_in_mlflow(done):
    _, storage = done
    assert_whole(storage, cells=2, trials=TRIALS, seeds=SEEDS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_the_default_trains_on_the_cpus_and_one_of_the_first_lines_says_so(done):
    _, storage = done
    opening, line, *_ = (storage / "said.txt").read_text(encoding="utf-8").splitlines()
    assert opening.startswith("tiny: opening 2 cells; ")
    assert re.fullmatch(r"2 cells, \d+ trials? at a time, each on 1 CPU \(no GPU in this Ray cluster\)\.", line), line
    assert {(r["hardware"]["device"], r["hardware"]["gpu_share"]) for r in records(storage)} == {("cpu", 0.0)}


def test_frozen_trials_shared_a_worker_and_the_states_and_the_others_did_not(done):
    _, storage = done
    search = [record for record in records(storage) if record["role"] == "search"]
    together = {
        mode: max(r["trained_together"] for r in search if r["mode"] == mode)
        for mode in ("feature_extraction", "fine_tuning")
    }
    assert together["feature_extraction"] > 1
    assert together["fine_tuning"] == 1
    kept = list((storage / "cache" / "features").glob("*/entry.json"))
    assert len(kept) == 2, "train and dev, each encoded once"


def test_the_same_command_again_answers_from_the_ledger_without_starting_ray(done):
    spec, storage = done
    before = {path: path.stat().st_mtime_ns for path in (storage / "tiny" / "trials").iterdir()}
    started = time.monotonic()
    again = run(command(spec, storage, "--address", "127.0.0.1:1"))  # nobody answers there, and nobody is asked
    assert again.returncode == 0, again.stderr
    assert time.monotonic() - started < 60
    assert {path: path.stat().st_mtime_ns for path in (storage / "tiny" / "trials").iterdir()} == before


def test_test_is_opened_once_a_finalist_after_selection_and_on_the_record(done):
    _, storage = done
    openings = [
        json.loads(line) for line in (storage / "tiny" / "test_openings.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    finals = {record["id"]: record for record in records(storage) if record["role"] == "final"}
    assert Counter(line["trial"] for line in openings) == Counter(finals.keys())
    for line in openings:
        cell = finals[line["trial"]]["mode"]
        searched = [r for r in records(storage) if r["role"] == "search" and r["mode"] == cell]
        assert line["opened_at"] > max(r["epochs"][-1]["finished_at"] for r in searched)


def test_each_trial_tells_its_peak_memory_and_its_size_to_the_ledger_and_to_mlflow(done):
    _, storage = done
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{storage}/mlflow.db")
    for record in records(storage):
        assert record["peak_memory_kind"] in ("process", "process_lifetime")
        assert record["peak_memory_bytes"] > 50 * 2**20
        is_frozen = record["mode"] == "feature_extraction"
        assert (record["trained_parameters"] == record["task_parameters"]) is is_frozen
        metrics = client.get_run(record["mlflow_run_id"]).data.metrics
        assert metrics["peak_memory_gb"] == pytest.approx(record["peak_memory_bytes"] / 1e9)
        assert metrics["trained_parameters"] == record["trained_parameters"]


def test_only_the_best_finalist_of_a_cell_keeps_its_weights(done):
    _, storage = done
    kept = {path.name for path in (storage / "tiny" / "checkpoints").iterdir()}
    finals = [record for record in records(storage) if record["role"] == "final"]
    best = {
        max((f for f in finals if f["mode"] == mode), key=lambda f: (f["dev"], -f["seed"]))["id"]
        for mode in ("feature_extraction", "fine_tuning")
    }
    assert kept == best


def test_the_final_with_the_searchs_own_seed_is_the_search_trial_itself(done):
    _, storage = done
    by_id = {record["id"]: record for record in records(storage)}
    answered = [record for record in by_id.values() if record["answered_by"]]
    assert [record["seed"] for record in answered] == [0, 0]
    for record in answered:
        assert by_id[record["answered_by"]]["dev"] == record["dev"]


def test_the_predictions_of_finalists_give_their_scores(done):
    _, storage = done
    for record in (r for r in records(storage) if r["role"] == "final"):
        for split, score in (("dev", record["dev"]), ("test", record["test"]["accuracy"])):
            (path,) = (storage / "tiny" / "predictions").glob(
                f"*.{record['mode']}.*.seed{record['seed']}.{split}.jsonl"
            )
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            assert sum(line["gold"] == line["prediction"] for line in lines) / len(lines) == score
            assert all(abs(sum(line["probabilities"].values()) - 1) < 1e-4 for line in lines)


def test_status_is_the_document_of_the_contract(done):
    _, storage = done
    said = run([sys.executable, "-m", "meltpoint.launch", "status", "tiny", "--json", "--storage", str(storage)])
    document = json.loads(said.stdout)
    assert document["state"] == "done"
    cell = document["cells"][0]
    assert cell["trials"] == {"planned": 3, "finished": 3, "stopped": 0, "failed": 0, "running": 0, "missing": 0}
    assert set(cell["final"]) == {"seeds", "dev_mean", "dev_std", "test_mean", "test_std"}
    assert cell["best"]["dev"] == max(
        r["dev"] for r in records(storage) if r["mode"] == cell["mode"] and r["role"] == "search"
    )


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("status", ["tiny"]), ("best", ["tiny"]), ("compare", ["tiny", "tiny"]), ("list", []), ("list sweeps", []),
        *(("list KIND", [kind]) for kind in ("encoders", "modes", "tasks", "heads", "tricks", "spaces", "specs")),
        ("cache ls", []), ("ensemble", ["tiny", "--task", "TASK"]), ("analyse", ["tiny", "guidelines"]),
        ("show", ["tiny", "TRIAL"]), ("train", ["EXPORT"]), ("doctor", []), ("plan", ["PLAN"]),
    ],
)  # fmt: skip
def test_each_json_document_follows_its_published_schema(done, command, more):
    spec, storage = done
    (export,) = (storage / "tiny" / "exports").glob("*.fine_tuning.*.yaml")
    trial = records(storage)[0]
    known = {"TASK": [trial["task"]], "TRIAL": [trial["id"]], "EXPORT": [str(export)]}
    known["PLAN"] = ["--name", "another", "--encoder", spec.encoders[0], "--mode", "feature_extraction,fine_tuning"]
    known["PLAN"] += ["--task", spec.tasks[0]]
    words = [*command.removesuffix(" KIND").split(), *(part for word in more for part in known.get(word, [word]))]
    place = [] if command == "train" else ["--storage", str(storage)]
    said = CliRunner().invoke(app, [*words, "--json", *place])
    assert said.exit_code in ((0, 1) if command == "doctor" else (0,)), said.output
    assert_published(command, json.loads(said.stdout))


def test_an_exported_setting_trains_again_to_the_last_bit_in_a_fresh_process(done):
    _, storage = done
    (path,) = (storage / "tiny" / "exports").glob("*.fine_tuning.*.yaml")
    recorded = {r["seed"]: r for r in records(storage) if r["role"] == "final" and r["mode"] == "fine_tuning"}
    words = [sys.executable, "-m", "meltpoint.launch", "train", str(path), "--seed", "1", "--test", "--json"]
    again = run(words)
    document = json.loads(again.stdout)
    assert document["dev"] == recorded[1]["dev"]
    assert document["test"] == recorded[1]["test"]["accuracy"]
    assert document["metric"] == "accuracy"
    assert "equal" in again.stderr


def test_another_specification_under_the_name_is_refused_and_says_what_differs(done):
    spec, storage = done
    refused = run(command(spec, storage, trials=2))
    assert refused.returncode == 2
    assert "'tiny' is taken by another specification" in refused.stderr
    assert "trials 3 → 2" in refused.stderr
