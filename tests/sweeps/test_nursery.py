"""The nursery: workers are forked with their imports; and where it cannot, Ray starts them in its own way."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from meltpoint.sweeps.newborn import NURSERY
from meltpoint.sweeps.nursery import COMMAND, Nursery

SAYS = """
import json, os, sys
here = ["torch" in sys.modules, "meltpoint.tasks.core.locked" in sys.modules]
print(json.dumps([sys.argv, os.environ.get("MARK"), os.getcwd(), *here]))
sys.stderr.write("an error")
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are safe on Linux alone")


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    opened = Nursery()
    opened.open("minilm-that-is-not-there", "sentence_classification")  # the trial says so, not the nursery
    yield opened
    opened.close()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A worker's script, beside one for Ray's own way."""
    (tmp_path / "worker.py").write_text(SAYS, encoding="utf-8")
    (tmp_path / "setup_worker.py").write_text("import sys\nprint('in its own way', *sys.argv[2:])", encoding="utf-8")
    return tmp_path / "worker.py"


def newborn(listening: str, script: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(COMMAND), str(script), *words], cwd=script.parent, capture_output=True, text=True,
        timeout=60, env={**os.environ, NURSERY: listening, "MARK": "mine"}, check=False,
    )  # fmt: skip


def gone(process: int) -> bool:
    return not Path(f"/proc/{process}").exists()


def test_a_worker_is_what_it_was_started_as_with_torch_and_no_key_to_tests(nursery: Nursery, script: Path) -> None:
    done = newborn(nursery.socket_path, script, "--node=1", "--language=PYTHON")
    assert done.stdout == f'[["{script}", "--node=1"], "mine", "{script.parent}", true, false]\n'
    assert (done.stderr, done.returncode) == ("an error", 0)


def test_the_newborn_lives_as_long_as_its_worker(nursery: Nursery, script: Path) -> None:
    script.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)", encoding="utf-8")
    command = [sys.executable, str(COMMAND), str(script)]
    environment = {**os.environ, NURSERY: nursery.socket_path}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as started:
        assert started.stdout is not None
        worker = int(started.stdout.readline())
        assert worker != started.pid
        assert started.poll() is None
        assert os.getpgid(worker) == worker, "Ray ends a worker's process group"
        os.kill(worker, 9)
        assert started.wait(30) == 0


def test_a_worker_with_a_runtime_environment_starts_in_rays_own_way(nursery: Nursery, script: Path) -> None:
    done = newborn(nursery.socket_path, script, "--serialized-runtime-env-context={}", "--language=PYTHON")
    assert done.stdout == "in its own way --serialized-runtime-env-context={} --language=PYTHON\n"


@pytest.mark.parametrize("listening", ["", "/nobody/listens/here"])
def test_without_a_nursery_a_worker_starts_in_rays_own_way(listening: str, script: Path) -> None:
    assert newborn(listening, script, "--language=PYTHON").stdout == "in its own way --language=PYTHON\n"


def test_a_nursery_with_several_threads_forks_nobody(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meltpoint.sweeps.nursery.ONE_THREAD", {"PYTHONSTARTUP": ""})
    (script.parent / "pandas.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
        encoding="utf-8",
    )
    monkeypatch.setenv("PYTHONPATH", f"{script.parent}:{os.environ.get('PYTHONPATH', '')}")
    opened = Nursery()
    opened.open("random", "sentence_classification")
    try:
        assert newborn(opened.socket_path, script).stdout == "in its own way\n"
    finally:
        opened.close()


def test_the_nursery_ends_with_a_driver_that_is_killed() -> None:
    driver = (
        "import time\nfrom meltpoint.sweeps.nursery import Nursery\nnursery = Nursery()\n"
        "nursery.open('random', 'sentence_classification')\nprint(nursery._process.pid, flush=True)\ntime.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", driver], stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        process = int(started.stdout.readline())
        assert not gone(process)
        started.kill()
    deadline = time.monotonic() + 60  # it looks after its imports
    while not gone(process) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert gone(process)
