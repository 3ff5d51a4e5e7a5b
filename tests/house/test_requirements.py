"""pyproject.toml says what is supported, constraints.txt what is installed; they must agree."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def pins() -> dict[str, Requirement]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]
    return {canonicalize_name(pin.name): pin for pin in found}


def direct() -> list[Requirement]:
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    return [Requirement(line) for line in [*PROJECT["dependencies"], *extras]]


@pytest.mark.parametrize("requirement", direct(), ids=lambda requirement: requirement.name)
def test_every_direct_part_is_pinned_inside_its_supported_range(requirement: Requirement) -> None:
    pin = pins().get(canonicalize_name(requirement.name))
    assert pin is not None, f"{requirement.name} is not pinned in constraints.txt"
    (exact,) = pin.specifier
    assert exact.operator == "=="
    assert requirement.specifier.contains(exact.version)


def test_no_part_is_pinned_twice() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    names = [canonicalize_name(Requirement(line).name) for line in lines if line.strip() and not line.startswith("#")]
    assert sorted(names) == sorted(set(names))
