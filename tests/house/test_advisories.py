"""The pinned and the installed versions, held against the recorded advisories of `advisories.json`."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
RECORD = json.loads((Path(__file__).parent / "advisories.json").read_text(encoding="utf-8"))
ADVISORIES: list[dict[str, str]] = RECORD["advisories"]


def pins() -> dict[str, str]:
    """Package → the version in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]
    return {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in found}


def installed() -> dict[str, str]:
    """Package → the version that is installed beside the tests, of what Meltpoint's parts need in turn as well."""
    return {canonicalize_name(one.name): one.version for one in metadata.distributions()}


def named(versions: dict[str, str]) -> list[str]:
    """The versions that an advisory names, with its number, unless the record says why that is accepted."""
    return [
        f"{one['package']} {versions[one['package']]}: {one['id']} ({one['affected']})"
        for one in ADVISORIES
        if one["package"] in versions
        and SpecifierSet(one["affected"]).contains(versions[one["package"]], prereleases=True)
        and not one.get("accepted")
    ]


def test_no_pinned_version_is_named_by_an_advisory() -> None:
    assert named(pins()) == []


def test_no_installed_version_is_named_by_an_advisory() -> None:
    assert named(installed()) == []


def test_an_older_version_would_be_found() -> None:
    assert [line.partition(":")[0] for line in named({"ray": "2.53.0", "idna": "3.14"})].count("ray 2.53.0") == 3
    assert len(named({"idna": "3.14"})) == 1
    assert named({"idna": "3.15"}) == []


@pytest.mark.parametrize("advisory", ADVISORIES, ids=lambda one: f"{one['package']}-{one['id'].partition(',')[0]}")
def test_an_advisory_says_what_it_is_of_and_where_it_was_read(advisory: dict[str, str]) -> None:
    assert (
        {"package", "id", "affected", "source"} <= set(advisory) <= {"package", "id", "affected", "source", "accepted"}
    )
    assert canonicalize_name(advisory["package"]) == advisory["package"]
    SpecifierSet(advisory["affected"])
