"""The fork server: workers are forked with their imports; and where it cannot, Ray starts them in its own way."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from meltpoint.sweeps.on_ray import fork_server as fork_server_module
from meltpoint.sweeps.on_ray import forked_worker
from meltpoint.sweeps.on_ray.fork_server import MALLOC, ForkServer, environment
from meltpoint.sweeps.on_ray.forked_worker import FORKING, Forking

COMMAND = Path(forked_worker.__file__)

SAYS = """
import json, os, sys
here = ["torch" in sys.modules, "meltpoint.tasks.core.locked" in sys.modules]
print(json.dumps([sys.argv, os.environ.get("MARK"), os.getcwd(), *here]))
sys.stderr.write("an error")
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are safe on Linux alone")


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    opened = ForkServer()
    opened.open("minilm-that-is-not-there", "sentence_classification")  # the trial says so, not the fork server
    yield opened
    opened.close()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A worker's script, beside one for Ray's own way."""
    (tmp_path / "worker.py").write_text(SAYS, encoding="utf-8")
    (tmp_path / "setup_worker.py").write_text("import sys\nprint('in its own way', *sys.argv[2:])", encoding="utf-8")
    return tmp_path / "worker.py"


def told(listening: str, script: Path) -> str:
    """What the raylet's environment says."""
    setup = str(script.with_name("setup_worker.py"))
    return Forking(listening, setup, "--language=PYTHON", "--serialized-runtime-env-context").as_json()


def started(listening: str, script: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(COMMAND), str(script), *words], cwd=script.parent, capture_output=True, encoding="utf-8",
        timeout=60, env={**os.environ, FORKING: told(listening, script), "MARK": "mine"}, check=False,
    )  # fmt: skip


def gone(process: int) -> bool:
    return not Path(f"/proc/{process}").exists()


def test_a_worker_is_what_it_was_started_as_with_torch_and_no_key_to_tests(
    fork_server: ForkServer, script: Path
) -> None:
    done = started(fork_server.socket_path, script, "--node=1", "--language=PYTHON")
    assert json.loads(done.stdout) == [[str(script), "--node=1"], "mine", str(script.parent), True, False]
    assert (done.stderr, done.returncode) == ("an error", 0)


def test_only_the_end_of_rays_command_ends_a_worker_and_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a worker that ended while the thread began to listen lost what it had printed last."""
    statuses: list[int] = []
    monkeypatch.setattr(os, "_exit", statuses.append)
    mine, commands = socket.socketpair()
    mine.close()
    fork_server_module._end_with(mine)
    assert statuses == []
    mine, other = socket.socketpair()
    other.close()
    fork_server_module._end_with(mine)
    assert statuses == [1]
    mine.close()
    commands.close()


HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
TOUCHES = """
import resource, threading, torch
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
before = faults()
trial = threading.Thread(target=lambda: [torch.ones(1 << 24) for _ in range(3)])
trial.start(); trial.join()
print(faults() - before)
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or [int(n) for n in platform.libc_ver()[1].split(".")] < [2, 35],
    reason="glibc asks for huge pages from 2.35 on",
)
@pytest.mark.skipif(
    not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text(encoding="utf-8"), reason="the kernel gives none"
)
def test_a_trials_thread_gets_its_memory_in_huge_pages(fork_server: ForkServer, script: Path) -> None:
    script.write_text(TOUCHES, encoding="utf-8")
    done = started(fork_server.socket_path, script, "--language=PYTHON")
    pages = 3 * 2**26 // 4096
    assert int(done.stdout) < pages / 4, "a fault a page where the process has small ones"


def test_what_the_user_says_of_malloc_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    assert environment()["GLIBC_TUNABLES"] == MALLOC
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")
    assert environment()["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=0"


def test_rays_command_lives_as_long_as_its_worker(fork_server: ForkServer, script: Path) -> None:
    script.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)", encoding="utf-8")
    command = [sys.executable, str(COMMAND), str(script)]
    environment = {**os.environ, FORKING: told(fork_server.socket_path, script)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8", env=environment) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        assert worker != process.pid
        assert process.poll() is None
        assert os.getpgid(worker) == worker, "Ray ends a worker's process group"
        os.kill(worker, 9)
        assert process.wait(30) == 0


def test_a_worker_with_a_runtime_environment_starts_in_rays_own_way(fork_server: ForkServer, script: Path) -> None:
    done = started(fork_server.socket_path, script, "--serialized-runtime-env-context={}", "--language=PYTHON")
    assert done.stdout == "in its own way --serialized-runtime-env-context={} --language=PYTHON\n"


@pytest.mark.parametrize("listening", ["", "/nobody/listens/here"])
def test_without_a_fork_server_a_worker_starts_in_rays_own_way(listening: str, script: Path) -> None:
    assert started(listening, script, "--language=PYTHON").stdout == "in its own way --language=PYTHON\n"


def test_a_fork_server_with_several_threads_forks_nobody(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (script.parent / "sitecustomize.py").write_text(
        "import sys, threading, time\nif 'meltpoint.sweeps.on_ray.fork_server' in sys.orig_argv:\n"
        "    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
        encoding="utf-8",
    )
    monkeypatch.setenv("PYTHONPATH", f"{script.parent}:{os.environ.get('PYTHONPATH', '')}")
    opened = ForkServer()
    opened.open("random", "sentence_classification")
    try:
        assert started(opened.socket_path, script).stdout == "in its own way\n"
    finally:
        opened.close()


def test_the_fork_server_ends_with_a_driver_that_is_killed() -> None:
    driver = (
        "import time\nfrom meltpoint.sweeps.on_ray.fork_server import ForkServer\nserver = ForkServer()\n"
        "server.open('random', 'sentence_classification')\nprint(server._process.pid, flush=True)\ntime.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", driver], stdout=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stdout is not None
        server = int(process.stdout.readline())
        assert not gone(server)
        process.kill()
    deadline = time.monotonic() + 60  # it looks after its imports
    while not gone(server) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert gone(server)
