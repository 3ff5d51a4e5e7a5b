"""preflight: facts of nodes in, one line a check out, which names the node that is wrong and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from meltpoint.sweeps.on_ray import preflight
from meltpoint.sweeps.on_ray.preflight import CODE, INPUTS, NODES, PACKAGES, STORAGE, TOKEN_FILE, Facts, judged
from meltpoint.sweeps.specification.code_version import code_version

FIT = "can be read and written"
HERE: Facts = {
    CODE: {"Meltpoint": "0.1.0+aaaa"}, PACKAGES: {"torch": "2.13.0"}, STORAGE: {"/data/runs": FIT},
    INPUTS: {"sst2": "0123"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("check", "facts", "says"),
    [
        (CODE, {"Meltpoint": "0.1.0+bbbb"}, "10.0.0.2: Meltpoint 0.1.0+bbbb (the driver: 0.1.0+aaaa)"),
        (PACKAGES, {"torch": "2.12.0"}, "10.0.0.2: torch 2.12.0 (the driver: 2.13.0)"),
        (PACKAGES, {}, "10.0.0.2: torch none (the driver: 2.13.0)"),
        (STORAGE, {"/data/runs": "is missing"}, f"10.0.0.2: /data/runs is missing (the driver: {FIT})"),
        (
            INPUTS,
            {"sst2": "cannot be read (gone)"},
            "10.0.0.2: sst2 cannot be read (gone) (the driver: 0123)",
        ),
    ],
)
def test_the_node_that_differs_is_named_with_a_remedy(check, facts, says) -> None:
    found = judged(HERE, {"10.0.0.1": HERE, "10.0.0.2": {**HERE, check: facts}}, {})
    assert {one.name: one.detail for one in found if not one.ok} == {check: says}
    assert all(bool(one.remedy) != one.ok for one in found)


def test_a_node_that_did_not_answer_is_named_and_does_not_stop_the_sweep() -> None:
    found = judged(HERE, {"10.0.0.1": HERE}, {"10.0.0.2": "no answer in 8 s"})
    assert [(one.name, one.detail) for one in found if not one.ok] == [(NODES, "10.0.0.2: no answer in 8 s")]
    assert NODES in preflight.MAY_DIFFER


def test_a_machine_that_reads_the_drivers_token_answers_in_the_storage(tmp_path: Path) -> None:
    (tmp_path / TOKEN_FILE).write_text("token")
    found = preflight.node_facts("node", str(tmp_path), "token", [], [])
    assert found[CODE] == {"Meltpoint": code_version()}
    assert found[STORAGE] == {str(tmp_path.parent): FIT}
    assert (tmp_path / "node").read_text() == "token"
    assert "+" not in found[PACKAGES]["torch"]


def test_another_storage_under_the_same_path_is_told_from_none(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(preflight, "VISIBLE_SECONDS", 0.0)
    assert preflight.storage_state(tmp_path / ".preflight", "node", "token") == "is a different folder"
    assert preflight.storage_state(tmp_path / "gone" / ".preflight", "node", "token") == "is missing"
    (tmp_path / TOKEN_FILE).write_text("another")
    assert preflight.storage_state(tmp_path, "node", "token") == "is a different folder"
