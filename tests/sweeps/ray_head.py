"""A Ray head with a dashboard for tests: processes, folder and ports of its own, ended by the processes' ids."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from meltpoint.sweeps.on_ray.jobs import JobClient
from meltpoint.tests.local_servers import free_ports

START_SECONDS, END_SECONDS = 180.0, 15.0
TRIALS = 3


@contextmanager
def ray_head(token: str, cpus: int = 2) -> Iterator[str]:
    """The URL of the dashboard of a head that asks for a token and takes jobs.

    On a busy machine a head may take longer to start than the 30 s that Ray grants it; then another one is started.
    """
    folder = tempfile.mkdtemp(prefix="mpr-", dir="/tmp")  # the paths of sockets must be short
    try:
        for trials_left in reversed(range(TRIALS)):
            url, process, log = started(Path(folder), token, cpus)
            try:
                wait_until_it_answers(url, process, log)
                wait_until_it_takes_jobs(url, token, process, log)
                break
            except AssertionError:
                end(process)
                if not trials_left:
                    raise
        try:
            yield url
        finally:
            end(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def started(folder: Path, token: str, cpus: int) -> tuple[str, subprocess.Popen[bytes], Path]:
    """(the URL of its dashboard, its process, its log) of a head that is starting."""
    names = (
        "port", "dashboard-port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port", "metrics-export-port",
        "runtime-env-agent-port", "node-manager-port", "object-manager-port", "ray-client-server-port",
    )  # fmt: skip
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    words = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--include-dashboard=true",
        "--dashboard-host=127.0.0.1", "--node-ip-address=127.0.0.1", f"--num-cpus={cpus}", f"--temp-dir={folder}",
        "--disable-usage-stats", *(f"--{name}={port}" for name, port in ports.items()),
    ]  # fmt: skip
    log = folder / "start.log"
    with log.open("w") as file:
        process = subprocess.Popen(words, stdout=file, stderr=file, env=environment(token), start_new_session=True)
    return f"http://127.0.0.1:{ports['dashboard-port']}", process, log


def environment(token: str) -> Mapping[str, str]:
    """The environment of every process of the cluster: this Python first, and the token."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    left = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**left, "PATH": path, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_USAGE_STATS_ENABLED": "0"}


def wait_until_it_answers(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until the job server asks for a token, or the head has ended."""
    deadline = time.monotonic() + START_SECONDS
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while process.poll() is None and time.monotonic() < deadline:
        try:
            opener.open(f"{url}/api/jobs/", timeout=2)
        except urllib.error.HTTPError as error:
            if error.code == 401:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise AssertionError(log.read_text(encoding="utf-8", errors="replace")[-3000:])


def wait_until_it_takes_jobs(url: str, token: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until a job has run: the part of Ray that takes jobs is up later than the dashboard."""
    deadline = time.monotonic() + START_SECONDS
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN", token)
        client = JobClient(url)
    while process.poll() is None and time.monotonic() < deadline:
        try:
            client.submit("first-of-all", "true", {}, {})
        except ValueError:
            continue
        assert client.wait("first-of-all", START_SECONDS).status == "SUCCEEDED", client.log("first-of-all")
        return
    raise AssertionError(log.read_text(encoding="utf-8", errors="replace")[-3000:])


def end(process: subprocess.Popen[bytes]) -> None:
    """End the head and every process that it has started, by their ids."""
    if process.poll() is not None:  # with --block it ends its own ones, also where it fails
        return
    started = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    process.terminate()
    _, alive = psutil.wait_procs(started, timeout=END_SECONDS)
    for one in alive:
        one.kill()
    psutil.wait_procs(alive, timeout=END_SECONDS)
    process.wait()
