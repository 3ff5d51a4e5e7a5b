"""Mutated files: every reader ends with a result or with one line, in bounded time, and writes nothing elsewhere.

`make fuzz` reads 100 000 of them; here is what takes seconds, and the smallest file of each fault that it has found.
The same seed makes the same files: a failure names the number of its own.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from meltpoint.search_spaces import documents
from meltpoint.sweeps.ledger import driver_notes
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.predictions import read_scored
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.machine.terminal import LONGEST_MESSAGE, shortened
from meltpoint.sweeps.results.kept_results import read_ensembles
from meltpoint.sweeps.results.text_files import read_pieces
from meltpoint.sweeps.search.locked_test import ClosingLogs, closing_of, opened_trials
from meltpoint.sweeps.specification.provenance import checked_provenance
from meltpoint.sweeps.storage.files import sweep_folder
from meltpoint.tasks.core import files
from meltpoint.tasks.core.readers import data_bytes, read_lines, read_table
from meltpoint.tasks.core.registry import unknown
from meltpoint.tasks.core.rows import parquet_rows
from meltpoint.tests.fuzz import ledgers, watch
from meltpoint.tests.fuzz.mutations import bomb
from meltpoint.tests.fuzz.targets import (
    Target,
    data_targets,
    encoder_targets,
    make_encoders,
    setting_targets,
)  # fmt: skip

SEED, EACH = (int(os.environ.get(f"MELTPOINT_FUZZ_{name}", default)) for name, default in (("SEED", 7), ("EACH", 25)))
MEMORY_BYTES = 4 * 2**30
"""What reading may need beside what the process has already."""
QUICK = {
    target.name: target for target in [*data_targets(), *setting_targets()] if target.name not in ("point", "spec")
}
WHOLE = ("point", "spec", "safetensors", "encoder_files", "sharded", "elmo", "skip_thoughts", "model", "results",
         "going_on", "predictions")  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def watched() -> None:
    """Listen to what readers write; once a process."""
    watch.install()


def assert_no_fault(target: Target, folder: Path) -> None:
    target.lay(folder)
    target.read(folder)  # whole, and imports what is imported late
    for number in range(EACH):
        target.lay(folder, dict([target.mutated(SEED, number)]))
        fault = watch.fault_of(target.read, folder)
        assert fault is None, (target.name, number, fault)


@pytest.mark.parametrize("target", QUICK.values(), ids=QUICK)
def test_mutated_files_are_read_or_refused_in_one_line(target: Target, tmp_path: Path) -> None:
    assert_no_fault(target, tmp_path)


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Target]]:
    """Every target that is not `QUICK`, by name; a reading that wants too much memory gets a `MemoryError`."""
    base = tmp_path_factory.mktemp("whole")
    make_encoders(base)
    ledgers.make(base / "storage", f"hf:{base / 'hf'}")
    ledger = ledgers.ledger_targets(base / "storage", f"hf:{base / 'hf'}")
    made = {target.name: target for target in [*setting_targets(), *encoder_targets(base), *ledger]}
    assert made.keys() - QUICK.keys() == set(WHOLE)
    before, most = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, most))
    yield made
    resource.setrlimit(resource.RLIMIT_AS, (before, most))


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_mutated_encoders_models_ledgers_and_settings_are_read_or_refused_in_one_line(
    name: str, targets: dict[str, Target], tmp_path: Path
) -> None:
    assert_no_fault(targets[name], tmp_path)


def test_the_watch_sees_a_traceback_a_long_reading_and_a_file_outside(tmp_path: Path, monkeypatch) -> None:
    def raising(error: Exception):
        def read(folder: Path) -> None:
            raise error

        return read

    def endless(folder: Path) -> None:
        while True:
            random.random()

    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.setattr(watch, "LIMIT_SECONDS", 0.2)
    seen = [
        watch.fault_of(raising(KeyError("x")), inside),
        watch.fault_of(raising(UnicodeDecodeError("a", b"", 0, 1, "b")), inside),
        watch.fault_of(endless, inside), watch.fault_of(lambda folder: (tmp_path / "out").write_text("x"), inside),
    ]  # fmt: skip
    assert [fault.kind for fault in seen if fault] == ["KeyError", "UnicodeDecodeError", "TooLong", "Wrote"]
    assert watch.fault_of(raising(ValueError("no. Do this.")), inside) is None
    assert watch.fault_of(lambda folder: (folder / "in").write_text("x"), inside) is None


# Bounds.


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (bomb(), "more than 100000 values"), ("a: &a [*a]\n", "contains itself"), ("[" * 5_000, "nested too deeply"),
        ("x: " + "y" * 2**18, "larger than 256 KiB"),
        ("a: !!timestamp x", "cannot be read"), ("a: !!int x", "cannot be read"), ("a: !!bool x", "cannot be read"),
        (f"a: {'9' * 5000}", "cannot be read"), ("a: !!python/object/apply:os.system [x]", "could not determine"),
    ],
)  # fmt: skip
def test_yaml_beyond_the_bounds_is_refused_in_one_line(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        documents.parse(text, "file.yaml")
    assert str(refused.value).startswith("file.yaml")
    with pytest.raises(yaml.YAMLError):
        files.parse_yaml(text if "!!" not in text and "999" not in text else bomb(), yaml.BaseLoader)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "nested too deeply"), ("9" * 5000, "not JSON"),
        ('{"a": 1, "a": 2}', "the key 'a' is given twice"),
        ("{", "not JSON"), (b"\xff", "not UTF-8"), (r'{"a": "\ud800"}', "half of a UTF-16 surrogate pair"),
    ],
)  # fmt: skip
def test_json_beyond_the_bounds_is_refused_with_a_reason(text: str | bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        files.parse_json(text, unique_keys=True)
    assert type(refused.value) is ValueError


def test_what_looks_like_more_than_it_is_is_read() -> None:
    assert files.parse_json(r'"\ud83d\ude00"') == "\U0001f600", "a whole pair of UTF-16 codes"
    assert documents.parse("a: &a {x: 1}\nb: *a\n", "file") == {"a": {"x": 1}, "b": {"x": 1}}


def test_a_file_beyond_its_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    large = tmp_path / "large.yaml"
    with large.open("wb") as file:
        file.truncate(2**40)  # takes no room
    with pytest.raises(ValueError, match="larger than 256 KiB"):
        documents.read(large)


READERS = {
    "yaml": documents.read, "txt": lambda path: list(read_lines(path)), "csv.gz": data_bytes, "zip": data_bytes,
    "csv": lambda path: list(read_table(path, ("a",), header=False, quoted=True)),
    "parquet": lambda path: list(parquet_rows(path, None)),
    "tsv": lambda path: list(read_pieces(path, 10)), "jsonl": data_bytes,
    "json": files.read_bytes,
}  # fmt: skip
"""Ending of a file's name → one of the functions that read such files."""


@pytest.mark.timeout(20)
@pytest.mark.parametrize("ending", READERS)
@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "folder"])
def test_what_is_no_regular_file_is_named_at_once_and_never_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, ending: str
) -> None:
    path = tmp_path / f"it.{ending}"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        monkeypatch.chdir(tmp_path)  # a socket's path has at most 107 characters
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(ValueError, match=rf"{re.escape(str(path))} is a {kind}, not a regular file"):
        READERS[ending](path)


def test_a_wrong_name_of_two_million_characters_is_compared_and_shown_by_its_beginning() -> None:
    assert len(str(unknown("x" * 2_000_000, "label", ["good", "bad"]))) < 400
    assert len(shortened("a" * 10**6 + "b")) <= LONGEST_MESSAGE + 3
    assert shortened("a" * 10**6 + "b").endswith("ab")


# Names that lead elsewhere.


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "../x", "/tmp/x", "a\0b"])
def test_a_name_of_a_sweep_stays_in_the_storage(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a sweep name"):
        sweep_folder(tmp_path, name)


RECORD = TrialRecord(
    id="0123456789abcdef", number=0, encoder="e", mode="m", task="t", role="search", seed=0, head="h", setting={},
    metric="accuracy", status="finished", dev=0.5, data_fingerprint="d", code_version="c", started_at=1.0, seconds=1.0,
)  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "../../escaped"}, {"id": "another"}, {"dev": float("nan")}, {"test": {"f1": 0.5}}, {"setting": []},
        {"epochs": [{"epoch": 1}]}, {"id": "x" * 300}, {"trained_together": 0}, {"setting": {"batch_size": 2**63}},
    ],
    ids=lambda changes: str(changes)[:60],
)  # fmt: skip
def test_a_record_that_would_lead_elsewhere_lacks_its_score_or_has_impossible_numbers_is_named(
    changes: dict, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path)
    ledger.create()
    path = ledger.trials / f"{RECORD.id}.json"
    path.write_text(json.dumps(RECORD.model_dump(mode="json") | changes))
    with pytest.raises(ValueError, match=f"{RECORD.id}.json is not a trial record"):
        ledger.records()


@pytest.mark.parametrize(
    "index", [{"a": "../../x.safetensors"}, {"a": "/x.safetensors"}, {"a": 7}, {"a": "pytorch_model.bin"}], ids=str
)
def test_an_index_of_weights_names_files_beside_itself(index: dict, tmp_path: Path) -> None:
    from meltpoint.adapters.families.huggingface.files import weight_files

    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    with pytest.raises(ValueError, match="is not an index of weights"):
        weight_files(tmp_path)


# What ended with a traceback.

FINAL = RECORD.model_copy(update={"role": "final"})
ROW = '{"id": "0", "gold": "a", "prediction": "a", "probabilities": %s}'
NO_MEMBERS = {
    "id": "a", "task": "t", "kind": "k", "metric": "m", "members": [], "dev": [], "test": [], "made_at": 1.0,
    "data_fingerprint": "d",
}  # fmt: skip
DAMAGED = (
    # a file of a ledger, its contents, its reader, the message
    *(("000002.inherited", text, lambda ledger: driver_notes.inherited(ledger.folder),
       r"000002\.inherited is damaged .* delete it") for text in ('["a"', "\xff", "{}", "[1]", "7")),
    *(("test_openings.jsonl", text, opened_trials, r"test_openings\.jsonl has a damaged line")
      for text in ("{}", '{"trial": {}, "opened_at": 1}', '{"trial": "a", "opened_at": 1e300}', "\xff", "[]")),
    ("time_budgets.jsonl", '{"spent": 1}', lambda ledger: closing_of(ClosingLogs.read(ledger), [FINAL], 4),
     r"time_budgets\.jsonl has a damaged line"),
    *(("a.jsonl", text, lambda ledger: read_scored(ledger.folder / "a.jsonl", "pair_classification"),
       r"a\.jsonl.* restore")
      for text in ("\xff", "true", ROW % "true", ROW % '{"a": NaN}', ROW.replace('"a"', "[]", 1) % '{"a": 1}')),
    ("ensembles/a.json", json.dumps(NO_MEMBERS), read_ensembles, r"a\.json is not an ensemble"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "text", "read", "message"), DAMAGED, ids=[f"{one[0]} {one[1]}" for one in DAMAGED])
def test_a_damaged_file_of_a_ledger_is_named(
    name: str, text: str, read: Callable[[Ledger], object], message: str, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path)
    ledger.ensembles.mkdir()
    if name == "time_budgets.jsonl":
        ledger.openings.write_text('{"trial": "0123456789abcdef", "opened_at": 1.0}')
    (tmp_path / name).write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=message) as refused:
        read(ledger)
    assert type(refused.value) is ValueError


@pytest.mark.parametrize(
    "provenance", [{"seed": "x"}, {"finals": [{}]}, {"data": 7}, {"seed": -1}, {"versions": []}], ids=str
)
def test_a_provenance_of_other_types_is_refused_before_the_training(provenance: dict) -> None:
    with pytest.raises(ValueError, match=r"point\.yaml: provenance: .* remove `provenance` from"):
        checked_provenance(provenance, "point.yaml")
