"""A sweep in MLflow's dashboard: the server of `ui`, which ends with all it started; and what a cell's run holds."""

from __future__ import annotations

import http.client
import json
import os
import queue
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from mlflow import MlflowClient

from meltpoint.sweeps.ledger.records import Trial
from meltpoint.sweeps.specification.provenance import code_version
from meltpoint.sweeps.specification.tracking_uri import default_uri
from meltpoint.sweeps.tracking import dashboard
from meltpoint.sweeps.tracking.dashboard import CellEnding, sweep_fragments
from meltpoint.sweeps.tracking.runs import Runs
from meltpoint.tests.local_servers import free_ports

DEADLINE_SECONDS = 150.0
SERVE = "import sys; from pathlib import Path; from meltpoint.sweeps.tracking.dashboard import serve; "
SERVE += "sys.exit(serve(Path(sys.argv[1]), None, int(sys.argv[2])))"


@pytest.fixture(scope="module")
def moved_storage(tmp_path_factory: pytest.TempPathFactory, made_store: Path, file_name: Callable[[str], str]) -> Path:
    """A storage folder with a store that holds the experiment `first`; it was moved since."""
    made = Path(shutil.copy(made_store, tmp_path_factory.mktemp("made"))).parent
    runs = Runs("first", default_uri(made), made)
    run = runs.client.create_run(runs._create_experiment("{}"))
    runs.writer.write(run.info.run_id, run.info.artifact_uri, "report.md", "# Sweep first")
    return made.rename(made.with_name(file_name("rüns #1, 50%")))


@pytest.fixture
def served(moved_storage: Path) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """A process that serves the store, its port, and the line that it printed once it was up."""
    port = free_ports(1)[0]
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(moved_storage), str(port)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        encoding="utf-8", start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        yield process, port, line_with("Dashboard", process)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(timeout=DEADLINE_SECONDS)


def line_with(word: str, process: subprocess.Popen[str]) -> str:
    """The first line of standard error with a word in it; everything after it is read and dropped."""
    assert process.stderr is not None
    stream, lines = process.stderr, queue.Queue[str]()
    threading.Thread(target=lambda: deque(map(lines.put, stream), maxlen=0), daemon=True).start()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        line = lines.get(timeout=left)
        if word in line:
            return line
    raise AssertionError(f"no line with {word}")


def ask(port: int, host: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    body = json.dumps({"max_results": 10})
    headers = {"Content-Type": "application/json", "Host": host}
    connection.request("POST", "/api/2.0/mlflow/experiments/search", body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def artifact(moved_storage: Path, port: int) -> str:
    """What the dashboard shows of report.md of the only run."""
    client = MlflowClient(default_uri(moved_storage))
    experiment = client.get_experiment_by_name("first")
    assert experiment is not None
    run = client.search_runs([experiment.experiment_id])[0].info.run_id
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", f"/get-artifact?path=report.md&run_uuid={run}")
    return connection.getresponse().read().decode()


def listens(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_the_stores_experiments_and_a_signal_ends_it_with_all_it_started(
    served: tuple[subprocess.Popen[str], int, str], moved_storage: Path, ending: signal.Signals
) -> None:
    process, port, line = served
    assert line == f"Dashboard  http://127.0.0.1:{port}  (press Ctrl-C to stop)\n"
    status, text = ask(port, f"127.0.0.1:{port}")
    assert status == 200
    assert "first" in {experiment["name"] for experiment in json.loads(text)["experiments"]}
    assert artifact(moved_storage, port) == "# Sweep first"
    assert ask(port, "evil.example.org")[0] == 403
    started = psutil.Process(process.pid).children(recursive=True)
    assert len(started) >= 2
    with pytest.raises(ValueError, match="name another one with --port"):
        dashboard.check_port(port)
    process.send_signal(ending)
    assert process.wait(timeout=DEADLINE_SECONDS) == 0
    assert psutil.wait_procs(started, timeout=DEADLINE_SECONDS)[1] == []
    assert not listens(port)
    dashboard.check_port(port)
    assert process.stdout is not None
    assert process.stdout.read() == ""


def test_a_storage_without_a_store_is_refused_and_none_is_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"MLflow store .*mlflow\.db does not exist yet; run a sweep"):
        dashboard.serve(tmp_path, None, free_ports(1)[0])
    assert list(tmp_path.iterdir()) == []


def test_a_taken_port_is_refused_before_a_server_starts(moved_storage: Path) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ValueError, match="name another one with --port"):
            dashboard.serve(moved_storage, None, taken.getsockname()[1])


def test_of_a_server_it_only_says_where_it_is_and_never_the_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dashboard.serve(tmp_path, "http://anna:secret@tracking:5000", 5000) == 0
    assert capsys.readouterr() == ("", "Dashboard  http://tracking:5000\n")


def test_a_server_that_ends_at_once_is_reported_and_not_waited_for(capfd: pytest.CaptureFixture[str]) -> None:
    crash = [sys.executable, "-c", "import sys; print('boom'); sys.exit(3)"]
    assert dashboard._run(crash, dict(os.environ), free_ports(1)[0]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert "boom" in err
    assert "did not start (status 3)" in err


def test_the_stores_password_is_not_on_the_command_line(tmp_path: Path) -> None:
    uri = "postgresql://anna:secret@db/mlflow"
    assert not any("secret" in word for word in dashboard.command(tmp_path, 5000))
    assert dashboard.environment(uri)["MLFLOW_BACKEND_STORE_URI"] == uri


BEGAN = 1.7e9


@pytest.fixture
def runs(mlflow_storage: Path, cells, request: pytest.FixtureRequest) -> Runs:
    made = Runs(request.node.name[:60], default_uri(mlflow_storage), mlflow_storage)
    made.open(cells, "{}", BEGAN)
    return made


@pytest.fixture
def cell(cells, proposal: Trial):
    """The cell of `proposal`, which is fine-tuned."""
    return next(cell for cell in cells if cell.key == proposal.cell)


def train(runs: Runs, proposal: Trial, record) -> None:
    runs.begin(proposal, code_version(), BEGAN)
    runs.write(proposal.id, record.epochs, record)


def close(runs: Runs, cell, ending: CellEnding, done: bool = True) -> None:
    texts = {"report.md": "# A sweep"}
    runs.close(cell.key, {"best_dev": 0.5}, done, texts, {}, BEGAN, ending)


def cell_run(runs: Runs, cell):
    """The one run of a cell."""
    where = f"tags.`meltpoint.role` = 'cell' and tags.`meltpoint.cell` = '{cell.name}'"
    (run,) = runs.client.search_runs([runs.experiment], where)
    assert run.info.run_id == runs.parents[cell.key]
    return run


def marked(runs: Runs) -> set[str]:
    found = runs.client.search_runs([runs.experiment], "tags.`meltpoint.is_best` = 'true'")
    return {run.data.tags["meltpoint.trial"] for run in found}


def others(proposal: Trial, *names: str) -> list[Trial]:
    return [proposal.model_copy(update={"id": name * 16, "number": place}) for place, name in enumerate(names, 1)]


def test_a_trial_has_its_name_its_colour_and_its_times(runs, proposal, make_record):
    train(runs, proposal, make_record(proposal))
    run = runs.client.get_run(runs.runs[proposal.id])
    assert run.info.run_name == "🔥 tiny_reviews · trial 1"
    assert run.data.tags["mlflow.runColor"].startswith("#")
    assert run.info.end_time - run.info.start_time == 3000, "as the record says"


def test_a_cell_shows_its_best_score_while_the_sweep_runs(runs, mlflow_storage, cells, cell, proposal, make_record):
    stopped, final, *trials = others(proposal, "d", "e", "a", "b", "c")
    train(runs, stopped, make_record(stopped, status="stopped", dev=(0.9,)))
    train(runs, final.model_copy(update={"role": "final"}), make_record(final, role="final", dev=(0.9,)))
    for trial, dev in zip([proposal, *trials], (0.5, 0.75, 0.6, 0.75), strict=True):
        train(runs, trial, make_record(trial, dev=(dev,)))
    later = Runs(runs.sweep, runs.uri, mlflow_storage)
    later.open(cells, "{}", BEGAN)
    (worse,) = others(proposal, "f")
    train(later, worse, make_record(worse, dev=(0.7,)))
    assert cell_run(runs, cell).data.metrics["best_dev"] == 0.75


def test_of_errors_the_lowest_is_the_best_so_far(runs, cell, proposal, make_record):
    for dev in (0.5, 0.25, 0.75):
        runs._note_best(make_record(proposal, dev=(dev,)).model_copy(update={"metric": "mae"}))
    assert runs.best[cell.key] == 0.25


def test_at_the_end_a_cell_has_its_files_and_a_description_with_links(
    runs, mlflow_storage, cell, proposal, make_record
):
    train(runs, proposal, make_record(proposal))
    file = mlflow_storage / "some.yaml"
    file.write_text("learning_rate: 1", encoding="utf-8")
    missing = mlflow_storage / "not there"
    files = {"best.yaml": file, "predictions/seed0.test.jsonl": file, "none": missing}
    close(runs, cell, CellEnding("**1/2 ★** …\n\nMore.", proposal.id, files=files))
    run = cell_run(runs, cell)
    assert run.data.params["task"] == "tiny_reviews"
    note = run.data.tags["mlflow.note.content"]
    assert note.startswith("**1/2 ★** …  \n[")
    assert note.endswith("\n\nMore.")
    assert f"[best trial](#/experiments/{runs.experiment}/runs/{runs.runs[proposal.id]}?" in note
    folder = mlflow_storage / "mlartifacts" / runs.sweep / run.info.run_id / "artifacts"
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == {"best.yaml", "predictions/seed0.test.jsonl", "report.md", "space.yaml"}


def test_the_end_of_a_sweep_marks_the_trial_that_it_chose(runs, cell, proposal, make_record):
    first, chosen = others(proposal, "a", "b")
    for trial in (first, chosen):
        train(runs, trial, make_record(trial, dev=(0.75,)))
    close(runs, cell, CellEnding(best=first.id))
    assert marked(runs) == {first.id}
    close(runs, cell, CellEnding(best=chosen.id))
    assert marked(runs) == {chosen.id}


def test_a_sweep_that_grew_has_its_new_winner_in_the_cells_one_run_with_all_trials_below(
    runs, cell, proposal, make_record
):
    (later,) = others(proposal, "a")
    former = proposal.model_copy(update={"id": "f" * 16, "role": "final", "number": 0})
    for trial in (proposal, former):
        train(runs, trial, make_record(trial))
    close(runs, cell, CellEnding("one", proposal.id))
    before = cell_run(runs, cell)
    better = later.model_copy(update={"setting": {**proposal.setting, "learning_rate": 0.123}})
    train(runs, better, make_record(better, dev=(0.9,)))
    close(runs, cell, CellEnding("two", better.id, former=(former.id,)))
    run = cell_run(runs, cell)
    assert run.data.tags["mlflow.note.content"].startswith("two")
    assert run.info.run_id == before.info.run_id
    below = runs.client.search_runs([runs.experiment], f"tags.`mlflow.parentRunId` = '{run.info.run_id}'")
    assert {one.data.tags["meltpoint.trial"] for one in below} == {proposal.id, former.id, better.id}
    assert runs.client.get_run(runs.runs[former.id]).data.tags["meltpoint.final_of"].endswith("former best setting")


def rows(mlflow_storage: Path) -> list[str]:
    """All that a store holds."""
    with closing(sqlite3.connect(mlflow_storage / "mlflow.db")) as store:
        return list(store.iterdump())


@pytest.mark.parametrize("done", [True, False])
def test_a_later_command_that_finds_nothing_new_writes_nothing(
    runs, mlflow_storage, cells, proposal, make_record, done
):
    train(runs, proposal, make_record(proposal))
    told, texts = {"meltpoint.warnings": "few seeds", "place": "1/3"}, {"report.md": "# A sweep"}

    def closed(runs: Runs, at: float, dev: float = 0.1 + 0.2) -> list[str]:
        for cell in cells:
            figures = {"best_dev": dev, "seeds": 2.0}
            runs.close(cell.key, figures, done, texts, told, at, CellEnding("one", proposal.id))
        return rows(mlflow_storage)

    before = closed(runs, BEGAN + 10)
    later = Runs(runs.sweep, runs.uri, mlflow_storage)
    later.open(cells, "{}", BEGAN + 60, is_over=True)
    assert closed(later, BEGAN + 61) == before
    assert len(closed(later, BEGAN + 62, dev=0.9)) == len(before) + len(cells), "a new score is a row of each cell"


def test_the_address_of_a_sweep_opens_its_cells(runs):
    page = sweep_fragments(runs.uri, runs.sweep)[runs.sweep]
    assert page.startswith(f"#/experiments/{runs.experiment}/runs?")
    assert "searchFilter=tags.%60meltpoint.role%60+%3D+%27cell%27" in page
    with pytest.raises(ValueError, match=r"has no sweep 'other'. Sweeps: .*test_the_address"):
        sweep_fragments(runs.uri, "other")
