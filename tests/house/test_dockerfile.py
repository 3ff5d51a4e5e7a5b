"""The Dockerfile, read: there is no docker engine where the tests run (deploy/image builds it without one)."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import meltpoint

ROOT = Path(__file__).resolve().parents[2]


def instructions() -> list[tuple[str, str]]:
    """(keyword, rest) of each instruction, continuation lines joined."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    split = [line.split(None, 1) for line in joined.splitlines() if line.strip()]
    return [(keyword.upper(), rest) for keyword, rest in split]


def last(keyword: str) -> str:
    return [rest for word, rest in instructions() if word == keyword][-1]


def copied() -> list[str]:
    """What is copied from the checkout."""
    copies = [shlex.split(rest) for word, rest in instructions() if word == "COPY"]
    return [source for words in copies if not words[0].startswith("--from") for source in words[:-1]]


def test_it_builds_in_one_stage_and_runs_in_another() -> None:
    assert [word for word, _ in instructions()].count("FROM") == 2


def test_both_stages_start_from_the_same_python() -> None:
    assert len({rest.split()[0] for word, rest in instructions() if word == "FROM"}) == 1


def test_its_base_is_an_argument_whose_default_is_a_python_of_one_version() -> None:
    (argument,) = [rest for word, rest in instructions() if word == "ARG"]
    assert re.fullmatch(r"BASE=python:3\.11-slim-\w+", argument)
    assert all(rest.startswith("${BASE}") for word, rest in instructions() if word == "FROM")


def test_a_package_index_is_a_secret_of_the_build_and_nothing_of_it_stays() -> None:
    installs = [rest for word, rest in instructions() if word == "RUN" and "pip install" in rest]
    assert all(rest.startswith("--mount=type=secret,id=pip,target=/etc/pip.conf ") for rest in installs)
    assert not [rest for word, rest in instructions() if word in {"ARG", "ENV", "COPY"} and "pip.conf" in rest]


def test_its_labels_say_the_version_and_the_licence_of_the_package() -> None:
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]+)"', last("LABEL")))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert labels["version"] == meltpoint.__version__
    assert labels["licenses"] == project["license"]


def test_it_has_what_nodes_of_a_cluster_need_of_ray() -> None:
    assert any(".[minilm,cluster,s3]" in rest for word, rest in instructions() if word == "RUN")


def test_no_file_of_secrets_reaches_the_builder() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {".git", "**/.env", "runs", "tests", "deploy"} <= set(ignored)


def test_it_runs_as_a_user_who_is_not_root() -> None:
    assert last("USER") not in {"root", "0"}
    assert f"useradd --create-home --uid 10001 {last('USER')}" in (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_its_entry_point_is_the_console_command() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    (command,) = json.loads(last("ENTRYPOINT"))
    assert command in scripts


def test_everything_it_copies_exists_and_is_not_ignored() -> None:
    ignored = set((ROOT / ".dockerignore").read_text(encoding="utf-8").split())
    assert [name for name in copied() if not (ROOT / name).exists()] == []
    assert ignored & set(copied()) == set()


def test_it_copies_every_package_that_pyproject_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    rooms = {name.split(".")[1] for name in project["tool"]["setuptools"]["packages"] if "." in name}
    assert rooms - set(copied()) == set()


def test_everything_it_installs_is_held_to_the_constraints() -> None:
    installs = [rest for word, rest in instructions() if word == "RUN" and "pip install" in rest]
    assert installs
    assert all("--constraint constraints.txt" in rest for rest in installs)


def test_torch_comes_from_pypi_whose_wheel_carries_cuda() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert not re.search(r"--(extra-)?index-url|download\.pytorch\.org|\+cpu", text)
