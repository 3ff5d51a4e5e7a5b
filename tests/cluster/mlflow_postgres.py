"""MLflow with users and passwords on a real PostgreSQL, killed and started again under eight sweeps that write.

`python tests/cluster/mlflow_postgres.py` starts PostgreSQL and `mlflow server --app-name basic-auth` on 127.0.0.1, in a
temporary folder, and eight processes, each with the trials of a sweep. In the midst of them the server is killed and
started again, then PostgreSQL. At the end every trial must be in MLflow's tables once, with its epochs, its times and
its end. Needs PostgreSQL (Debian: `apt install postgresql`), and the Python packages psycopg2-binary and Flask-WTF.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from meltpoint.tests.local_servers import free_ports
from meltpoint.tests.sweeps.mlflow_server import MlflowServer

WRITERS, TRIALS, EPOCHS = 8, 40, 3
USER, PASSWORD = "admin", "a-password-of-twelve-or-more"
BEGAN = 1.7e9
PACE_SECONDS = 0.3
"""Between two trials of a writer, so that each outage meets trials before, in, and after it."""


def missing() -> str:
    """What this machine lacks for it, in words; empty if nothing."""
    if tool("initdb") is None:
        return "PostgreSQL is not installed (apt install postgresql)"
    lacking = [name for name in ("psycopg2", "flask_wtf") if find_spec(name) is None]
    return f"not installed: {', '.join(lacking)} (pip install psycopg2-binary Flask-WTF)" if lacking else ""


def tool(name: str) -> str | None:
    """A program of PostgreSQL; Debian keeps them outside of PATH."""
    kept = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(kept[-1]) if kept else None)


class Postgres:
    """A PostgreSQL with a database of its own in a folder; it refuses to run as root, so root starts it as postgres."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_ports(1)[0]
        self.address = f"mlflow@127.0.0.1:{self.port}/postgres"
        self.user = "postgres" if os.geteuid() == 0 else None
        folder.mkdir()
        if self.user is not None:
            entry = pwd.getpwnam(self.user)
            os.chown(folder, entry.pw_uid, entry.pw_gid)
        self._run("initdb", "--username=mlflow", "--auth=trust", "--encoding=UTF8", "--locale=C", f"{folder}/data")

    def _run(self, name: str, *words: str) -> None:
        program = tool(name)
        assert program is not None
        with (self.folder.parent / "postgres.log").open("a") as log:
            subprocess.run([program, *words], stdout=log, stderr=log, check=True, user=self.user, cwd=self.folder)

    def start(self) -> None:
        options = f"-p {self.port} -h 127.0.0.1 -k {self.folder}"
        self._run("pg_ctl", "-D", f"{self.folder}/data", "-w", "-o", options, "-l", f"{self.folder}/log", "start")

    def kill(self) -> None:
        """End it at once, without a checkpoint, as a power failure does."""
        self._run("pg_ctl", "-D", f"{self.folder}/data", "-m", "immediate", "stop")

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        import psycopg2

        connection = psycopg2.connect(f"postgresql://{self.address}")
        try:
            with connection.cursor() as cursor:
                cursor.execute(query)
                return list(cursor.fetchall())
        finally:
            connection.close()


@contextmanager
def services(folder: Path) -> Iterator[tuple[Postgres, MlflowServer]]:
    """PostgreSQL, and MLflow's server with users on it; both are ended at the end."""
    postgres = Postgres(folder / "postgres")
    postgres.start()
    users = folder / "users.ini"
    users.write_text(
        f"[mlflow]\ndefault_permission = READ\ndatabase_uri = sqlite:///{folder}/users.db\n"
        f"admin_username = {USER}\nadmin_password = {PASSWORD}\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
    )
    variables = {"MLFLOW_AUTH_CONFIG_PATH": str(users), "MLFLOW_FLASK_SERVER_SECRET_KEY": "a key"}
    server = MlflowServer(
        folder, "--app-name", "basic-auth", store=f"postgresql+psycopg2://{postgres.address}", **variables
    )
    try:
        server.start()
        yield postgres, server
    finally:
        server.kill()
        postgres.kill()


# A writer: one sweep's driver, without the training.


def cell() -> Any:
    """What the tracker reads of an opened cell."""
    from meltpoint.search_spaces.space import Space

    return SimpleNamespace(
        key=("encoder", "fine_tuning", "task"), name="encoder.fine_tuning.task", encoder="encoder", mode="fine_tuning",
        task_name="task", head="linear", variant="", data_fingerprint="0" * 16, train_examples=1, dev_examples=1,
        data=SimpleNamespace(data_dir=None), notes=(), task=SimpleNamespace(metric="accuracy"),
        space=Space.of({}, {}),
    )  # fmt: skip


def record_of(proposal: Any) -> Any:
    """The record of a trial of three epochs."""
    from meltpoint.adapters.training.epochs import EpochResult
    from meltpoint.sweeps.ledger.records import TrialRecord

    began = BEGAN + proposal.number
    epochs = [
        EpochResult(
            epoch=number, phase="train", step=number, train_loss=1.0 / number, dev={"accuracy": 0.5},
            train_seconds=1.0, dev_seconds=0.5, learning_rate=1e-3, finished_at=began + number,
        )
        for number in range(1, EPOCHS + 1)
    ]  # fmt: skip
    return TrialRecord(
        id=proposal.id, number=proposal.number, encoder="encoder", mode="fine_tuning", task="task", head="linear",
        role="search", seed=0, setting=proposal.setting, status="finished", metric="accuracy", dev=0.5, best_epoch=1,
        epochs=epochs, data_fingerprint="0" * 16, code_version="code", started_at=began, seconds=EPOCHS + 1.0,
    )  # fmt: skip


def write(name: str, uri: str, folder: Path) -> None:
    """Drive the trials of one sweep, and print what they took and what was said."""
    from meltpoint.sweeps.tracking.tracker import Tracker

    said: list[str] = []
    longest = 0.0
    own = cell()
    tracker = Tracker(name, uri, folder, said.append)
    tracker.open([own], "{}")
    tracker.flush()  # MLflow's imports, which take long for eight processes at once
    proposals = {f"{n:016x}": own.trial(f"{n:016x}", n, "search", {"learning_rate": n}, 0) for n in range(TRIALS)}
    records = {trial: record_of(proposal) for trial, proposal in proposals.items()}
    for trial, proposal in proposals.items():
        began = time.perf_counter()
        tracker.begin(proposal, "code", records[trial].started_at)
        for epoch in records[trial].epochs:
            tracker.epoch(trial, epoch)
            tracker.run_of(trial)
        tracker.end(records[trial])
        longest = max(longest, time.perf_counter() - began)
        time.sleep(PACE_SECONDS)
    tracker.reconcile(records.values())
    tracker.close([(own.key, {"best_dev": 0.5})], True, {"table.md": "| a |"})
    print(json.dumps({"longest_ms": round(1000 * longest, 1), "said": said, "trouble": tracker.trouble}))


def started(server: MlflowServer, folder: Path) -> list[subprocess.Popen[str]]:
    environment = dict(os.environ) | {"MLFLOW_TRACKING_USERNAME": USER, "MLFLOW_TRACKING_PASSWORD": PASSWORD}
    return [
        subprocess.Popen(
            [sys.executable, __file__, "--writer", f"sweep-{number}", "--uri", server.uri, "--folder", str(folder)],
            env=environment, stdout=subprocess.PIPE, encoding="utf-8",
        )
        for number in range(WRITERS)
    ]  # fmt: skip


ENDED = "select count(*) from runs where status = 'FINISHED' and lifecycle_stage = 'active'"


def wait_for(postgres: Postgres, share: float, writers: list[subprocess.Popen[str]]) -> None:
    """Until so many of all trials have ended in MLflow's tables."""
    while postgres.rows(ENDED)[0][0] < share * WRITERS * TRIALS:
        assert any(writer.poll() is None for writer in writers), [writer.communicate()[0] for writer in writers]
        time.sleep(0.1)


def check(postgres: Postgres) -> dict[str, Any]:
    """The counts in MLflow's tables, which must be exactly those of the trials."""
    active = "lifecycle_stage = 'active'"
    counts: dict[str, Any] = {
        "statuses": dict(postgres.rows(f"select status, count(*) from runs where {active} group by status")),
        "deleted": postgres.rows("select count(*) from runs where lifecycle_stage = 'deleted'")[0][0],
        "trials": postgres.rows(
            "select count(distinct (experiment_id, value)), count(*) from tags join runs using (run_uuid) "
            f"where key = 'meltpoint.trial' and {active}"
        )[0],
        "epochs": postgres.rows(
            f"select count(*) from metrics join runs using (run_uuid) where key = 'train/loss' and {active}"
        )[0][0],
        "times": postgres.rows(
            "select count(*) from runs join tags using (run_uuid) where key = 'meltpoint.trial' and "
            f"end_time - start_time = {1000 * (EPOCHS + 1)} and {active}"
        )[0][0],
    }
    trials = WRITERS * TRIALS
    assert counts["statuses"] == {"FINISHED": trials + WRITERS}, counts
    assert counts["trials"] == (trials, trials), counts
    assert counts["epochs"] == trials * EPOCHS, counts
    assert counts["times"] == trials, counts
    return counts


def run(folder: Path) -> dict[str, Any]:
    """The whole course; returns the counts and what the writers said."""
    with services(folder) as (postgres, server):
        writers = started(server, folder)
        try:
            wait_for(postgres, 0.2, writers)
            server.kill()
            time.sleep(3)  # an outage of some length
            server.start()
            wait_for(postgres, 0.5, writers)
            postgres.kill()
            time.sleep(3)
            postgres.start()
            said = [json.loads(writer.communicate(timeout=400)[0]) for writer in writers]
        finally:
            for writer in writers:
                writer.kill()
        assert all(writer.returncode == 0 and one["trouble"] is None for writer, one in zip(writers, said, strict=True))
        return check(postgres) | {"writers": said}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--writer", help=argparse.SUPPRESS)
    options.add_argument("--uri", help=argparse.SUPPRESS)
    options.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.writer:
        write(asked.writer, asked.uri, asked.folder)
        return
    if lacking := missing():
        sys.exit(f"Not run: {lacking}.")
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)  # PostgreSQL's user looks into it
        print(json.dumps(run(Path(made)), indent=1))


if __name__ == "__main__":
    main()
