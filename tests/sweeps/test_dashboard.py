"""ui: a real server on a real store, ended with everything it started; and what it refuses before it starts one."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from mlflow import MlflowClient

from meltpoint.sweeps.specification.tracking_uri import default_uri
from meltpoint.sweeps.tracking import dashboard
from meltpoint.sweeps.tracking.runs import Runs
from meltpoint.tests.local_servers import free_ports

DEADLINE_SECONDS = 150.0
TERMINAL: list[int] = []
SERVE = "import sys; from pathlib import Path; from meltpoint.sweeps.tracking.dashboard import serve; "
SERVE += "sys.exit(serve(Path(sys.argv[1]), None, int(sys.argv[2])))"


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory, file_name: Callable[[str], str]) -> Path:
    """A storage folder with a store that holds the experiment `first`; it was moved since."""
    made = tmp_path_factory.mktemp("made")
    runs = Runs("first", default_uri(made), made)
    run = runs.client.create_run(runs._create_experiment("{}"))
    runs.files.write(run.info.run_id, run.info.artifact_uri, "report.md", "# Sweep first")
    return made.rename(made.with_name(file_name("rüns #1, 50%")))


@pytest.fixture
def terminal() -> Iterator[int]:
    """The other end of a terminal, which is in `TERMINAL`; closing it is closing the terminal."""
    other, TERMINAL[:] = (pair := os.openpty())[0], pair[1:]
    yield other
    with suppress(OSError):
        os.close(other)
    os.close(TERMINAL.pop())


def in_the_terminal() -> None:
    """A new session with the terminal. A shell's background jobs ignore SIGINT, and so would all that they start."""
    os.setsid()
    fcntl.ioctl(TERMINAL[0], termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def served(storage: Path, terminal: int) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """A process that serves the store, its port, and the line that it printed once it was up."""
    port = free_ports(1)[0]
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(storage), str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        preexec_fn=in_the_terminal,
    )
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


def artifact(storage: Path, port: int) -> str:
    """What the dashboard shows of report.md of the only run."""
    client = MlflowClient(default_uri(storage))
    experiment = client.get_experiment_by_name("first")
    assert experiment is not None
    run = client.search_runs([experiment.experiment_id])[0].info.run_id
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", f"/get-artifact?path=report.md&run_uuid={run}")
    return connection.getresponse().read().decode()


def listens(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def children(process: int) -> list[int]:
    """The processes that a process started, from /proc."""
    found = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="utf-8").split()
    return [int(word) for word in found]


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc to see the server's processes")
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, None])
def test_it_serves_the_stores_experiments_and_a_signal_ends_it_with_all_it_started(
    served: tuple[subprocess.Popen[str], int, str], storage: Path, terminal: int, ending: signal.Signals | None
) -> None:
    """Also the end of its terminal (None)."""
    process, port, line = served
    assert line == f"Dashboard  http://127.0.0.1:{port}  (press Ctrl-C to stop)\n"
    status, text = ask(port, f"127.0.0.1:{port}")
    assert status == 200
    assert "first" in {experiment["name"] for experiment in json.loads(text)["experiments"]}
    assert artifact(storage, port) == "# Sweep first"
    assert ask(port, "evil.example.org")[0] == 403
    started = [child for parent in children(process.pid) for child in (parent, *children(parent))]
    assert len(started) >= 2
    with pytest.raises(ValueError, match="name another one with --port"):
        dashboard.check_port(port)
    if ending is None:
        os.close(terminal)
    else:
        process.send_signal(ending)
    assert process.wait(timeout=DEADLINE_SECONDS) == 0
    assert not any(map(is_alive, started))
    assert not listens(port)
    dashboard.check_port(port)
    assert process.stdout is not None
    assert process.stdout.read() == ""


def test_a_storage_without_a_store_is_refused_and_none_is_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"MLflow store .*mlflow\.db does not exist yet; run a sweep"):
        dashboard.serve(tmp_path, None, free_ports(1)[0])
    assert list(tmp_path.iterdir()) == []


def test_a_taken_port_is_refused_before_a_server_starts(storage: Path) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ValueError, match="name another one with --port"):
            dashboard.serve(storage, None, taken.getsockname()[1])


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
