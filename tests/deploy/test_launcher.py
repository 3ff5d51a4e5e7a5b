"""The files of Ray's cluster launcher, by the schema of the installed Ray."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "deploy" / "ray").glob("*.yaml"))


@pytest.fixture(params=FILES, ids=lambda file: file.name)
def launcher(request: pytest.FixtureRequest) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(request.param.read_text(encoding="utf-8"))
    return content


def faults(content: dict[str, Any]) -> list[str]:
    spec = find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    schema = Path(spec.origin).parent / "autoscaler" / "ray-schema.json"
    validator = Draft202012Validator(json.loads(schema.read_text(encoding="utf-8")))
    return [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(content)]


def commands(content: dict[str, Any]) -> list[str]:
    return [line for key, lines in content.items() if key.endswith("commands") for line in lines]


def test_it_is_valid_by_rays_own_schema_which_refuses_a_field_that_it_does_not_know(launcher: dict[str, Any]) -> None:
    assert faults(launcher) == []
    assert len(faults({**launcher, "max_wrokers": 2})) == 1


def test_every_node_starts_ray_with_a_token_that_is_a_file_and_the_dashboard_listens_on_the_head_alone(
    launcher: dict[str, Any],
) -> None:
    starts = [line for line in commands(launcher) if "ray start" in line]
    assert len(starts) == 2
    assert all("RAY_AUTH_MODE=token" in line for line in starts)
    assert "~/.ray/auth_token" in launcher["file_mounts"]
    assert not [line for line in commands(launcher) if "RAY_AUTH_TOKEN=" in line]
    (head,) = [line for line in starts if "ray start --head" in line]
    assert "--dashboard-host=127.0.0.1" in head


def test_every_node_installs_the_same_pinned_versions(launcher: dict[str, Any]) -> None:
    installs = [line for line in launcher["setup_commands"] if "pip install" in line]
    assert installs
    assert all("--constraint ~/meltpoint/constraints.txt" in line for line in installs)
    assert any('"ray[default]"' in line for line in installs)


def test_what_it_copies_from_the_checkout_is_there_or_is_built(launcher: dict[str, Any]) -> None:
    folder = ROOT / "deploy" / "ray"
    own = [target for target in launcher["file_mounts"].values() if not target.startswith("~")]
    missing = [target for target in own if not (folder / target).exists()]
    assert set(missing) <= {"../../dist"}


def test_node_types_are_those_that_it_names() -> None:
    content = yaml.safe_load((ROOT / "deploy" / "ray" / "raycluster.yaml").read_text(encoding="utf-8"))
    assert content["head_node_type"] in content["available_node_types"]
    assert content["available_node_types"]["head"]["resources"] == {"CPU": 0}, "trials do not run beside the driver"
    assert any("MarketType" in str(kind) for kind in content["available_node_types"].values())
