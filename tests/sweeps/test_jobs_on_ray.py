"""Sweeps as jobs of a real Ray head that asks for a token: sent, followed, stopped, gone on with."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from meltpoint.launch import app
from meltpoint.reports.commands import jobs as commands
from meltpoint.sweeps.on_ray.jobs import JobClient
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tests.json_documents import assert_published
from meltpoint.tests.sweeps.ray_head import ray_head
from meltpoint.tests.sweeps.whole_sweeps import PATIENCE_SECONDS, command, records

pytestmark = pytest.mark.skipif(
    find_spec("aiohttp_cors") is None or os.name != "posix",
    reason='a head with a dashboard needs POSIX and the extra cluster (pip install -e ".[cluster]")',
)

TOKEN = "t0ken-of-the-tests-0123456789abcdef"
Say = Callable[..., Result]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The dashboard of a head, to which no proxy stands in the way."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            patch.delenv(name, raising=False)
        with ray_head(TOKEN) as address:
            yield address


@pytest.fixture
def say(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Say:
    """Runs a command from an empty folder, with the head's address and token in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", url)

    def run(*words: str) -> Result:
        result = CliRunner().invoke(app, list(words), catch_exceptions=False)
        assert TOKEN not in result.output
        return result

    return run


def submission(spec: SweepSpec, storage: Path, *more: str, **changes: object) -> list[str]:
    """The words of `submit` for a small sweep."""
    words = command(spec, storage, *more, **changes)
    return ["submit", *words[words.index("sweep") + 1 :]]


def small(spec: SweepSpec, name: str) -> dict[str, object]:
    """Changes of a specification: a sweep of one trial, which is its final too."""
    return {"name": name, "modes": ("feature_extraction",), "trials": 1, "seeds": 1}


def wait_for_records(storage: Path, name: str, count: int, client: JobClient, job: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(records(storage, name)) < count:
        assert not client.job(job).is_over, client.log(job)
        assert time.monotonic() < deadline, client.log(job)
        time.sleep(0.05)


@pytest.mark.slow
def test_a_sweep_is_sent_followed_to_its_end_and_its_status_read(say, spec, tmp_path, url):
    storage = tmp_path / "sweeps"
    words = submission(spec, storage, **small(spec, "first"))
    sent = say(*words)
    assert sent.exit_code == 0, sent.output
    assert sent.stdout.splitlines() == [
        f"first-1 is submitted to {url}; it no longer needs this machine.",
        *(f"  meltpoint {word} first --address {url}" for word in ("logs -f", "status", "stop")),
    ]
    refused = say(*words)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert re.search(
        r"'first' is under way as first-1 \((PENDING|RUNNING)\); `meltpoint logs first -f`", refused.stderr
    )
    followed = say("logs", "first", "-f")
    assert followed.exit_code == 0, followed.output
    assert "1 cell, " in followed.stdout
    assert re.search(r"^first-1: SUCCEEDED, begun ", followed.stderr, re.MULTILINE)
    assert say("logs", "first").stdout == followed.stdout, "followed is what the whole log has, each character once"
    assert [record["status"] for record in records(storage, "first")] == ["finished"] * 2
    status = json.loads(say("status", "first", "--json").stdout)
    assert_published("status", status)
    assert (status["state"], status["job"]["name"], status["job"]["status"]) == ("done", "first-1", "SUCCEEDED")
    assert say("stop", "first").stdout.startswith("The job had already ended: first-1: SUCCEEDED")


@pytest.mark.slow
@pytest.mark.parametrize(("token", "said"), [("", "asks for a token"), ("wrong", "refuses the token")])
def test_a_head_that_asks_for_a_token_takes_nothing_without_it(say, spec, tmp_path, monkeypatch, token, said):
    monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    for words in (submission(spec, tmp_path / "sweeps"), ["logs", "tiny"], ["stop", "tiny"], ["status", "tiny"]):
        refused = say(*words)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert said in refused.stderr
        assert len(refused.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_stopped_sweep_keeps_what_finished_and_the_same_command_goes_on_as_a_new_attempt(say, spec, tmp_path, url):
    storage = tmp_path / "sweeps"
    client = JobClient(url)
    words = submission(spec, storage, name="again", trials=12)
    assert say(*words).exit_code == 0
    wait_for_records(storage, "again", 1, client, "again-1")
    stopped = say("stop", "again")
    assert stopped.exit_code == 0, stopped.output
    assert stopped.stdout.startswith("again-1: STOPPED")
    assert "killed" not in stopped.stdout
    kept = {record["id"] for record in records(storage, "again")}
    status = json.loads(say("status", "again", "--json").stdout)
    assert (status["state"], status["job"]["status"]) == ("stopped", "STOPPED")
    submitted = json.loads(say(*words, "--json").stdout)
    assert_published("submit", submitted)
    assert submitted == {
        "job": "again-2", "sweep": "again", "attempt": 2, "address": url,
    }  # fmt: skip
    assert say("logs", "again", "-f").exit_code == 0
    found = records(storage, "again")
    assert kept <= {record["id"] for record in found}
    assert sorted(record["role"] for record in found) == ["final"] * 4 + ["search"] * 24


@pytest.mark.slow
def test_the_package_and_a_space_go_along_and_a_storage_that_only_the_cluster_sees_is_asked_for_there(
    say, spec, tmp_path, monkeypatch, url
):
    """`command` names a space by its path here, and the tree is that of the package under test."""
    storage = tmp_path / "sweeps"
    monkeypatch.setenv("SHOWN", "value-of-shown")
    words = submission(spec, storage, "--environment", "tree", "--env", "SHOWN", **small(spec, "tree"))
    assert say(*words).exit_code == 0
    monkeypatch.setattr(commands, "is_here", lambda name, storage: False)
    assert say("logs", "tree", "-f").exit_code == 0
    status = json.loads(say("status", "tree", "--json").stdout)
    assert (status["state"], status["job"]["status"]) == ("done", "SUCCEEDED")
    shown = say("status", "tree")
    assert re.match(r"tree-1: SUCCEEDED, begun [^\n]*\n", shown.stdout)
    assert "tree: done, 1 of 1 cell done." in shown.stdout
    listed = JobClient(url).jobs()
    (job,) = [job for job in listed if job.name == "tree-1"]
    assert "value-of-shown" not in f"{job.metadata} {job.message}"


@pytest.mark.slow
def test_a_sweep_that_fails_on_the_cluster_says_so_and_why(say, spec, tmp_path):
    words = submission(spec, tmp_path / "sweeps", **small(spec, "broken"), encoders=("hf:/not/there",))
    assert say(*words).exit_code == 0
    followed = say("logs", "broken", "-f")
    assert followed.exit_code == 1
    assert "/not/there" in followed.stdout
    assert re.search(r"^broken-1: FAILED \(exit status 2\)", followed.stderr, re.MULTILINE)
    assert say(*words).exit_code == 0, "a failed attempt does not hold up the next one"
