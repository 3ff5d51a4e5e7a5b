"""cluster_checks: facts of nodes in, one line a check out, which names the node that is wrong and the remedy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meltpoint.sweeps.machine import cluster_checks
from meltpoint.sweeps.machine.cluster_checks import (
    TOKEN_FILE,
    Answers,
    NodeFacts,
    hub_state,
    judged,
    probe_fault,
    size_of,
)
from meltpoint.sweeps.specification.code_version import code_version

HERE = NodeFacts(
    host="a", ray="2.60.0", python="3.11.9", meltpoint="0.1.0", code="0.1.0+aaaa", packages={"torch": "2.13.0"},
    storage="", free_bytes=10 * 2**30, folders={}, hub="", clock=100.0,
)  # fmt: skip


def changed(**changes: object) -> NodeFacts:
    return {**HERE, **changes}  # type: ignore[typeddict-item,return-value]


def failing(answers: Answers) -> dict[str, str]:
    """The checks that are not ok: name → detail."""
    found = judged(answers)
    assert all(bool(check.remedy) != check.ok and "\n" not in check.detail for check in found)
    assert len({check.name for check in found}) == len(found)
    return {check.name: check.detail for check in found if not check.ok}


def test_nodes_that_are_as_the_driver_pass_every_check() -> None:
    assert failing(Answers(HERE, {"10.0.0.1": HERE, "10.0.0.2": HERE})) == {}


@pytest.mark.parametrize(
    ("changes", "name", "says"),
    [
        ({"python": "3.11.8"}, cluster_checks.VERSIONS, "10.0.0.2 has Ray and Python 2.60.0, 3.11.8"),
        ({"ray": "2.59.0"}, cluster_checks.VERSIONS, "10.0.0.2 has Ray and Python 2.59.0, 3.11.9"),
        ({"code": "0.1.0+bbbb"}, cluster_checks.CODE, "10.0.0.2 has 0.1.0+bbbb, the driver 0.1.0+aaaa"),
        ({"packages": {"torch": "2.12.0"}}, cluster_checks.PACKAGES, "10.0.0.2 torch 2.12.0 (the driver: 2.13.0)"),
        ({"packages": {}}, cluster_checks.PACKAGES, "10.0.0.2 torch none (the driver: 2.13.0)"),
        ({"storage": "does not see /data/runs"}, cluster_checks.STORAGE, "10.0.0.2 does not see /data/runs"),
        ({"free_bytes": 5}, cluster_checks.DISK, "10.0.0.2 has 0.00 GiB free in the storage"),
    ],
)  # fmt: skip
def test_the_node_that_differs_is_named(changes, name, says) -> None:
    found = failing(Answers(HERE, {"10.0.0.1": HERE, "10.0.0.2": changed(**changes)}))
    assert list(found) == [name]
    assert found[name].startswith(says)
    assert "10.0.0.1" not in found[name]


def test_a_node_that_did_not_answer_or_whose_files_are_not_seen_is_named() -> None:
    answers = Answers(HERE, {"10.0.0.1": HERE}, silent={"10.0.0.2": "no answer in 8 s"})
    assert "10.0.0.2: no answer in 8 s" in failing(answers)[cluster_checks.NODES]
    found = failing(replace(answers, silent={}, unread=frozenset({"10.0.0.1"})))
    assert found == {cluster_checks.STORAGE: "10.0.0.1 the driver does not see its files"}


def test_other_data_and_other_encoders_are_named_and_slow_nodes_are_left_to_their_workers() -> None:
    answers = Answers(
        HERE, {"10.0.0.1": HERE, "10.0.0.2": HERE, "10.0.0.3": HERE}, wanted={"sst2": "0123", "hf:/models/e": "4567"},
        inputs={
            "10.0.0.1": {"sst2": "0123", "hf:/models/e": "4567"},
            "10.0.0.2": {"sst2": "89ab", "hf:/models/e": "cannot be read (no folder)"},
        },
    )  # fmt: skip
    found = failing(answers)
    assert found == {
        cluster_checks.INPUTS: "10.0.0.2 sst2 differs there; hf:/models/e cannot be read (no folder)",
    }
    (check,) = [
        one for one in judged(replace(answers, inputs={"10.0.0.1": answers.inputs["10.0.0.1"]}))
        if one.name == cluster_checks.INPUTS
    ]  # fmt: skip
    assert check.ok
    assert "except 10.0.0.2, 10.0.0.3, too slow to answer" in check.detail


def test_folders_are_compared_by_their_files() -> None:
    here, other = changed(folders={"/data": (3, 100)}), changed(folders={"/data": (3, 99)})
    assert failing(Answers(here, {"10.0.0.2": here})) == {}
    assert failing(Answers(here, {"10.0.0.2": other})) == {cluster_checks.FOLDERS: "10.0.0.2 has other files in /data"}
    gone = changed(folders={"/data": None})
    assert failing(Answers(here, {"10.0.0.2": gone})) == {cluster_checks.FOLDERS: "10.0.0.2 has no folder /data"}
    assert "the driver has no folder /data" in failing(Answers(gone, {"10.0.0.2": gone}))[cluster_checks.FOLDERS]


@pytest.mark.parametrize(("clock", "is_off"), [(99.0, False), (104.0, False), (94.0, True), (108.0, True)])
def test_a_clock_outside_the_time_of_its_answer_is_off(clock: float, is_off: bool) -> None:
    answers = Answers(HERE, {"10.0.0.2": changed(clock=clock)}, span={"10.0.0.2": (100.0, 102.0)})
    assert (cluster_checks.CLOCKS in failing(answers)) is is_off


def test_the_hub_has_to_be_reached_or_not_to_be_asked() -> None:
    here = changed(hub="reached")
    assert failing(Answers(here, {"10.0.0.1": here, "10.0.0.2": changed(hub="offline")})) == {}
    found = failing(Answers(here, {"10.0.0.2": changed(hub="huggingface.co: timed out")}))
    assert found == {cluster_checks.HUB: "10.0.0.2 huggingface.co: timed out"}


# --- the facts ---


def test_a_machine_that_reads_the_drivers_token_answers_in_the_storage(tmp_path: Path) -> None:
    (tmp_path / TOKEN_FILE).write_text("token")
    assert probe_fault(tmp_path, "node", "token") == ""
    assert (tmp_path / "node").read_text() == "token"


def test_another_storage_under_the_same_path_is_told_from_none(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(cluster_checks, "VISIBLE_SECONDS", 0.0)
    assert probe_fault(tmp_path / ".preflight", "node", "token") == f"has a different folder {tmp_path}"
    assert probe_fault(tmp_path / "gone" / ".preflight", "node", "token") == f"does not see {tmp_path / 'gone'}"
    (tmp_path / TOKEN_FILE).write_text("another")
    assert probe_fault(tmp_path, "node", "token") == f"has a different folder {tmp_path.parent}"


def test_facts_are_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / TOKEN_FILE).write_text("token")
    found = cluster_checks.node_facts("node", str(tmp_path), "token", [str(tmp_path), str(tmp_path / "gone")])
    assert found["code"] == code_version()
    assert found["folders"] == {str(tmp_path): size_of(tmp_path), str(tmp_path / "gone"): None}
    assert "+" not in found["packages"]["torch"]
    assert found["hub"] == ""


def test_the_hub_is_not_asked_where_it_is_offline_or_behind_a_proxy() -> None:
    assert hub_state({"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}) == "offline"
    assert hub_state({"HTTPS_PROXY": "http://127.0.0.1:9", "HF_ENDPOINT": "http://127.0.0.1:9"}) == "reached"
    assert hub_state({"HF_ENDPOINT": "http://127.0.0.1:9"}).startswith("127.0.0.1: ")
