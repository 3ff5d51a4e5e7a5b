"""A whole sweep on a real local Ray and a real MLflow store: through the door, as a stranger would."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest
import torch
from mlflow.tracking import MlflowClient

from meltpoint.sweeps.specification import SweepSpec

TRIALS, SEEDS = 3, 2
PATIENCE_SECONDS = 240


def command(spec: SweepSpec, storage: Path, *more: str, **changes: object) -> list[str]:
    """The command line that asks for a specification."""
    spec = spec.model_copy(update=changes)
    assert spec.space is not None
    return [
        sys.executable, "-m", "meltpoint.launch", "sweep", "--name", spec.name, "--encoder", spec.encoders[0],
        "--mode", ",".join(spec.modes), "--task", spec.tasks[0], "--head", "linear", "--trials", str(spec.trials),
        "--seeds", str(spec.seeds), "--space", spec.space, "--storage", str(storage), *more,
    ]  # fmt: skip


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)


def records(storage: Path, name: str = "tiny") -> list[dict]:
    return [json.loads(path.read_text()) for path in (storage / name / "trials").glob("*.json")]


def roles(storage: Path) -> Counter:
    return Counter(record["role"] for record in records(storage))


def mlflow_runs(storage: Path, name: str = "tiny") -> list:
    client = MlflowClient(f"sqlite:///{storage / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(name)
    return client.search_runs([experiment.experiment_id], max_results=1000)


def assert_whole(storage: Path, cells: int, trials: int, seeds: int) -> None:
    """Every trial exactly once in the ledger and in MLflow, and no run left running."""
    found = records(storage)
    assert roles(storage) == {"search": cells * trials, "final": cells * seeds}
    assert {record["status"] for record in found} == {"finished"}
    courses = [json.dumps([r["mode"], r["seed"], r["role"], r["setting"]], sort_keys=True) for r in found]
    assert len(set(courses)) == len(courses), "no setting is trained twice"
    runs = mlflow_runs(storage)
    assert Counter(run.data.tags["meltpoint.role"] for run in runs) == {
        "cell": cells, "search": cells * trials, "final": cells * seeds,
    }  # fmt: skip
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert {run.info.run_id for run in runs} >= {record["mlflow_run_id"] for record in found}
    assert not list((storage / "tiny" / "started").iterdir())


@pytest.fixture(scope="module")
def done(tmp_path_factory, tiny_encoder, tiny_task, quick_space) -> tuple[SweepSpec, Path]:
    """A sweep of two cells, run once for the module: (its specification, its storage)."""
    spec = SweepSpec(
        name="tiny", encoders=(tiny_encoder,), modes=("feature_extraction", "fine_tuning"), tasks=(str(tiny_task),),
        head="linear", trials=TRIALS, seeds=SEEDS, space=str(quick_space),
    )  # fmt: skip
    storage = tmp_path_factory.mktemp("done")
    finished = run(command(spec, storage))
    assert finished.returncode == 0, finished.stderr
    (storage / "said.txt").write_text(finished.stderr)
    return spec, storage


def test_a_sweep_ends_with_every_trial_once_in_the_ledger_and_in_mlflow(done):
    _, storage = done
    assert_whole(storage, cells=2, trials=TRIALS, seeds=SEEDS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_the_default_trains_on_the_cpus_and_the_first_line_says_so(done):
    _, storage = done
    first = (storage / "said.txt").read_text().splitlines()[0]
    assert re.fullmatch(r"2 cells, \d+ trials? at a time, each on 1 CPU \(no GPU in this Ray cluster\)\.", first), first
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
    openings = [json.loads(line) for line in (storage / "tiny" / "test_openings.jsonl").read_text().splitlines()]
    finals = {record["id"]: record for record in records(storage) if record["role"] == "final"}
    assert Counter(line["trial"] for line in openings) == Counter(finals.keys())
    for line in openings:
        cell = finals[line["trial"]]["mode"]
        searched = [r for r in records(storage) if r["role"] == "search" and r["mode"] == cell]
        assert line["opened_at"] > max(r["epochs"][-1]["finished_at"] for r in searched)


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
            lines = [json.loads(line) for line in path.read_text().splitlines()]
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


def test_an_exported_setting_trains_again_to_the_last_bit_in_a_fresh_process(done):
    _, storage = done
    (path,) = (storage / "tiny" / "exports").glob("*.fine_tuning.*.yaml")
    recorded = {r["seed"]: r for r in records(storage) if r["role"] == "final" and r["mode"] == "fine_tuning"}
    for seed in (0, 1):
        words = [sys.executable, "-m", "meltpoint.launch", "train", str(path), "--seed", str(seed), "--test", "--json"]
        again = run(words)
        document = json.loads(again.stdout)
        assert document["dev"] == recorded[seed]["dev"]
        assert document["test"] == recorded[seed]["test"]["accuracy"]
        assert document["metric"] == "accuracy"
        assert "equal" in again.stderr


def test_an_exported_model_predicts_in_a_fresh_process(done, tmp_path):
    _, storage = done
    words = [sys.executable, "-m", "meltpoint.launch", "export", "tiny", "--model", "--out", str(tmp_path)]
    assert run([*words, "--storage", str(storage)]).returncode == 0
    code = "import sys\nfrom meltpoint.adapters.exported import load_folder\n"
    code += "print(load_folder(sys.argv[1]).predict(['the film was lovely and great', 'the meal was awful and cold']))"
    for folder in tmp_path.glob("*.model"):
        said = run([sys.executable, "-c", code, str(folder)])
        assert set(eval(said.stdout)) <= {"good", "bad"}, said.stderr


def test_another_specification_under_the_name_is_refused_and_says_what_differs(done):
    spec, storage = done
    refused = run(command(spec, storage, trials=5))
    assert refused.returncode == 2
    assert "'tiny' is taken by another specification" in refused.stderr
    assert "trials 3 → 5" in refused.stderr


def wait_for(storage: Path, count: int, process: subprocess.Popen) -> None:
    """Until the ledger has so many trials, or the process ended."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(records(storage)) < count and process.poll() is None:
        assert time.monotonic() < deadline, "the sweep does not get on"
        time.sleep(0.02)


def started(words: list[str], log: Path) -> subprocess.Popen:
    with log.open("a") as file:
        return subprocess.Popen(words, stdout=file, stderr=file)


def test_ctrl_c_stops_cleanly_prints_the_way_on_and_going_on_completes_the_sweep(spec, tmp_path):
    words = command(spec, tmp_path, modes=("fine_tuning",))
    process = started(words, tmp_path / "log")
    (tmp_path / "tiny" / "trials").mkdir(parents=True, exist_ok=True)
    wait_for(tmp_path, 1, process)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 1, (tmp_path / "log").read_text()
    assert "It goes on with:" in (tmp_path / "log").read_text()
    assert "RUNNING" not in {run.info.status for run in mlflow_runs(tmp_path)}
    assert run(words).returncode == 0
    assert_whole(tmp_path, cells=1, trials=3, seeds=2)


def kill_and_go_on(spec: SweepSpec, storage: Path, moments: list[int]) -> None:
    """SIGKILL the driver once the ledger has so many trials, for each moment; then let it finish."""
    (storage / "tiny" / "trials").mkdir(parents=True, exist_ok=True)
    words = command(spec, storage)
    for count in moments:
        process = started(words, storage / "log")
        wait_for(storage, count, process)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    finished = run(words)
    assert finished.returncode == 0, finished.stderr


def test_a_killed_driver_loses_no_trial_and_repeats_none(spec, tmp_path):
    kill_and_go_on(spec.model_copy(update={"modes": ("fine_tuning",)}), tmp_path, moments=[2])
    assert_whole(tmp_path, cells=1, trials=3, seeds=2)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_driver_killed_at_five_moments_of_twelve_trials_loses_none_and_repeats_none(spec, tmp_path):
    kill_and_go_on(spec.model_copy(update={"trials": 6}), tmp_path, moments=[0, 1, 4, 8, 11])
    assert_whole(tmp_path, cells=2, trials=6, seeds=2)


def test_a_time_budget_ends_the_search_and_the_finals_still_follow(spec, tmp_path):
    words = command(spec, tmp_path, "--time-budget", "8s", modes=("fine_tuning",), trials=400)
    ended = run(words)
    assert ended.returncode == 0, ended.stderr
    assert "time budget is spent" in ended.stderr
    found = roles(tmp_path)
    assert 1 <= found["search"] < 400
    assert found["final"] == 2
    more = command(
        spec, tmp_path, "--time-budget", "1h", "--address", "127.0.0.1:1", modes=("fine_tuning",), trials=400
    )
    again = run(more)  # nobody answers there, and nobody is asked
    assert again.returncode == 0, again.stderr
    assert roles(tmp_path) == found
    for said in (ended.stderr, again.stderr):
        assert f"{found['search']} of 400 search trials were run, then the time budget was spent" in said
        assert "is closed since its test split was opened on" in said
    assert "Nothing is left to train" in again.stderr


def wait_for_epochs(store: Path, process: subprocess.Popen) -> None:
    """Until MLflow has an epoch of a trial, or the process ended."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while process.poll() is None:
        assert time.monotonic() < deadline, "no trial begins"
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as tables:
            if tables.execute("select count(*) from metrics where key = 'epoch'").fetchone()[0]:
                return
        time.sleep(0.02)


def workers_of(process: subprocess.Popen, doing: str = "") -> list[psutil.Process]:
    """The Ray worker processes that train for a driver, or that do what Ray's title for them says."""
    with suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
        return [child for child in family if f"ray::ImplicitFunc{doing}" in titled(child)]
    return []


def titled(child: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(child.cmdline())
    return ""


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_time_and_no_trial(spec, tmp_path):
    longer = ("--set", "epochs=150")  # far from its end when its first epochs are known
    process = started(command(spec, tmp_path, *longer, modes=("fine_tuning",)), tmp_path / "log")
    wait_for_epochs(tmp_path / "mlflow.db", process)
    victims = workers_of(process)
    assert victims, "a trial must be under way"
    for victim in victims:
        victim.kill()
    assert process.wait(timeout=PATIENCE_SECONDS) == 0, (tmp_path / "log").read_text()
    assert "its worker died" in (tmp_path / "log").read_text()
    assert_whole(tmp_path, cells=1, trials=3, seeds=2)
    assert {record["attempts"] for record in records(tmp_path)} == {1, 2}


@pytest.mark.slow
def test_a_worker_that_is_killed_before_its_trial_begins_does_not_hang_the_sweep(spec, tmp_path):
    process = started(command(spec, tmp_path, modes=("fine_tuning",)), tmp_path / "log")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (victims := workers_of(process, ".__init__")):
        assert time.monotonic() < deadline, (tmp_path / "log").read_text()
        assert process.poll() is None, "no worker was seen while its actor was made"
    for victim in victims:
        victim.kill()
    assert process.wait(timeout=PATIENCE_SECONDS) == 0, (tmp_path / "log").read_text()
    assert_whole(tmp_path, cells=1, trials=3, seeds=2)


@pytest.mark.slow
def test_a_finalist_whose_weights_are_damaged_is_trained_again_and_scored(done, tmp_path):
    spec, storage = done
    copied = tmp_path / "copied"
    shutil.copytree(storage, copied)
    finals = {record["seed"]: record for record in records(copied) if record["role"] == "final"}
    for record in finals.values():
        path = copied / "tiny" / "trials" / f"{record['id']}.json"
        path.write_text(json.dumps({**record, "test": None}))
        weights = copied / "tiny" / "checkpoints" / record["id"] / "weights.safetensors"
        weights.parent.mkdir(parents=True, exist_ok=True)
        weights.write_bytes(b"half of a fi")
    again = run(command(spec, copied))
    assert again.returncode == 0, again.stderr
    assert "is damaged" in again.stderr
    assert "it is trained again" in again.stderr
    scored = {record["id"]: record for record in records(copied) if record["role"] == "final"}
    for record in finals.values():
        assert scored[record["id"]]["dev"] == record["dev"]
        assert scored[record["id"]]["test"] == record["test"]


class Deaf:
    """A server that takes connections and never answers, as one that hangs."""

    def __init__(self) -> None:
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(50)
        self.uri = f"http://127.0.0.1:{self.listener.getsockname()[1]}"


@pytest.mark.slow
def test_one_ctrl_c_ends_a_sweep_within_ten_seconds_though_mlflow_hangs(spec, tmp_path):
    hung = Deaf()
    words = command(spec, tmp_path, "--tracking-uri", hung.uri, "--set", "epochs=150", modes=("fine_tuning",))
    process = started(words, tmp_path / "log")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not workers_of(process, ".train"):
        assert time.monotonic() < deadline
        assert process.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.05)
    told = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 1
    assert time.monotonic() - told < 10
    assert "It goes on with:" in (tmp_path / "log").read_text()


def listing(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """Everything in a folder: when it changed, and what files hold."""
    paths = [folder, *folder.rglob("*")]
    return {path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in paths}


def cut_off(storage: Path) -> None:
    """Make a trained final one that began and did not end, as a killed driver leaves it: its note has `storage`."""
    final = next(r for r in records(storage) if r["mode"] == "fine_tuning" and r["role"] == "final" and r["seed"] == 1)
    (storage / "tiny" / "trials" / f"{final['id']}.json").unlink()
    words = ("id", "number", "role", "encoder", "mode", "task", "head", "seed", "setting")
    note = {word: final[word] for word in words}
    note |= {"checkpoint": str(storage / "tiny" / "checkpoints" / final["id"]), "cache": str(storage / "cache")}
    (storage / "tiny" / "started" / f"{final['id']}.json").write_text(json.dumps(note))


@pytest.mark.slow
def test_a_copied_sweep_goes_on_and_is_used_and_the_original_stays_as_it_is(done, tmp_path):
    spec, storage = done
    original, copied = tmp_path / "original", tmp_path / "copied"
    shutil.copytree(storage, original)
    cut_off(original)
    shutil.copytree(original, copied)
    before = listing(original)
    finished = run(command(spec, copied))
    assert finished.returncode == 0, finished.stderr
    assert_whole(copied, cells=2, trials=TRIALS, seeds=SEEDS)
    for words in (["export", "--model"], ["report"], ["ensemble", "--task", "tiny_reviews"], ["status"]):
        used = [sys.executable, "-m", "meltpoint.launch", words[0], "tiny", *words[1:], "--storage", str(copied)]
        assert run(used).returncode == 0
    assert listing(original) == before


@pytest.mark.slow
@pytest.mark.parametrize("uri", ["http://user:secret@127.0.0.1:1/", "postgresql://u:secret@127.0.0.1:1/db"])
def test_a_password_in_the_tracking_uri_is_printed_and_kept_nowhere(spec, tmp_path, uri):
    changes = {"modes": ("fine_tuning",), "trials": 1, "seeds": 1}
    ended = run(command(spec, tmp_path, "--tracking-uri", uri, **changes))
    assert ended.returncode == 0, ended.stderr
    assert ":***@127.0.0.1:1/" in ended.stderr
    assert "secret" not in ended.stdout + ended.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file() and b"secret" in path.read_bytes()] == []
