"""dashboard_sign_in: beyond this machine the dashboard asks who is there; on it, it does not."""

from __future__ import annotations

import base64
import http.client
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from meltpoint.sweeps.specification.tracking_uri import default_uri
from meltpoint.sweeps.tracking import dashboard, dashboard_sign_in
from meltpoint.sweeps.tracking.dashboard_sign_in import CONFIG, PASSWORD, check_sign_in, is_loopback, sign_in
from meltpoint.sweeps.tracking.runs import Runs
from meltpoint.tests.local_servers import free_ports

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
    with pytest.raises(ValueError, match=rf"^--host {host} shows the dashboard to everybody .*{PASSWORD}.*ssh -L"):
        dashboard.serve(tmp_path, None, host, 5000)
    assert list(tmp_path.iterdir()) == []


def test_a_short_password_is_refused_and_not_shown() -> None:
    with pytest.raises(ValueError, match="fewer than 12 characters") as refused:
        check_sign_in("0.0.0.0", {PASSWORD: "secret"})
    assert "secret" not in str(refused.value)


def test_without_the_package_for_sign_in_it_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard_sign_in, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"Flask-WTF; pip install 'meltpoint\[cluster\]'"):
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


SERVE = """
import sys
from pathlib import Path
from meltpoint.sweeps.tracking import dashboard, dashboard_sign_in
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
        [sys.executable, "-c", SERVE, str(tmp_path), str(port)], stderr=subprocess.PIPE, encoding="utf-8",
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
