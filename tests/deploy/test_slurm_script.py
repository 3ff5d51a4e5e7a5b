"""The Slurm script beside stand-ins for the commands that it calls."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SBATCH = Path(__file__).resolve().parents[2] / "deploy" / "slurm" / "sweep.sbatch"

COMMANDS = {
    "bin/python": (
        'if [ "$1" = -c ]; then exit 1; elif [ $# -eq 1 ]; then echo 23456; elif [ -n "${RAY_FAILS:-}" ]; then exit 1; '
        'else until [ -s "$HERE/ray" ]; do sleep 0.02; done; fi'
    ),
    "bin/ray": (
        'echo "$@" >>"$HERE/ray"; if [ -n "${RAY_FAILS:-}" ]; then exit 1; fi; '
        'ended() { echo "ray after $(cat "$HERE/noticed")" >"$HERE/ended"; exit 0; }; '
        "trap ended TERM; while :; do sleep 0.05; done"
    ),
    "bin/meltpoint": (
        'printf "%s\\n" "$@" >"$HERE/meltpoint"; cat "$RAY_AUTH_TOKEN_PATH" >"$HERE/token"; '
        'stat -c %a "$RAY_AUTH_TOKEN_PATH" >"$HERE/mode"; trap "echo TERM >\\"$HERE/noticed\\"; exit 143" TERM; '
        'touch "$HERE/started"; '
        'if [ -n "${ENDS_WITH:-}" ]; then exit "$ENDS_WITH"; fi; while :; do sleep 0.05; done'
    ),
    "slurm/srun": 'echo $$ >"$HERE/task"; while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
    "slurm/squeue": 'echo "${JOB_STATE:-RUNNING}"',
    "slurm/scancel": 'echo "$@" >>"$HERE/scancel"; kill -USR1 "$(cat "$HERE/script")"',
    "slurm/scontrol": 'echo "$@" >>"$HERE/scontrol"',
}


class Job:
    """One run of the script."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, body in COMMANDS.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"#!/bin/bash\n{body}\n", encoding="utf-8")
            path.chmod(0o755)
        self.process: subprocess.Popen[str] | None = None

    def start(self, *arguments: str, **environment: str) -> None:
        slurm = {"SLURM_JOB_ID": "900077", "SLURM_JOB_NUM_NODES": "1", "SLURM_NODEID": "0", "SLURM_CPUS_ON_NODE": "2"}
        here = {"HERE": str(self.folder), "PATH": f"{self.folder}/slurm:{os.environ['PATH']}"}
        ours = {"MELTPOINT_STORAGE": str(self.folder / "runs"), "MELTPOINT_BIN": str(self.folder / "bin")}
        self.process = subprocess.Popen(
            [SBATCH, *arguments], env={**slurm, **here, **ours, "SLURM_SUBMIT_DIR": "/", **environment},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
        )  # fmt: skip
        (self.folder / "script").write_text(str(self.process.pid), encoding="utf-8")

    def notice(self, number: signal.Signals, to: str = "script") -> None:
        """Wait for the driver, then send the script, or its task, what Slurm sends it."""
        deadline = time.monotonic() + 30
        while not (self.folder / "started").exists():
            assert time.monotonic() < deadline, "the driver did not start"
            time.sleep(0.02)
        os.kill(int(self.text(to)), number)

    def end(self) -> tuple[int, str]:
        assert self.process is not None
        said, _ = self.process.communicate(timeout=30)
        return self.process.returncode, said

    def text(self, name: str) -> str:
        path = self.folder / name
        return path.read_text(encoding="utf-8") if path.exists() else ""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    if job.process is not None and job.process.poll() is None:
        job.process.kill()
        job.process.wait()


def test_the_sweep_gets_the_jobs_own_cluster_whose_token_only_the_user_reads_and_whose_ports_are_free(job: Job) -> None:
    job.start("--name", "first", ENDS_WITH="0")
    status, said = job.end()
    assert status == 0, said
    words = job.text("meltpoint").splitlines()
    assert words[:4] == ["sweep", "--storage", str(job.folder / "runs"), "--address"]
    assert words[4].endswith(":23456")
    assert words[5:] == ["--name", "first"]
    assert (len(job.text("token")), job.text("mode")) == (64, "600\n")
    assert job.text("token") not in job.text("ray") + job.text("meltpoint")
    assert list((job.folder / "runs" / ".slurm").iterdir()) == [], "the token goes with the job"
    (start,) = [line for line in job.text("ray").splitlines() if line.startswith("start")]
    ports = {word.partition("=")[0]: word.partition("=")[2] for word in start.split() if "port=" in word}
    assert ports.pop("--port") == "23456"
    assert set(ports.values()) == {"0"}, "two jobs can share a node"
    assert {"--min-worker-port", "--max-worker-port", "--node-manager-port", "--object-manager-port"} <= set(ports)
    assert "--temp-dir=/tmp/ray-900077" in start


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_notice_reaches_the_driver_and_the_job_is_queued_again(job: Job, number: signal.Signals) -> None:
    job.start("--name", "first")
    job.notice(number)
    status, said = job.end()
    assert status == 143, said
    assert job.text("noticed") == "TERM\n"
    assert job.text("scontrol") == "requeue 900077\n"


def test_a_task_that_slurm_tells_first_tells_the_script_and_ray_goes_on_until_the_driver_has_ended(job: Job) -> None:
    job.start("--name", "first")
    job.notice(signal.SIGTERM, to="task")
    status, said = job.end()
    assert status == 143, said
    assert job.text("scancel") == "--batch --signal=USR1 900077\n"
    assert job.text("noticed") == "TERM\n"
    assert job.text("ended") == "ray after TERM\n"
    assert job.text("scontrol") == "requeue 900077\n"


@pytest.mark.parametrize("status", ["0", "1", "2", "143"])
def test_a_sweep_is_queued_again_only_where_slurm_told_its_driver_itself(job: Job, status: str) -> None:
    job.start("--name", "first", ENDS_WITH=status)
    assert job.end()[0] == int(status)
    assert job.text("scontrol") == ("requeue 900077\n" if status == "143" else "")


def test_a_cancelled_job_stays_cancelled(job: Job) -> None:
    job.start("--name", "first", JOB_STATE="COMPLETING")
    job.notice(signal.SIGTERM)
    assert job.end()[0] == 143
    assert job.text("scontrol") == ""


def test_where_ray_does_not_start_it_is_tried_three_times_and_no_sweep_begins(job: Job) -> None:
    job.start("--name", "first", RAY_FAILS="yes")
    status, said = job.end()
    assert status == 1
    assert "Ray did not start on the first node" in said
    assert job.text("ray").count("start --block") == 3
    assert job.text("meltpoint") == ""
    assert job.text("scontrol") == ""


def test_without_a_storage_it_says_what_to_name(job: Job) -> None:
    job.start("--name", "first", MELTPOINT_STORAGE="")
    status, said = job.end()
    assert status != 0
    assert "MELTPOINT_STORAGE: name a folder" in said
