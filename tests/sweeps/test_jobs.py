"""Jobs of a cluster: their names, the archives that they take along, and the way to a job server with its token."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meltpoint.sweeps.jobs import sweep_job
from meltpoint.sweeps.jobs.client import (
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
from meltpoint.sweeps.jobs.sweep_job import find_wheel, large_files, package_root, tree_files, write_archive
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
    assert last_attempt("a", jobs, 9).name == "a-9"
    assert next_number("a", jobs) == 13, "a-12 is somebody else's, and taken all the same"
    with pytest.raises(ValueError, match=r"--attempt 3: .* 2, 9, 10\."):
        last_attempt("a", jobs, 3)
    with pytest.raises(ValueError, match=r"no job of the sweep 'c'\. It has: a, b\."):
        last_attempt("c", jobs)


# Archives.

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


def contents(archive: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(archive) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


@given(tree=TREES)
def test_an_archive_holds_the_tree_without_what_is_hidden_or_built_byte_for_byte(tree, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tree")
    written = lay(folder / "root", tree)
    (folder / "root").mkdir(exist_ok=True)
    write_archive(folder / "a.zip", folder / "root", None, {})
    expected = {f"meltpoint/{name}": content for name, content in written.items() if belongs(name)}
    assert contents(folder / "a.zip") == expected


@given(tree=TREES)
def test_equal_trees_give_equal_archives_whenever_and_in_whatever_order_they_were_written(tree, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trees")
    written = lay(folder / "one", tree)
    again = {tuple(name.split("/")): content for name, content in reversed(written.items())}
    assert lay(folder / "other", again) == written
    archives = []
    for name in ("one", "other"):
        (folder / name).mkdir(exist_ok=True)
        write_archive(folder / f"{name}.zip", folder / name, None, {})
        archives.append((folder / f"{name}.zip").read_bytes())
    assert archives[0] == archives[1]


def test_links_environments_and_large_files_stay_here_and_large_ones_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_job, "LARGEST_FILE", 100)
    root = tmp_path / "root"
    lay(root, {("a.py",): b"1", ("env", "pyvenv.cfg"): b"", ("env", "b.py"): b"2", ("large.bin",): b"0" * 101})
    (root / "linked").symlink_to(tmp_path)
    (root / "link.py").symlink_to(root / "a.py")
    write_archive(tmp_path / "a.zip", root, None, {})
    assert contents(tmp_path / "a.zip") == {"meltpoint/a.py": b"1"}
    assert large_files(root) == [f"{root / 'large.bin'} is left out: 0 MB"]


def test_an_archive_that_is_too_large_is_refused_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_job, "LARGEST_ARCHIVE", 100)
    lay(tmp_path / "root", {("a.py",): b"1" * 50, ("b.py",): bytes(range(256))})
    with pytest.raises(ValueError, match=r"too much to send.*--environment image"):
        write_archive(tmp_path / "a.zip", tmp_path / "root", None, {})


def test_the_packages_own_archive_holds_every_module_and_space_and_nothing_hidden():
    names = {path.relative_to(package_root()).as_posix() for path in tree_files(package_root())}
    assert {"launch.py", "sweeps/jobs/sweep_job.py", "search_spaces/fine_tuning.yaml", "tasks/sst2.py"} <= names
    assert not [name for name in names if name.startswith((".", "runs/", "build/")) or "__pycache__" in name]


def a_wheel(path: Path, *names: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"1")
    return path


def test_a_wheel_is_sent_as_the_folder_that_it_unpacks_to_with_the_files_of_the_command(tmp_path):
    wheel = a_wheel(tmp_path / "meltpoint-1-py3-none-any.whl", "meltpoint/launch.py", "meltpoint-1.dist-info/WHEEL")
    space = tmp_path / "space.yaml"
    space.write_bytes(b"2")
    write_archive(tmp_path / "a.zip", None, find_wheel(str(wheel), tmp_path), {"submitted/space/space.yaml": space})
    assert contents(tmp_path / "a.zip") == {
        "meltpoint/launch.py": b"1", "meltpoint-1.dist-info/WHEEL": b"1", "submitted/space/space.yaml": b"2",
    }  # fmt: skip


def test_the_only_wheel_of_dist_is_found_and_anything_else_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="0 wheels of meltpoint"):
        find_wheel("wheel", tmp_path)
    wheel = a_wheel(tmp_path / "dist" / "meltpoint-1-py3-none-any.whl", "meltpoint/launch.py")
    assert find_wheel("wheel", tmp_path) == wheel
    a_wheel(tmp_path / "dist" / "meltpoint-2-py3-none-any.whl", "meltpoint/launch.py")
    with pytest.raises(ValueError, match="2 wheels"):
        find_wheel("wheel", tmp_path)
    (tmp_path / "broken.whl").write_bytes(b"no zip")
    other = a_wheel(tmp_path / "other-1-py3-none-any.whl", "other/launch.py")
    faults = ((tmp_path / "broken.whl", "not a readable"), (other, "does not contain"), ("absent.whl", "no such"))
    for name, said in faults:
        with pytest.raises(ValueError, match=said):
            find_wheel(str(name), tmp_path)
    assert find_wheel("image", tmp_path) is find_wheel("tree", tmp_path) is None


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
    client = "import sys; from meltpoint.sweeps.jobs.client import JobClient; JobClient(sys.argv[1])"
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
    assert token_of(environment)[1] == TOKEN


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("RAY_AUTH_TOKEN", "", "set RAY_AUTH_TOKEN"),
        ("RAY_AUTH_TOKEN", "wr0ng", "refuses the token in RAY_AUTH_TOKEN"),
        ("RAY_AUTH_TOKEN_PATH", "/absent/token", "cannot be read"),
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
