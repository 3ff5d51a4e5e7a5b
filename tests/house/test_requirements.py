"""pyproject.toml says what is supported, constraints.txt what is installed; `advisories.json` names neither."""

from __future__ import annotations

import json
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
DIRECT = [Requirement(line) for line in [*PROJECT["dependencies"], *EXTRAS]]
LINES = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
PINS = [Requirement(line) for line in LINES if line.strip() and not line.startswith("#")]
ADVISORIES: list[dict[str, str]] = json.loads((Path(__file__).parent / "advisories.json").read_text(encoding="utf-8"))[
    "advisories"
]


def named(versions: dict[str, str]) -> list[str]:
    """The versions that an advisory names, with its number, unless the record says why that is accepted."""
    return [
        f"{one['package']} {versions[one['package']]}: {one['id']} ({one['affected']})"
        for one in ADVISORIES
        if one["package"] in versions
        and SpecifierSet(one["affected"]).contains(versions[one["package"]], prereleases=True)
        and not one.get("accepted")
    ]


@pytest.mark.parametrize("requirement", DIRECT, ids=lambda requirement: requirement.name)
def test_every_direct_part_is_pinned_once_inside_its_supported_range(requirement: Requirement) -> None:
    name = canonicalize_name(requirement.name)
    (pin,) = [pin for pin in PINS if canonicalize_name(pin.name) == name]
    (exact,) = pin.specifier
    assert exact.operator == "=="
    assert requirement.specifier.contains(exact.version)


def test_no_part_is_pinned_twice_and_no_pinned_version_is_named_by_an_advisory() -> None:
    versions = {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in PINS}
    assert len(versions) == len(PINS)
    assert named(versions) == []


def test_no_installed_version_is_named_by_an_advisory() -> None:
    assert named({canonicalize_name(one.name): one.version for one in metadata.distributions()}) == []


def test_an_older_version_would_be_found() -> None:
    assert [line.partition(":")[0] for line in named({"ray": "2.53.0", "idna": "3.14"})].count("ray 2.53.0") == 3
    assert len(named({"idna": "3.14"})) == 1
    assert named({"idna": "3.15"}) == []


@pytest.mark.parametrize("advisory", ADVISORIES, ids=lambda one: f"{one['package']}-{one['id'].partition(',')[0]}")
def test_an_advisory_says_what_it_is_of_and_where_it_was_read(advisory: dict[str, str]) -> None:
    assert set(advisory) - {"accepted"} == {"package", "id", "affected", "source"}
    assert canonicalize_name(advisory["package"]) == advisory["package"]
    SpecifierSet(advisory["affected"])
