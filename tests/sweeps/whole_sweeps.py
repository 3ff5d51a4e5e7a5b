"""Whole sweeps through the command line, for tests: run one, read its ledger and its MLflow runs, wait for it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from mlflow.tracking import MlflowClient

from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tests.local_servers import QuietHandler, served_by

TRIALS, SEEDS = 3, 2
PATIENCE_SECONDS = 240


def command(spec: SweepSpec, storage: Path, *more: str, **changes: object) -> list[str]:
    """The command line that asks for a specification."""
    spec = spec.model_copy(update=changes)
    assert spec.space is not None
    return [
        sys.executable, "-m", "meltpoint.launch", "sweep", "--name", spec.name, "--encoder", spec.encoders[0],
        "--mode", ",".join(spec.modes), "--task", spec.tasks[0], "--head", "linear", "--trials", str(spec.trials),
        "--seeds", str(spec.seeds), "--space", spec.space, "--storage", str(storage),
        "--default-finals" if spec.default_finals else "--no-default-finals", *more,
    ]  # fmt: skip


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, encoding="utf-8", timeout=PATIENCE_SECONDS, check=False)


def records(storage: Path, name: str = "tiny") -> list[dict]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in (storage / name / "trials").glob("*.json")]


def roles(storage: Path) -> Counter:
    return Counter(record["role"] for record in records(storage))


def mlflow_runs(storage: Path, name: str = "tiny") -> list:
    """A sweep's runs in MLflow; none where it ended before it had made the store, which a client would make here."""
    if not (storage / "mlflow.db").exists():
        return []
    client = MlflowClient(f"sqlite:///{storage / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(name)
    return client.search_runs([experiment.experiment_id], max_results=1000) if experiment is not None else []


def assert_whole(storage: Path, cells: int, trials: int, seeds: int) -> None:
    """Every trial exactly once in the ledger and in MLflow, and no run left running."""
    found = records(storage)
    assert roles(storage) == {"search": cells * trials, "final": cells * seeds}
    assert {record["status"] for record in found} == {"finished"}
    trained = [json.dumps([r["mode"], r["seed"], r["role"], r["setting"]], sort_keys=True) for r in found]
    assert len(set(trained)) == len(trained), "no setting is trained twice"
    runs = mlflow_runs(storage)
    assert Counter(run.data.tags["meltpoint.role"] for run in runs) == {
        "cell": cells, "search": cells * trials, "final": cells * seeds,
    }  # fmt: skip
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert {run.info.run_id for run in runs} >= {record["mlflow_run_id"] for record in found}
    assert not list((storage / "tiny" / "started").iterdir())


def wait_until(holds: Callable[[], object], process: subprocess.Popen, seconds: float = PATIENCE_SECONDS) -> None:
    """Until something holds, or the process ended."""
    deadline = time.monotonic() + seconds
    while not holds() and process.poll() is None:
        assert time.monotonic() < deadline, "the sweep does not get on"
        time.sleep(0.02)


def wait_for(storage: Path, count: int, process: subprocess.Popen) -> None:
    """Until the ledger has so many trials, or the process ended."""
    wait_until(lambda: len(records(storage)) >= count, process)


def in_the_background() -> None:
    """What a shell does to a command with `&` behind it, or to one that nohup starts in a script."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def started(words: list[str], log: Path, before: Callable[[], None] | None = None) -> subprocess.Popen:
    with log.open("a") as file:
        return subprocess.Popen(words, stdout=file, stderr=file, preexec_fn=before)


@contextmanager
def hung_server() -> Iterator[str]:
    """A server that answers the questions before the first trial, and no other."""

    class Handler(QuietHandler):
        def get(self) -> None:
            if "experiments/search" in self.path:
                self.answer(200, "{}")
            elif self.path == "/version":
                self.answer(200, metadata.version("mlflow"))
            else:
                ended.wait()

        def post(self) -> None:
            ended.wait()

    ended = threading.Event()
    with served_by(Handler) as uri:
        try:
            yield uri
        finally:
            ended.set()
