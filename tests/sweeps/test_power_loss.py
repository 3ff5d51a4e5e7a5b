"""A power failure after any system call of a driver: what it said to be kept is there, whole, and it can go on."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from meltpoint.adapters.files import append_line
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.search.locked_test import opened_trials

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


CALLS = "open,openat,creat,close,write,pwrite64,writev,pwritev,ftruncate,truncate,fsync,fdatasync,rename,renameat"
CALLS += ",renameat2,link,linkat,unlink,unlinkat,mkdir,mkdirat,rmdir,copy_file_range,sendfile,fallocate,symlink,mmap"
LINE = re.compile(r"^\d+ +(\w+)\((.*)\) += (-?\d+)(?:<[^>]*>)?(?: .*)?$", re.DOTALL)
ESCAPED = re.compile(r"(?:\\x[0-9a-f]{2})+")


@dataclass(frozen=True)
class Call:
    """A system call that succeeded: its name, its arguments as strace writes them, and what it returned."""

    name: str
    arguments: tuple[str, ...]
    result: int

    def path(self, number: int) -> Path:
        """An argument that is a path, or a file's number with its path behind it."""
        return Path(_decoded(self.arguments[number].partition("<")[2] or self.arguments[number]).decode())

    def path_at(self, number: int) -> Path:
        """A path that is relative to the folder before it."""
        return self.path(number) / self.path(number + 1)

    def data(self, number: int) -> bytes:
        """An argument that is bytes."""
        return _decoded(self.arguments[number])


def _decoded(text: str) -> bytes:
    return bytes.fromhex("".join(ESCAPED.findall(text)).replace("\\x", ""))


def traced(words: Sequence[str], log: Path) -> list[Call]:
    """The calls of a process and its threads that change files, in their order."""
    command = ["strace", "-f", "-y", "-xx", "-s", "1000000", "-e", f"trace={CALLS}", "-o", str(log), *words]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    return list(_calls(log))


def _calls(log: Path) -> Iterator[Call]:
    halves: dict[str, str] = {}
    for line in log.read_text(encoding="ascii").splitlines():
        process = line.split()[0]
        if line.endswith("<unfinished ...>"):
            halves[process] = line.removesuffix("<unfinished ...>")
            continue
        if "resumed>" in line:
            line = halves.pop(process) + line.partition("resumed>")[2]
        found = LINE.match(line)
        if found and not found[3].startswith("-"):
            yield Call(found[1], tuple(found[2].split(", ")), int(found[3]))


@dataclass
class Node:
    """A file or folder: as it is, and as it is sure to be after a failure.

    Attributes:
        names, sure_names: of a folder; None of a file.
        data, sure_data: of a file.
    """

    names: dict[str, Node] | None = None
    sure_names: dict[str, Node] = field(default_factory=dict)
    data: bytes = b""
    sure_data: bytes = b""


class Disk:
    """A folder that system calls change; it was there before.

    Attributes:
        said: what the process wrote to standard output.
    """

    def __init__(self, base: Path) -> None:
        self.base, self.root, self.said = base, Node({}), b""
        self._ends: dict[int, int] = {}

    def do(self, call: Call) -> None:
        """Take a call in; those on other folders change nothing."""
        act = getattr(self, f"_{call.name}", None)
        if act is not None:
            act(call)
        elif str(self.base) in " ".join(_decoded(one).decode(errors="replace") for one in call.arguments):
            assert call.name in ("close", "mmap"), f"{call.name} is not known to the disk"

    def _holder(self, path: Path) -> tuple[dict[str, Node], str] | None:
        """The names of a path's folder and its own; None outside of the base."""
        if self.base not in path.parents:
            return None
        *parents, name = path.relative_to(self.base).parts
        node = self.root
        for part in parents:
            assert node.names is not None
            node = node.names[part]
        assert node.names is not None
        return node.names, name

    def _node(self, path: Path) -> Node | None:
        if path == self.base:
            return self.root
        held = self._holder(path)
        return held[0].get(held[1]) if held else None

    def _openat(self, call: Call) -> None:
        held = self._holder(call.path_at(0))
        if held is None or "O_DIRECTORY" in call.arguments[2]:
            return
        node = held[0].get(held[1])
        if node is None:
            assert "O_CREAT" in call.arguments[2]
            node = held[0][held[1]] = Node()
        if "O_TRUNC" in call.arguments[2]:
            node.data = b""
        self._ends[call.result] = len(node.data) if "O_APPEND" in call.arguments[2] else 0

    def _write(self, call: Call) -> None:
        if call.arguments[0].split("<")[0] == "1":
            self.said += call.data(1)
        elif node := self._node(call.path(0)):
            number = int(call.arguments[0].split("<")[0])
            self._put(node, call.data(1)[: call.result], self._ends[number])
            self._ends[number] += call.result

    def _pwrite64(self, call: Call) -> None:
        if node := self._node(call.path(0)):
            self._put(node, call.data(1)[: call.result], int(call.arguments[3]))

    def _put(self, node: Node, data: bytes, start: int) -> None:
        node.data = node.data[:start].ljust(start, b"\0") + data + node.data[start + len(data) :]

    def _ftruncate(self, call: Call) -> None:
        if node := self._node(call.path(0)):
            node.data = node.data[: int(call.arguments[1])].ljust(int(call.arguments[1]), b"\0")

    def _fsync(self, call: Call) -> None:
        if node := self._node(call.path(0)):
            node.sure_data, node.sure_names = node.data, dict(node.names or {})

    _fdatasync = _fsync

    def _rename(self, call: Call) -> None:
        old, new = self._holder(call.path(0)), self._holder(call.path(1))
        if old is not None:
            assert new is not None
            new[0][new[1]] = old[0].pop(old[1])

    def _link(self, call: Call) -> None:
        old, new = self._holder(call.path(0)), self._holder(call.path(1))
        if old is not None:
            assert new is not None
            new[0][new[1]] = old[0][old[1]]

    def _unlink(self, call: Call) -> None:
        if held := self._holder(call.path(0)):
            del held[0][held[1]]

    _rmdir = _unlink

    def _unlinkat(self, call: Call) -> None:
        if held := self._holder(call.path_at(0)):
            del held[0][held[1]]

    def _mkdir(self, call: Call) -> None:
        if held := self._holder(call.path(0)):
            held[0][held[1]] = Node({})

    def leave(self, folder: Path, names_last: bool, data_lasts: bool) -> None:
        """Write what a failure leaves.

        Args:
            names_last: names are as they were at last; else as they were when their folder was synced.
            data_lasts: files hold what was written; else what they held when they were synced.
        """
        _leave(self.root, folder, names_last, data_lasts)


def _leave(node: Node, path: Path, names_last: bool, data_lasts: bool) -> None:
    if node.names is None:
        path.write_bytes(node.data if data_lasts else node.sure_data)
        return
    path.mkdir()
    for name, inner in (node.names if names_last else node.sure_names).items():
        _leave(inner, path / name, names_last, data_lasts)
