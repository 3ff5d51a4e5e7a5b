"""The Dockerfile, read: there is no docker engine where the tests run (deploy/image builds it without one)."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import meltpoint

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def of(keyword: str) -> list[str]:
    """The rest of each instruction with a keyword, continuation lines joined."""
    lines = "\n".join(line for line in TEXT.splitlines() if not line.lstrip().startswith("#")).replace("\\\n", " ")
    words = [line.split(None, 1) for line in lines.splitlines() if line.strip()]
    return [rest for word, rest in words if word.upper() == keyword]


def test_what_it_installs_is_held_to_the_constraints_and_the_package_index_is_a_secret_of_the_build() -> None:
    installs = [rest for rest in of("RUN") if "pip install" in rest]
    assert installs
    assert all("--constraint constraints.txt" in rest for rest in installs)
    assert all(rest.startswith("--mount=type=secret,id=pip,target=/etc/pip.conf ") for rest in installs)
    assert not [rest for word in ("ARG", "ENV", "COPY") for rest in of(word) if "pip.conf" in rest]
    assert any(".[minilm,cluster,s3]" in rest for rest in installs), "the nodes of a cluster need Ray's parts"
    assert not re.search(r"--(extra-)?index-url|download\.pytorch\.org|\+cpu", TEXT), "PyPI's torch carries CUDA"


def test_its_labels_say_the_version_and_the_licence_of_the_package() -> None:
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]+)"', of("LABEL")[-1]))
    assert (labels["version"], labels["licenses"]) == (meltpoint.__version__, PROJECT["project"]["license"])


def test_it_runs_the_console_command_as_a_user_who_is_not_root() -> None:
    user = of("USER")[-1]
    assert user not in {"root", "0"}
    assert f"useradd --create-home --uid 10001 {user}" in TEXT
    (command,) = json.loads(of("ENTRYPOINT")[-1])
    assert command in PROJECT["project"]["scripts"]


def test_it_copies_every_package_nothing_that_is_ignored_and_no_secret_reaches_the_builder() -> None:
    ignored = set((ROOT / ".dockerignore").read_text(encoding="utf-8").split())
    assert {".git", "**/.env", "runs", "tests", "deploy"} <= ignored
    copies = [shlex.split(rest) for rest in of("COPY")]
    copied = {source for words in copies if not words[0].startswith("--from") for source in words[:-1]}
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert ignored & copied == set()
    rooms = {name.split(".")[1] for name in PROJECT["tool"]["setuptools"]["packages"] if "." in name}
    assert rooms - copied == set()
