"""The shipped Slurm script on a real Slurm: pre-empted, told by a signal, queued again twice, and done in the end.

`python tests/cluster/slurm.py [--keep]` as root, on a machine with Debian's slurm-wlm and munge; it ends with status 0
and says why where it cannot run. It starts munged, slurmctld and two slurmd of its own (one machine, two nodes, a GPU
each that is none) on sockets, ports and folders of its own, and ends them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from meltpoint.tests.local_servers import free_ports

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("slurmctld", "slurmd", "munged", "srun", "sbatch", "squeue", "scontrol", "scancel")
TRIALS = 6
SWEEP = [
    "--name", "slurm", "--encoder", "minilm", "--mode", "fine_tuning", "--task", "demo_sentiment", "--head", "linear",
    "--trials", str(TRIALS), "--seeds", "1", "--no-default-finals", "--set", "epochs=1", "--max-train-examples", "32",
    "--gpus-per-trial", "0",
]  # fmt: skip

CONFIG = """
ClusterName=meltpoint
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=20
ReturnToService=2
GresTypes=gpu
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 Gres=gpu:1 State=UNKNOWN
NodeName=two NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 Gres=gpu:1 State=UNKNOWN
PartitionName=low Nodes=one,two Default=YES PriorityTier=1 GraceTime=90 MaxTime=INFINITE State=UP
PartitionName=high Nodes=one,two PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP
"""


def reason_to_skip() -> str:
    """Why it cannot run here; empty where it can."""
    if missing := [name for name in NEEDED if shutil.which(name) is None]:
        return f"{', '.join(missing)} not found (Debian: apt install slurm-wlm munge)"
    return "" if os.geteuid() == 0 else "slurmd has to be started as root"


def until(what: str, ready: Callable[[], bool], seconds: float = 120) -> None:
    """Wait until a condition holds; an error that names it otherwise."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {seconds:.0f} s there is still not: {what}")
        time.sleep(0.5)


@contextmanager
def daemon(*command: str) -> Iterator[None]:
    """A process that ends with the block."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=60)


def slurm(*command: str) -> str:
    """What one of Slurm's commands prints."""
    return subprocess.run(command, check=True, capture_output=True, encoding="utf-8", timeout=60).stdout.strip()


@contextmanager
def cluster(folder: Path) -> Iterator[None]:
    """Slurm with two nodes; its commands find it by the environment."""
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    config = CONFIG.format(folder=folder, host=socket.gethostname().split(".")[0], ports=free_ports(3))
    (folder / "slurm.conf").write_text(config, encoding="utf-8")
    (folder / "gres.conf").write_text("NodeName=one,two Name=gpu File=/dev/null\n", encoding="utf-8")
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    munge = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    files = [f"--{kind}-file={folder}/munged.{kind}" for kind in ("pid", "log", "seed")]
    with ExitStack() as stack:
        stack.enter_context(daemon(*munge, *files))
        until("munged", (folder / "munge.socket").exists)
        stack.enter_context(daemon("slurmctld", "-D"))
        for node in ("one", "two"):
            (folder / f"spool-{node}").mkdir()
            stack.enter_context(daemon("slurmd", "-D", "-N", node))
        until("two idle nodes", lambda: nodes() == ["idle", "idle"])
        stack.callback(cancel_all)
        yield


def cancel_all() -> None:
    """End every job, so that none of their processes outlives this Slurm."""
    slurm("scancel", "--user=root")
    until("no job is left", lambda: slurm("squeue", "--noheader") == "", 180)


def nodes() -> list[str]:
    """The states of the nodes."""
    try:
        return slurm("sinfo", "--noheader", "--Node", "--partition=low", "--format=%T").split()
    except subprocess.CalledProcessError:
        return []


def state(job: str) -> str:
    """A job's state, COMPLETED where Slurm has forgotten it."""
    return field(job, "JobState") or "COMPLETED"


def field(job: str, name: str) -> str:
    """One of the values that `scontrol show job` prints."""
    try:
        shown = slurm("scontrol", "show", "job", job)
    except subprocess.CalledProcessError:
        return ""
    return next((word.partition("=")[2] for word in shown.split() if word.startswith(f"{name}=")), "")


class Sweep:
    """The sweep of the job, as its ledger shows it."""

    def __init__(self, storage: Path) -> None:
        self.storage = storage

    def finished(self) -> dict[str, float]:
        """Trial → when its record was written, of the search's finished trials."""
        files = (self.storage / "slurm" / "trials").glob("*.json")
        records = {path: json.loads(path.read_text(encoding="utf-8")) for path in files}
        return {
            record["id"]: path.stat().st_mtime
            for path, record in records.items()
            if record["role"] == "search" and record["status"] == "finished"
        }


def submit(folder: Path) -> str:
    """Submit the shipped script; the job's number."""
    environment = {"MELTPOINT_STORAGE": str(folder / "runs"), "MELTPOINT_BIN": str(Path(sys.executable).parent)}
    given = [f"{name}={value}" for name, value in environment.items()]
    script = str(ROOT / "deploy" / "slurm" / "sweep.sbatch")
    own = ["--parsable", "--cpus-per-task=1", "--mem=0", "--partition=low", f"--output={folder}/job.log"]
    return slurm("sbatch", *own, f"--export=ALL,{','.join(given)}", script, *SWEEP)


def interrupt(job: str, how: Callable[[], None], sweep: Sweep, restarts: int) -> dict[str, float]:
    """Interrupt the job once two more trials are done, and wait until it runs again; what was done before."""
    before = len(sweep.finished())
    until("two more trials", lambda: len(sweep.finished()) >= before + 2 or state(job) != "RUNNING", 900)
    assert state(job) == "RUNNING", f"the job is {state(job)}"
    how()
    until("the job is queued again", lambda: field(job, "Restarts") == str(restarts), 180)
    done = sweep.finished()
    print(f"interrupted after {len(done)} trials; queued again ({restarts})", flush=True)
    # Slurm itself waits two minutes, since a start in the same second finds the old start's credential revoked.
    slurm("scontrol", "update", f"JobId={job}", "StartTime=now+10")
    until("the job runs again", lambda: state(job) == "RUNNING", 180)
    return done


def preempt() -> None:
    """A job that is more important takes both nodes for a moment."""
    slurm("sbatch", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=srun sleep 3")


def check(done: list[dict[str, float]], sweep: Sweep, log: str) -> None:
    """Every trial is there once, and none that was done ran again."""
    last = sweep.finished()
    assert len(last) == TRIALS, f"{len(last)} trials of {TRIALS}"
    for earlier in done:
        changed = [trial for trial, written in earlier.items() if last.get(trial) != written]
        assert changed == [], f"these ran again: {changed}"
    assert log.count("is queued again, and the sweep continues then") == 2, log[-3000:]
    status = subprocess.run(
        [Path(sys.executable).parent / "meltpoint", "status", "slurm", "--json", "--storage", sweep.storage],
        check=True, capture_output=True, encoding="utf-8", timeout=120,
    )  # fmt: skip
    assert json.loads(status.stdout)["state"] == "done", status.stdout[:500]


def left_over(job: str) -> list[str]:
    """Processes of the job's Ray that still run."""
    shown = subprocess.run(["pgrep", "-fa", f"ray-{job}"], capture_output=True, encoding="utf-8", check=False)
    return shown.stdout.splitlines()


def main() -> None:
    """Run it."""
    if reason := reason_to_skip():
        print(f"skipped: {reason}")
        return
    folder = Path(tempfile.mkdtemp(prefix="meltpoint-slurm-"))
    sweep = Sweep(folder / "runs")
    try:
        with cluster(folder):
            job = submit(folder)
            until("the job runs", lambda: state(job) == "RUNNING")
            done = [interrupt(job, preempt, sweep, 1)]
            notice = ["scancel", "--batch", "--signal=USR1", job]  # what --signal=B:USR1@120 sends before the limit
            done.append(interrupt(job, lambda: print(slurm(*notice), end=""), sweep, 2))
            until("the job ends", lambda: state(job) not in ("RUNNING", "COMPLETING", "PENDING"), 1800)
            assert state(job) == "COMPLETED", f"the job is {state(job)}"
            until("nothing of its Ray is left", lambda: left_over(job) == [], 60)
        check(done, sweep, (folder / "job.log").read_text(encoding="utf-8"))
    except BaseException:
        print(f"{(folder / 'job.log').read_text('utf-8')[-4000:] if (folder / 'job.log').exists() else ''}")
        print(f"logs: {folder}")
        raise
    if "--keep" not in sys.argv:
        shutil.rmtree(folder)
    print(f"1 passed: {TRIALS} trials once each, the job pre-empted and queued again twice")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main()
