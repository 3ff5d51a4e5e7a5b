"""ui: a real server on a real store, ended with everything it started; and what it refuses before it starts one."""

from __future__ import annotations

import base64
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
from meltpoint.sweeps.tracking.dashboard import CONFIG, PASSWORD, check_sign_in, is_loopback, sign_in
from meltpoint.sweeps.tracking.runs import Runs
from meltpoint.tests.local_servers import free_ports

DEADLINE_SECONDS = 150.0
TERMINAL: list[int] = []
SERVE = "import sys; from pathlib import Path; from meltpoint.sweeps.tracking.dashboard import serve; "
SERVE += "sys.exit(serve(Path(sys.argv[1]), None, '127.0.0.1', int(sys.argv[2])))"


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
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, None])
def test_it_serves_the_stores_experiments_and_a_signal_ends_it_with_all_it_started(
    served: tuple[subprocess.Popen[str], int, str], storage: Path, terminal: int, ending: signal.Signals | None
) -> None:
    """Also SIGKILL, and the end of its terminal (None)."""
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
        dashboard.check_port("127.0.0.1", port)
    if ending is None:
        os.close(terminal)
    else:
        process.send_signal(ending)
    killed = ending == signal.SIGKILL
    assert process.wait(timeout=DEADLINE_SECONDS) == (-signal.SIGKILL if killed else 0)
    deadline = time.monotonic() + (dashboard.STOP_SECONDS + 5 if killed else 0)
    while (left := [child for child in started if is_alive(child)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
    assert not listens(port)
    dashboard.check_port("127.0.0.1", port)
    assert process.stdout is not None
    assert process.stdout.read() == ""


def test_a_storage_without_a_store_is_refused_and_none_is_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"MLflow store .*mlflow\.db does not exist yet; run a sweep"):
        dashboard.serve(tmp_path, None, "127.0.0.1", free_ports(1)[0])
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("these are notes, not tables", encoding="utf-8")
    with pytest.raises(ValueError, match="is not an MLflow store"):
        dashboard.serve(tmp_path, None, "127.0.0.1", free_ports(1)[0])


def test_a_folder_of_files_is_refused_with_the_way_to_move_its_runs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="migrate-filestore"):
        dashboard.serve(tmp_path, str(tmp_path / "mlruns"), "127.0.0.1", free_ports(1)[0])


def test_a_taken_port_is_refused_before_a_server_starts(storage: Path) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ValueError, match="name another one with --port"):
            dashboard.serve(storage, None, "127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize(("ignored", "left"), [(True, True), (False, False)], ids=["nohup", "a terminal"])
def test_a_server_ends_with_the_terminal_but_not_under_nohup(ignored: bool, left: bool) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        with dashboard._terminable():
            assert (signal.getsignal(signal.SIGHUP) == signal.SIG_IGN) is left
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc to see the server's processes")
def test_a_guarded_process_group_ends_with_the_process_that_started_it() -> None:
    """The process that is guarded, and its child, ignore that the other one is gone."""
    starts = "import subprocess, sys, time; from meltpoint.sweeps.tracking.dashboard import GUARD; "
    starts += "sleeps = ['sh', '-c', 'sleep 60 & echo $$ $!; wait']; "
    starts += "subprocess.Popen(['/bin/sh', '-c', GUARD, 'sh', *sleeps], stdin=-1, start_new_session=True); "
    starts += "time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", starts], stdout=subprocess.PIPE, encoding="utf-8")
    assert parent.stdout is not None
    started = [int(word) for word in parent.stdout.readline().split()]
    assert len(started) == 2
    assert all(map(is_alive, started))
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 20
    while any(map(is_alive, started)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_alive, started))


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("127.0.0.1", 0, "from 1 to 65535"),
        ("127.0.0.1", 70000, "from 1 to 65535"),
        ("no such host", 5000, "unknown address"),
        ("203.0.113.7", 5000, "is not available"),  # documentation's own address: no machine has it
    ],
)
def test_an_address_that_cannot_be_had_is_refused(
    storage: Path, host: str, port: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_AUTH_ADMIN_PASSWORD", "a-password-of-twelve-or-more")
    with pytest.raises(ValueError, match=message):
        dashboard.serve(storage, None, host, port)


def test_of_a_server_it_only_says_where_it_is_and_never_the_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dashboard.serve(tmp_path, "http://anna:secret@tracking:5000", "127.0.0.1", 5000) == 0
    assert capsys.readouterr() == ("", "Dashboard  http://tracking:5000\n")


def test_a_server_that_ends_at_once_is_reported_and_not_waited_for(capfd: pytest.CaptureFixture[str]) -> None:
    crash = [sys.executable, "-c", "import sys; print('boom'); sys.exit(3)"]
    assert dashboard._run(crash, dict(os.environ), "127.0.0.1", free_ports(1)[0]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert "boom" in err
    assert "did not start (status 3)" in err


@pytest.mark.parametrize(("host", "let_through"), [("tracking.example.org", True), ("127.0.0.1", False), ("::", False)])
def test_only_a_host_name_changes_mlflows_host_check(
    host: str, let_through: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_SERVER_ALLOWED_HOSTS", raising=False)
    hosts = dashboard.environment("sqlite:///x.db", host, 5000).get("MLFLOW_SERVER_ALLOWED_HOSTS", "")
    assert (f"{host}:5000" in hosts.split(",")) is let_through


def test_the_server_reads_its_own_files_as_utf_8_in_any_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONUTF8", "0")
    variables = dashboard.environment("sqlite:///x.db", "127.0.0.1", 5000) | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    words = [sys.executable, "-c", "from mlflow.server.auth.config import read_auth_config; read_auth_config()"]
    read = subprocess.run(words, env=variables, capture_output=True, encoding="utf-8", check=False)
    assert read.returncode == 0, read.stderr


def test_the_hosts_that_a_person_allowed_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_SERVER_ALLOWED_HOSTS", "mlflow:*")
    assert dashboard.environment("sqlite:///x.db", "tracking", 5000)["MLFLOW_SERVER_ALLOWED_HOSTS"] == "mlflow:*"


def test_the_stores_password_is_not_on_the_command_line(tmp_path: Path) -> None:
    uri = "postgresql://anna:secret@db/mlflow"
    assert not any("secret" in word for word in dashboard.command(tmp_path, "127.0.0.1", 5000))
    assert dashboard.environment(uri, "127.0.0.1", 5000)["MLFLOW_BACKEND_STORE_URI"] == uri


@pytest.mark.parametrize(
    ("host", "shown"),
    [("127.0.0.1", "http://127.0.0.1:7"), ("0.0.0.0", "http://127.0.0.1:7"), ("::", "http://[::1]:7")],
)
def test_the_address_is_one_that_a_browser_can_open(host: str, shown: str) -> None:
    assert dashboard.address(host, 7) == shown


SECRET = "a-password-of-twelve-or-more"


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1", True), ("127.0.0.2", True), ("::1", True), ("localhost", True),
        ("0.0.0.0", False), ("::", False), ("", False), ("10.0.0.5", False), ("tracking.example.org", False),
        ("127.0.0.1.example.org", False),
    ],
)  # fmt: skip
def test_only_a_loopback_address_is_this_machine_alone(host: str, own: bool) -> None:
    assert is_loopback(host) is own


@pytest.mark.parametrize("host", ["0.0.0.0", "", "::", "tracking.example.org"])
def test_a_host_that_others_reach_is_refused_without_a_sign_in_before_anything_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    for name in (PASSWORD, CONFIG):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=rf"^--host {host} shows the dashboard to everyone .*{PASSWORD}.*ssh -L"):
        dashboard.serve(tmp_path, None, host, 5000)
    assert list(tmp_path.iterdir()) == []


def test_a_short_password_is_refused_and_not_shown() -> None:
    with pytest.raises(ValueError, match="fewer than 12 characters") as refused:
        check_sign_in("0.0.0.0", {PASSWORD: "secret"})
    assert "secret" not in str(refused.value)


def test_without_the_package_for_sign_in_it_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"Flask-WTF; run pip install 'meltpoint\[cluster\]'"):
        check_sign_in("0.0.0.0", {PASSWORD: SECRET})


def test_on_this_machine_nothing_is_asked_for() -> None:
    check_sign_in("127.0.0.1", {})
    with sign_in("127.0.0.1", {PASSWORD: SECRET}) as variables:
        assert variables == {}
    assert "--app-name" not in dashboard.command(Path("/runs"), "127.0.0.1", 5000)
    assert "basic-auth" in dashboard.command(Path("/runs"), "0.0.0.0", 5000)


def test_the_users_folder_is_this_accounts_alone_and_goes_with_the_server() -> None:
    with sign_in("0.0.0.0", {PASSWORD: SECRET}) as variables:
        config = Path(variables[CONFIG])
        assert config.parent.stat().st_mode & 0o077 == 0
        assert SECRET not in config.read_text(encoding="utf-8")
    assert not config.parent.exists()


def test_a_sign_in_of_ones_own_is_taken() -> None:
    with sign_in("0.0.0.0", {CONFIG: "/etc/mlflow/basic_auth.ini"}) as variables:
        assert variables[CONFIG] == "/etc/mlflow/basic_auth.ini"


SERVE_BEYOND = """
import sys
from pathlib import Path
from meltpoint.sweeps.tracking import dashboard, dashboard as dashboard_sign_in
# As if other machines reached this address: the tests listen on no other.
dashboard.is_loopback = dashboard_sign_in.is_loopback = lambda host: False
sys.exit(dashboard.serve(Path(sys.argv[1]), None, "127.0.0.1", int(sys.argv[2])))
"""


def status(port: int, sign_in: str | None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Authorization": "Basic " + base64.b64encode(sign_in.encode()).decode()} if sign_in else {}
    connection.request("GET", "/api/2.0/mlflow/experiments/search?max_results=5", headers=headers)
    return connection.getresponse().status


@pytest.mark.slow
def test_a_real_server_lets_in_who_signs_in_and_nobody_else(tmp_path: Path) -> None:
    Runs("first", default_uri(tmp_path), tmp_path)
    port = free_ports(1)[0]
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE_BEYOND, str(tmp_path), str(port)], stderr=subprocess.PIPE, encoding="utf-8",
        env={**os.environ, PASSWORD: SECRET},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        said = []
        while "Dashboard " not in (line := process.stderr.readline()):
            said.append(line)
            assert line, "".join(said)
        assert status(port, None) == 401
        assert status(port, "admin:another-password") == 401
        assert status(port, f"admin:{SECRET}") == 200
        assert SECRET not in "".join(said) + line
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
