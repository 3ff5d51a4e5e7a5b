"""The feature cache that several processes share: who encodes, who waits, what is evicted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from meltpoint.adapters.data.batch import EncodedSplit, Row
from meltpoint.adapters.features import entries, remove
from meltpoint.adapters.features.layout import ENCODING_BATCH, feature_key
from meltpoint.adapters.features.reading import Budget, Features, choose, needed_bytes, open_features
from meltpoint.tests.local_servers import until

KIND = "sentence_classification"
ROWS, PIECES, DIM, LAYERS = 20, 10, 32, (0, 1, 2)
ENTRY_BYTES = ROWS * PIECES * DIM * len(LAYERS) * 4
ROOM = 20_000  # bytes of manifests and of entry.json, generously


def split_of(piece: int) -> EncodedSplit:
    return EncodedSplit([Row(n, 0, (piece,) * PIECES, (), (), None) for n in range(ROWS)], ROWS)


@pytest.fixture(scope="module")
def encoder(load_tiny):
    return load_tiny("bert")


@pytest.fixture
def make(tmp_path, encoder):
    """Piece → an entry, used at second `piece` of 1970, and closed; gives its key."""

    def made(piece):
        key = feature_key(encoder, split_of(piece), KIND, "fp32", "all")
        open_features(tmp_path, key, encoder, split_of(piece), KIND, LAYERS, torch.device("cpu"), {})
        os.utime(tmp_path / key.id / "entry.json", (piece, piece))
        return key

    return made


@pytest.fixture
def decide(tmp_path, encoder):
    """(budget, precision, layers) → the decision on the split of piece 9."""

    def decided(budget, precision="fp32", layers=LAYERS):
        key = feature_key(encoder, split_of(9), KIND, precision, "all")
        return choose(tmp_path, key, encoder, split_of(9), layers, budget), key

    return decided


def test_what_fits_is_cached_and_nothing_is_removed(make, decide, tmp_path):
    old = make(5)
    decision, key = decide(Budget(2 * ENTRY_BYTES + ROOM, disk_margin_bytes=0))
    assert decision[0] == key
    assert [entry.id for entry in entries(tmp_path)] == [old.id]


def test_needed_bytes_are_what_the_states_take(tmp_path, encoder, make):
    key = feature_key(encoder, split_of(9), KIND, "fp32", "all")
    assert needed_bytes(tmp_path, key, encoder, split_of(9), LAYERS) == ENTRY_BYTES
    assert needed_bytes(tmp_path, replace(key, precision="bf16"), encoder, split_of(9), LAYERS) == ENTRY_BYTES // 2
    assert needed_bytes(tmp_path, replace(key, pieces="first"), encoder, split_of(9), (2,)) == ROWS * DIM * 4
    make(9)
    assert needed_bytes(tmp_path, key, encoder, split_of(9), LAYERS) == 0


def test_the_entry_used_least_recently_goes_first_and_no_more_than_needed(make, decide, tmp_path):
    _, young = make(5), make(6)
    decision, key = decide(Budget(2 * ENTRY_BYTES + ROOM, disk_margin_bytes=0))
    assert decision[0] == key
    assert [entry.id for entry in entries(tmp_path)] == [young.id]


def test_opening_an_entry_makes_it_the_youngest(make, tmp_path, encoder):
    old, young = make(5), make(6)
    open_features(tmp_path, old, encoder, split_of(5), KIND, (2,), torch.device("cpu"), {})
    assert [entry.id for entry in entries(tmp_path)] == [young.id, old.id]


def test_an_open_entry_stays_and_the_next_one_goes(make, decide, tmp_path, encoder):
    old, _ = make(5), make(6)
    reading = open_features(tmp_path, old, encoder, split_of(5), KIND, (2,), torch.device("cpu"), {})
    os.utime(tmp_path / old.id / "entry.json", (5, 5))
    decision, key = decide(Budget(2 * ENTRY_BYTES + ROOM, disk_margin_bytes=0))
    assert decision[0] == key
    assert [entry.id for entry in entries(tmp_path)] == [old.id]
    assert reading.gather([0]).any()


def test_what_can_never_fit_removes_nothing_and_runs_on_the_fly(make, decide, tmp_path):
    old = make(5)
    decision, _ = decide(Budget(ENTRY_BYTES - 1, disk_margin_bytes=0))
    assert decision[0] is None
    assert "encoder runs in each batch" in decision[1]
    assert [entry.id for entry in entries(tmp_path)] == [old.id]


def test_float32_that_does_not_fit_is_kept_in_bf16_where_the_caller_says_so(decide):
    decision, key = decide(Budget(ENTRY_BYTES - 1, "bf16", disk_margin_bytes=0))
    assert decision[0] == replace(key, precision="bf16")
    assert "do not fit" in decision[1]
    assert "bf16" in decision[1]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_does_not_fit_in_bf16_either_runs_on_the_fly(decide, precision):
    decision, _ = decide(Budget(ENTRY_BYTES // 2 - 1, "bf16", disk_margin_bytes=0), precision)
    assert decision[0] is None


def test_a_subset_of_layers_fits_where_all_do_not(decide):
    budget = Budget(ENTRY_BYTES // 2, disk_margin_bytes=0)
    assert decide(budget)[0][0] is None
    assert decide(budget, layers=(2,))[0][0] is not None


def test_a_disk_that_is_almost_full_counts_like_a_budget(decide, tmp_path):
    free = shutil.disk_usage(tmp_path).free
    decision, _ = decide(Budget(10**15, disk_margin_bytes=2 * free))
    assert decision[0] is None
    assert "GB free" in decision[1] or "MB free" in decision[1]


def test_an_entry_that_is_there_is_used_whatever_the_budget(make, decide):
    key = make(9)
    assert decide(Budget(0))[0][0] == key


MANY_ROWS = 300  # three shards, five batches
PATIENCE_SECONDS = 60

# Rows are the same in every process; `forward` first says that it runs, then waits for what the test wants.
CHILD = """
import sys, time
from pathlib import Path
import torch
from meltpoint.adapters import encoders
from meltpoint.adapters.data.batch import EncodedSplit, Row
from meltpoint.adapters.features.layout import feature_key
from meltpoint.adapters.features.reading import open_features

weights, cache, rows, own, other = sys.argv[1:]
split = EncodedSplit([Row(n, 0, (2, *[5 + n % 7] * (n % 20 + 2)), (), (), None) for n in range(int(rows))], int(rows))
encoder = encoders.load(encoders.resolve(f"hf:{weights}", "sentence_classification"))
inner, calls = encoder.forward, []

def forward(batch):
    Path(own).touch()
    while not Path(other).exists():
        time.sleep(0.01)
    calls.append(len(batch))
    return inner(batch)

encoder.forward = forward
key = feature_key(encoder, split, "sentence_classification", "fp32", "all")
features = open_features(
    Path(cache), key, encoder, split, "sentence_classification", (0, 1, 2), torch.device("cpu"), {"task": "t"}
)
print(len(calls), float(features.gather(range(len(split.rows))).double().sum()), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def child(tiny_folder: Callable[[str], Path], tmp_path: Path) -> Iterator[Callable[[str, str], subprocess.Popen[str]]]:
    """(own, other) → a process that opens the entry; its first forward pass makes `own` and waits for `other`."""
    started: list[subprocess.Popen[str]] = []

    def start(own: str, other: str) -> subprocess.Popen[str]:
        files = [tiny_folder("bert"), tmp_path / "cache", MANY_ROWS, tmp_path / own, tmp_path / other]
        command = [sys.executable, "-c", CHILD, *map(str, files)]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def result_of(process: subprocess.Popen[str]) -> tuple[int, float]:
    """(forward passes, sum of all states) of a child that is done; it lives on and holds its entry."""
    assert process.stdout is not None
    passes, total = process.stdout.readline().split()
    return int(passes), float(total)


def open_here(cache: Path, load_tiny) -> Features:
    split = EncodedSplit(
        [Row(n, 0, (2, *[5 + n % 7] * (n % 20 + 2)), (), (), None) for n in range(MANY_ROWS)], MANY_ROWS
    )
    encoder = load_tiny("bert")
    key = feature_key(encoder, split, "sentence_classification", "fp32", "all")
    return open_features(
        cache, key, encoder, split, "sentence_classification", (0, 1, 2), torch.device("cpu"), {"task": "t"}
    )


@pytest.mark.slow
def test_two_processes_share_the_shards_encode_each_once_and_hold_the_entry_while_they_live(tmp_path, child):
    # Each one's first pass waits until the other one's has begun: both are at it at the same time.
    first, second = child("one", "two"), child("two", "one")
    done = [result_of(first), result_of(second)]
    assert sum(passes for passes, _ in done) == -(-MANY_ROWS // ENCODING_BATCH)
    assert all(passes > 0 for passes, _ in done)
    assert done[0][1] == done[1][1] != 0
    (folder,) = [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    written = {path.read_text(encoding="utf-8").partition("written_by")[2] for path in folder.glob("shard-*.json")}
    assert len(written) == 2
    for process in (first, second):
        assert not remove(tmp_path / "cache", folder.name)
        process.kill()
        process.wait()
    assert remove(tmp_path / "cache", folder.name)
    assert entries(tmp_path / "cache") == []


def test_a_process_killed_while_it_encodes_a_shard_leaves_it_to_the_others(tmp_path, child, load_tiny):
    doomed = child("began", "never")
    until((tmp_path / "began").exists)
    opened: list[Features] = []
    here = threading.Thread(target=lambda: opened.append(open_here(tmp_path / "cache", load_tiny)), daemon=True)
    here.start()
    (folder,) = [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    until(lambda: len(list(folder.glob("shard-*.json"))) == 2)  # all but the one that the doomed process holds
    assert not opened
    doomed.kill()
    doomed.wait()
    here.join(PATIENCE_SECONDS)
    assert entries(tmp_path / "cache")
    undisturbed = open_here(tmp_path / "alone", load_tiny)
    assert torch.equal(opened[0].gather(range(MANY_ROWS)), undisturbed.gather(range(MANY_ROWS)))
