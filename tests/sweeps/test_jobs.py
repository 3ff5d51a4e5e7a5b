"""Jobs of a cluster: their names, what is sent with them, and the way to a job server with its token."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from meltpoint.launch import app
from meltpoint.reports.commands import jobs as commands
from meltpoint.sweeps.command_line.submission import JobEnvironment, copy_tree
from meltpoint.sweeps.on_ray.jobs import (
    STORAGE,
    SWEEP,
    Job,
    JobClient,
    attempts,
    job_name,
    last_attempt,
    next_number,
    number_of,
    token_of,
    url_of,
)
from meltpoint.tests.json_documents import assert_published
from meltpoint.tests.local_servers import QuietHandler, free_ports, served_by

SWEEPS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,6}", fullmatch=True)
JOBS = st.builds(
    lambda sweep, number, mine: Job(job_name(sweep, number), "FAILED", metadata={SWEEP: sweep} if mine else {}),
    SWEEPS, st.integers(0, 12), st.booleans(),
)  # fmt: skip


@given(SWEEPS, st.integers(1, 10**8))
def test_a_jobs_name_gives_back_the_attempts_number(sweep: str, number: int):
    assert number_of(sweep, job_name(sweep, number)) == number


@given(SWEEPS, st.lists(JOBS, max_size=8))
def test_the_next_attempt_has_a_name_that_no_job_had_and_a_number_above_all_attempts(sweep: str, jobs: list[Job]):
    number = next_number(sweep, jobs)
    assert job_name(sweep, number) not in {job.name for job in jobs}
    assert all((number_of(sweep, job.name) or 0) < number for job in jobs)


@given(SWEEPS, SWEEPS, st.lists(JOBS, max_size=8))
def test_no_job_is_an_attempt_at_two_sweeps(one: str, other: str, jobs: list[Job]):
    found = [{job.name for job in attempts(sweep, jobs)} for sweep in (one, other)]
    assert one == other or not found[0] & found[1]


def attempt(sweep: str, number: int, status: str = "STOPPED") -> Job:
    return Job(job_name(sweep, number), status, metadata={SWEEP: sweep, STORAGE: "/runs"})


def test_the_last_attempt_is_the_one_with_the_highest_number_and_not_the_last_listed():
    jobs = [attempt("a", 2), attempt("a", 10, "RUNNING"), attempt("b", 11), attempt("a", 9), Job("a-12", "RUNNING")]
    assert last_attempt("a", jobs).name == "a-10"
    assert next_number("a", jobs) == 13, "a-12 is somebody else's, and taken all the same"
    with pytest.raises(ValueError, match=r"no job of the sweep 'c'\. It has: a, b\."):
        last_attempt("c", jobs)


# What is sent.

NAMES = st.sampled_from(
    ["a.py", "b.yaml", "runs", "build", ".git", ".env", "__pycache__", "c.pyc", "sub", "x.egg-info"]
)
TREES = st.dictionaries(st.lists(NAMES, min_size=1, max_size=3).map(tuple), st.binary(max_size=20), max_size=10)


def lay(root: Path, tree: dict[tuple[str, ...], bytes]) -> dict[str, bytes]:
    """Write a tree; a path below what is a file already is left out. Path below the root → content."""
    written = {}
    for parts, content in tree.items():
        path = root.joinpath(*parts)
        if not any(parent.is_file() for parent in path.parents) and not path.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            written["/".join(parts)] = content
    return written


def belongs(path: str) -> bool:
    parts = path.split("/")
    made = any(part.startswith(".") or part in ("__pycache__", "c.pyc", "x.egg-info") for part in parts)
    return not made and parts[0] not in ("runs", "build")


def files_of(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@given(tree=TREES)
def test_a_copied_tree_has_nothing_that_is_hidden_or_built(tree, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tree")
    (folder / "root").mkdir()
    written = lay(folder / "root", tree)
    copy_tree(folder / "root", folder / "copy")
    assert files_of(folder / "copy") == {name: content for name, content in written.items() if belongs(name)}


def test_a_job_gets_the_whole_package_and_the_files_of_its_command(tmp_path):
    space = tmp_path / "space.yaml"
    space.write_bytes(b"2")
    with JobEnvironment("tree", {"submitted/space/space.yaml": space}).packed() as runtime_env:
        sent = files_of(Path(runtime_env["working_dir"]))
    assert sent["submitted/space/space.yaml"] == b"2"
    names = {"launch.py", "sweeps/on_ray/jobs.py", "search_spaces/fine_tuning.yaml", "tasks/sst2.py"}
    assert {f"meltpoint/{name}" for name in names} <= set(sent)
    assert not [name for name in sent if name.startswith(("meltpoint/.", "meltpoint/runs/"))]


# The way to a cluster.

VERSION = json.dumps({"ray_version": "2.60.0"})
TOKEN = "s3cret-t0ken"


@contextmanager
def serving(answer: Callable[[str | None], tuple[int, str]]) -> Iterator[tuple[str, list[str | None]]]:
    """A server on this machine; yields its URL and the Authorization headers that it was sent.

    Args:
        answer: from the Authorization header to status and body.
    """
    sent: list[str | None] = []

    class Handler(QuietHandler):
        def get(self) -> None:
            sent.append(self.headers.get("Authorization"))
            status, body = answer(sent[-1])
            self.answer(status, body, **({"Location": body} if status == 302 else {}))

    with served_by(Handler) as url:
        yield url, sent


def guarded(header: str | None) -> tuple[int, str]:
    return (200, VERSION) if header == f"Bearer {TOKEN}" else (403 if header else 401, "Unauthorized")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch, tmp_path):
    """No proxy, address or token from the environment of the tests; a home without a token."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))


def test_a_token_is_sent_only_to_a_server_that_asks_for_one(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    with serving(lambda header: (200, VERSION)) as (url, sent):
        JobClient(url)
    assert not any(sent)
    with serving(guarded) as (url, sent):
        JobClient(url)
    assert not sent[0]
    assert set(sent[1:]) == {f"Bearer {TOKEN}"}
    with serving(lambda header: (200, VERSION)) as (other, reached), serving(lambda _: (302, other)) as (url, _):
        JobClient(url)
    assert not any(reached), "a redirect carries it nowhere"


def test_it_is_sent_unasked_neither_where_ray_is_in_token_mode():
    """Ray reads its mode once in a process, and a `ray.init` turns it on; so in a process of its own."""
    client = "import sys; from meltpoint.sweeps.on_ray.jobs import JobClient; JobClient(sys.argv[1])"
    mode = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    with serving(lambda header: (200, VERSION)) as (url, sent):
        subprocess.run([sys.executable, "-c", client, url], env={**os.environ, **mode}, check=True)
    assert sent
    assert not any(sent)


@pytest.mark.parametrize("way", ["variable", "file", "home"])
def test_the_token_is_found_where_ray_itself_looks_for_it(way, tmp_path):
    path = tmp_path / ("home/.ray/auth_token" if way == "home" else "token")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{TOKEN}\n", encoding="utf-8")
    environment = {"variable": {"RAY_AUTH_TOKEN": TOKEN}, "file": {"RAY_AUTH_TOKEN_PATH": str(path)}, "home": {}}[way]
    assert token_of(environment) == TOKEN


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("RAY_AUTH_TOKEN", "", "none is set here: set RAY_AUTH_TOKEN"),
        ("RAY_AUTH_TOKEN", "wr0ng", "refuses the token that is set here"),
        ("RAY_AUTH_TOKEN_PATH", "/", "cannot be read"),
    ],
)
def test_no_token_a_wrong_one_and_one_that_cannot_be_read_are_refused_and_none_is_shown(monkeypatch, name, value, said):
    monkeypatch.setenv(name, value)
    with serving(guarded) as (url, _), pytest.raises(ValueError, match=said) as told:
        JobClient(url)
    assert "wr0ng" not in str(told.value)


@pytest.mark.parametrize(("status", "body"), [(200, "<html>"), (200, "[]"), (200, '"ray"'), (404, ""), (500, "no")])
def test_something_that_is_no_ray_dashboard_is_refused_in_a_line(status, body):
    with serving(lambda header: (status, body)) as (url, _), pytest.raises(ValueError, match=url) as told:
        JobClient(url)
    assert "\n" not in str(told.value)


def test_an_address_where_nothing_listens_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"does not answer .*name the dashboard"):
        JobClient(f"http://127.0.0.1:{free_ports(1)[0]}")


@pytest.mark.parametrize(
    ("address", "environment", "url"),
    [
        ("http://head:8265", {}, "http://head:8265"),
        ("https://ray.example.org/", {}, "https://ray.example.org"),
        ("head:8265", {}, "http://head:8265"),
        (None, {"RAY_API_SERVER_ADDRESS": "http://there:1"}, "http://there:1"),
        (None, {"RAY_ADDRESS": "http://there:1"}, "http://there:1"),
        ("http://here:2", {"RAY_API_SERVER_ADDRESS": "http://there:1", "RAY_ADDRESS": "auto"}, "http://here:2"),
    ],
)
def test_the_option_names_the_address_and_else_rays_own_variables(address, environment, url):
    assert url_of(address, environment) == url


@pytest.mark.parametrize(
    ("address", "environment", "said"),
    [
        (None, {}, "--address is missing"),
        (None, {"RAY_ADDRESS": "10.0.0.1:6379"}, "--address is missing"),
        ("ray://head:10001", {}, "write http://HOST:8265"),
        ("http://:8265", {}, "write http://HOST:8265"),
        ("http://head:port", {}, "write http://HOST:8265"),
        ("https://me:pw0rd@head", {}, "without user and password"),
    ],
)
def test_an_address_of_another_kind_is_refused_without_showing_a_password(address, environment, said):
    with pytest.raises(ValueError, match=said) as told:
        url_of(address, environment)
    assert "pw0rd" not in str(told.value)


class OneJob(JobClient):
    """A client of a dashboard with one job, which has ended."""

    url = "http://head:8265"

    def __init__(self) -> None:
        """Without a server."""

    def jobs(self) -> list[Job]:
        return [attempt("first", 1, "FAILED")]

    def log(self, name: str) -> str:
        return "trained\nfailed\n"

    def follow(self, name: str, tell: Callable[[str], None]) -> Job:
        tell(self.log(name))
        return self.jobs()[0]


@pytest.mark.parametrize(("words", "status"), [((), 0), (("--follow",), 1)])
def test_logs_as_json_are_one_document_with_the_job(monkeypatch, words, status):
    monkeypatch.setattr(commands, "_client", lambda address: OneJob())
    done = CliRunner().invoke(app, ["logs", "first", "--json", *words])
    assert done.exit_code == status, done.output
    document = json.loads(done.stdout)
    assert_published("logs", document)
    assert document["log"] == "trained\nfailed\n"
    assert document["job"]["status"] == "FAILED"
    assert done.stderr == ""
