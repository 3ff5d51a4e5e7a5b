"""A power failure after any system call of a driver: what it said to be kept is there, whole, and it can go on."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from meltpoint.adapters.files import append_line
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.search.closing import opened_trials
from meltpoint.tests.sweeps.power_loss import Disk, traced

DRIVER = """
import json, os, sys
from pathlib import Path
from meltpoint.adapters.files import append_line
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import TrialRecord

records = [TrialRecord.model_validate(one) for one in json.loads(Path(sys.argv[2]).read_text())]
ledger = Ledger(Path(sys.argv[1]) / "runs" / "tiny")
with ledger.driving(lambda *words: None, on_lost=lambda lost: None):
    ledger.create()
    for record in records:
        words = ("id", "number", "role", "encoder", "mode", "task", "head", "seed", "setting")
        ledger.start({word: getattr(record, word) for word in words})
        ledger.write(record)
        os.write(1, f"kept {record.id}\\n".encode())
        append_line(ledger.openings, json.dumps({"trial": record.id, "opened_at": 1.0}))
        os.write(1, f"opened {record.id}\\n".encode())
    ledger.write(records[0].model_copy(update={"test": {"accuracy": 0.5}}))
    os.write(1, b"scored\\n")
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="there is no strace (Debian: apt install strace)")
def test_nothing_that_was_acknowledged_is_lost_wherever_the_power_fails(tmp_path, proposal, make_record) -> None:
    first = make_record(proposal, role="final")
    records = [first.model_copy(update={"id": f"{number:016x}", "number": number}) for number in range(3)]
    described, base = tmp_path / "records.json", tmp_path / "base"
    described.write_text(json.dumps([json.loads(one.model_dump_json()) for one in records]))
    base.mkdir()
    calls = traced([sys.executable, "-c", DRIVER, str(base), str(described)], tmp_path / "trace")
    disk, looked = Disk(base), 0
    for number, call in enumerate(calls):
        before = (disk.said, call.name in ("fsync", "rename", "write", "link", "unlink", "mkdir"))
        disk.do(call)
        touches = any(str(base) in str(part) for part in _paths(call)) or disk.said != before[0]
        if not (before[1] and touches):
            continue
        looked += 1
        for names_last, data_lasts in ((False, False), (True, False), (True, True), (False, True)):
            left = tmp_path / f"left-{number}-{names_last}-{data_lasts}"
            disk.leave(left, names_last, data_lasts)
            assert_kept(left / "runs" / "tiny", disk.said.decode().splitlines(), {one.id: one for one in records})
            shutil.rmtree(left)
    assert "scored" in disk.said.decode()
    assert looked > 40


def _paths(call) -> list[Path]:
    found = []
    for number, argument in enumerate(call.arguments):
        if "\\x2f" in argument:
            found.append(call.path(number))
    return found


def assert_kept(folder: Path, said: list[str], records: dict[str, TrialRecord]) -> None:
    """The ledger holds what was said, opens, and takes another driver."""
    if not folder.exists():
        assert not said
        return
    ledger = Ledger(folder)
    with ledger.driving(pytest.fail, on_lost=lambda lost: None):  # it says where it has to wait
        found = {one.id: one for one in ledger.records()}
        ledger.unfinished()
    kept = {line.split()[1] for line in said if line.startswith("kept")}
    assert kept <= found.keys()
    for one in found.values():
        assert one.model_copy(update={"test": None, "driver_attempt": 0}) == records[one.id]
    if "scored" in said:
        assert found[min(records)].test == {"accuracy": 0.5}
    assert {line.split()[1] for line in said if line.startswith("opened")} <= opened_trials(ledger)


def test_a_line_that_was_cut_off_does_not_spoil_the_next(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    append_line(ledger.openings, json.dumps({"trial": "a", "opened_at": 1.0}))
    whole = json.dumps({"trial": "b", "opened_at": 1.0})
    with ledger.openings.open("a") as file:
        file.write(whole[:-3])
    append_line(ledger.openings, json.dumps({"trial": "c", "opened_at": 1.0}))
    assert opened_trials(ledger) == {"a", "c"}
