"""A whole sweep in an object store, on a real local Ray and a real MLflow store; S3 is moto's (`object_stores`)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.storage.object_path import ObjectPath
from meltpoint.tests.object_stores import BUCKET
from meltpoint.tests.sweeps import ray_nodes
from meltpoint.tests.sweeps.ray_nodes import RayNode
from meltpoint.tests.sweeps.whole_sweeps import PATIENCE_SECONDS, SEEDS, TRIALS, command

pytestmark = pytest.mark.skipif(find_spec("obstore") is None, reason="the extra 's3' is not installed")

STORAGE = f"s3://{BUCKET}/lab"
SECRET = "not-a-secret"


def said(words: list[str], *storage: str) -> subprocess.CompletedProcess[str]:
    """A command of Meltpoint and what it said."""
    called = [sys.executable, "-m", "meltpoint.launch", *words, *storage]
    return subprocess.run(called, capture_output=True, encoding="utf-8", timeout=PATIENCE_SECONDS, check=False)


def in_store(spec: SweepSpec, tmp_path: Path, *more: str) -> list[str]:
    """The command of a sweep in the object store, its cache in a folder of the node."""
    words = command(spec, Path(), "--tracking-uri", f"sqlite:///{tmp_path}/mlflow.db", *more)
    words[words.index("--storage") + 1] = STORAGE
    return [*words, "--cache-dir", str(tmp_path / "cache")]


def documents(folder: ObjectPath) -> list[dict]:
    return [json.loads(path.read_text()) for path in (folder / "trials").glob("*.json")]


def numbers(found: list[dict]) -> list[tuple]:
    """The results of a sweep, whatever its storage."""
    return sorted((r["id"], r["role"], r["status"], r["dev"], json.dumps(r["test"])) for r in found)


def kill_after(count: int, words: list[str], folder: ObjectPath) -> None:
    """SIGKILL a sweep's driver once so many trials have ended."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(list((folder / "trials").glob("*.json"))) < count:
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline, "the sweep does not get on"
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
def test_a_killed_sweep_in_s3_goes_on_and_finds_the_same_as_in_a_folder(s3, frozen_spec, tmp_path, done):
    spec, folder = frozen_spec.model_copy(update={"trials": TRIALS}), ObjectPath.of(f"{STORAGE}/tiny")
    words = in_store(spec, tmp_path)
    kill_after(1, words, folder)
    first = {one["id"]: one["seconds"] for one in documents(folder)}
    went_on = subprocess.run(words, capture_output=True, encoding="utf-8", timeout=PATIENCE_SECONDS, check=False)
    assert went_on.returncode == 0, went_on.stderr
    found = documents(folder)
    assert {one["id"]: one["seconds"] for one in found}.items() >= first.items(), "what had ended is not trained again"
    assert len(found) == TRIALS + SEEDS
    assert {one["driver_attempt"] for one in found} == {2}, "the driver that went on signed what it found"
    assert list((folder / "started").iterdir()) == []
    in_a_folder = [json.loads(path.read_text()) for path in (done[1] / "tiny" / "trials").glob("*.json")]
    assert numbers(found) == numbers([one for one in in_a_folder if one["mode"] == "feature_extraction"])
    assert len((folder / "test_openings.jsonl").read_text().splitlines()) == SEEDS
    assert len(list((folder / "checkpoints").iterdir())) == 1
    assert len(list((tmp_path / "cache" / "features").glob("*/entry.json"))) == 2, "train and dev, encoded once"
    assert_commands_work(folder, tmp_path)
    everything = [path.read_bytes() for path in ObjectPath.of(STORAGE).files()]
    assert not any(SECRET.encode() in contents for contents in everything)
    assert SECRET not in went_on.stdout + went_on.stderr


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="there is no /proc/self/cwd")
def test_two_nodes_of_a_cluster_run_one_sweep_in_s3_and_each_builds_its_own_features(s3, frozen_spec, tmp_path, done):
    spec = frozen_spec.model_copy(update={"trials": TRIALS})
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    with ray_nodes.cluster(*(RayNode(folder=str(folder)) for folder in folders)) as running:
        words = [*in_store(spec, tmp_path, "--address", running.address), "--cache-dir", "/proc/self/cwd/cache"]
        patient = ray_nodes.environment()
        ran = subprocess.run(
            words, capture_output=True, encoding="utf-8", timeout=PATIENCE_SECONDS, check=False, env=patient,
            cwd=folders[0],
        )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    in_a_folder = [json.loads(path.read_text()) for path in (done[1] / "tiny" / "trials").glob("*.json")]
    alone = [one for one in in_a_folder if one["mode"] == "feature_extraction"]
    assert numbers(documents(ObjectPath.of(f"{STORAGE}/tiny"))) == numbers(alone)
    assert [len(list((folder / "cache" / "features").glob("*/entry.json"))) for folder in folders] == [2, 2]


def assert_commands_work(folder: ObjectPath, tmp_path: Path) -> None:
    """`status`, `report` and `export` read the object store, and `export` writes there or here."""
    status = said(["status", "tiny", "--json"], "--storage", STORAGE)
    assert json.loads(status.stdout)["state"] == "done", status.stderr
    report = said(["report", "tiny"], "--storage", STORAGE)
    assert report.stdout == (folder / "report.md").read_text()
    exported = said(["export", "tiny", "--model"], "--storage", STORAGE)
    written = [ObjectPath.of(line) for line in exported.stdout.splitlines()]
    assert [path.exists() for path in written] == [True, True], exported.stderr
    local = said(["export", "tiny", "--out", str(tmp_path / "out")], "--storage", STORAGE)
    assert (tmp_path / "out" / written[0].name).read_bytes() == written[0].read_bytes(), local.stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["status", "none"], "No sweep 'none' under s3://sweeps/refused. It has no sweeps yet"),
        (["analyse", "-", "mutual_information"], "analyses are written into a folder; name one with --out DIR"),
        (["ui"], "MLflow's SQLite store cannot be in an object store; name an MLflow server"),
        (["demo"], "MLflow's SQLite store cannot be in an object store; name an MLflow server"),
    ],
)
def test_what_an_object_store_does_not_have_is_refused_in_one_line(words, line, s3):
    refused = said(words, "--storage", f"s3://{BUCKET}/refused")
    assert refused.returncode == 2, refused.stderr
    assert line in refused.stderr
    assert refused.stderr.count("\n") == 1
