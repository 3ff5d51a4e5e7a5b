"""Patches of Ray and Tune: what each does while it is on, under which Ray, and that it is undone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.version import Version
from ray._private.node import Node
from ray.tune.execution.class_cache import _ActorClassCache

from meltpoint.sweeps.on_ray import patches
from meltpoint.sweeps.on_ray.forked_worker import FORKING
from meltpoint.tests.sweeps.whole_sweeps import PATIENCE_SECONDS, assert_whole, command

NAMES = {patch.name for patch in patches.PATCHES}
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs these tests may have turned the patches off for the others."""
    monkeypatch.delenv("MELTPOINT_RAY_PATCHES", raising=False)


def patched() -> dict[str, Any]:
    """All that the patches replace, as it stands."""
    node = {name: getattr(Node, name) for name in ("start_monitor", "start_log_monitor", "start_api_server")}
    return node | {"start_raylet": Node.start_raylet, "get": _ActorClassCache.get}


def replaced(before: dict[str, Any]) -> set[str]:
    return {name for name, value in patched().items() if value is not before[name]}


@contextmanager
def everything() -> Iterator[dict[str, Any]]:
    with patches.starting_ray("a socket") as private, patches.running_tune(is_local=True):
        yield private


def test_all_are_on_by_default_and_every_replaced_name_is_put_back() -> None:
    before = patched()
    with everything() as private:
        assert replaced(before) == set(before)
        assert set(private) == {"_system_config"}
    assert replaced(before) == set()


def test_every_replaced_name_is_put_back_where_the_sweep_fails() -> None:
    before = patched()
    with pytest.raises(KeyError), everything():
        raise KeyError
    assert replaced(before) == set()


@pytest.mark.parametrize("version", ["2.59.0", "2.61.0", "3.0.0", "2.61.0.dev0"])
def test_a_ray_that_they_were_not_tested_with_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(patches, "ray_version", lambda: version)
    before = patched()
    with patches.starting_ray(None) as private, patches.running_tune(is_local=True):
        assert (replaced(before), private) == (set(), {})
    assert patches.active() == frozenset()
    assert f"Ray {version}" in patches.check().detail
    assert "none active" in patches.check().detail


def test_the_variable_turns_off_all_or_all_but_some(monkeypatch: pytest.MonkeyPatch) -> None:
    assert patches.active({}) == patches.active({patches.SWITCH: "1"}) == NAMES
    assert patches.active({patches.SWITCH: "0"}) == frozenset()
    assert patches.active({patches.SWITCH: "lean_head,plain_actors"}) == {"lean_head", "plain_actors"}
    monkeypatch.setenv(patches.SWITCH, "0")
    before = patched()
    with patches.starting_ray(None) as private, patches.running_tune(is_local=True):
        assert (replaced(before), private) == (set(), {})


def test_a_patch_that_there_is_not_is_refused_and_doctor_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(patches.SWITCH, "lean_hed")
    with pytest.raises(ValueError, match=r"MELTPOINT_RAY_PATCHES=lean_hed: write 0, 1, or some of .*lean_head"):
        patches.active()
    assert not patches.check().ok


def test_doctor_says_whether_they_are_active(monkeypatch: pytest.MonkeyPatch) -> None:
    assert patches.check().ok
    assert f"all {len(NAMES)} active" in patches.check().detail
    monkeypatch.setenv(patches.SWITCH, "0")
    assert "none active (MELTPOINT_RAY_PATCHES=0)" in patches.check().detail
    assert patches.check().ok


def test_a_cluster_of_others_keeps_tunes_own_workers() -> None:
    before = patched()
    with patches.running_tune(is_local=False):
        assert replaced(before) == set()


def test_each_patch_is_described_and_stands_in_the_guide() -> None:
    guide = (ROOT / "docs" / "machines.md").read_text(encoding="utf-8")
    for patch in patches.PATCHES:
        assert all((patch.effect, patch.gain, patch.without)), patch.name
        assert patches.TESTED.contains(Version(f"{patch.since}.0")), patch.name
        assert f"| `{patch.name}` |" in guide


def test_the_raylet_is_told_of_the_fork_server_and_of_rays_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    monkeypatch.setattr(Node, "start_raylet", lambda node, *words: heard.append(json.loads(os.environ[FORKING])))
    node = SimpleNamespace(_ray_params=SimpleNamespace(setup_worker_path="/ray/setup_worker.py"))
    with patches.starting_ray("a socket"):
        Node.start_raylet(node, "store")
    assert (heard[0]["socket"], heard[0]["setup"]) == ("a socket", "/ray/setup_worker.py")
    assert Path(node._ray_params.setup_worker_path).name == "forked_worker.py"
    assert FORKING not in os.environ


def test_without_a_fork_server_ray_starts_its_workers_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Node, "start_raylet", lambda node: None)
    node = SimpleNamespace(_ray_params=SimpleNamespace(setup_worker_path="/ray/setup_worker.py"))
    with patches.starting_ray(None) as private:
        Node.start_raylet(node)
    assert node._ray_params.setup_worker_path == "/ray/setup_worker.py"
    assert "prestart_worker_first_driver" not in private["_system_config"]


def test_tunes_workers_have_no_environment_of_their_own() -> None:
    class Trainable:
        pass

    with patches.running_tune(is_local=True):
        plain = _ActorClassCache().get(Trainable)
    assert not plain._default_options.get("runtime_env")
    assert _ActorClassCache().get(Trainable)._default_options["runtime_env"], "Tune's own way"


SWEEPS = """
import sys
from meltpoint.launch import app
from meltpoint.sweeps.command_line.errors import accept_any_character
accept_any_character()
from meltpoint.tests.sweeps.test_patches import patched, replaced
before = patched()
try:
    app(sys.argv[1:])
except SystemExit as end:
    print("status", end.code)
print("replaced", sorted(replaced(before)))
"""


def test_after_a_sweep_ray_and_tune_are_as_they_were(spec: Any, tmp_path: Path) -> None:
    words = command(spec, tmp_path, modes=("feature_extraction",), trials=2)
    done = subprocess.run(
        [sys.executable, "-c", SWEEPS, *words[3:]], capture_output=True, encoding="utf-8", timeout=PATIENCE_SECONDS,
        check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-2:] == ["status 0", "replaced []"], done.stderr[-3000:]
    assert_whole(tmp_path, cells=1, trials=2, seeds=2)
