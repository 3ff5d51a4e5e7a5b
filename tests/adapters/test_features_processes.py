"""Cached features between processes: the work is shared, a death blocks nobody, and what is in use stays."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from meltpoint.adapters.data.batch import EncodedSplit, Row
from meltpoint.adapters.features.entries import entries, remove
from meltpoint.adapters.features.layout import ENCODING_BATCH, feature_key
from meltpoint.adapters.features.reading import Features, open_features

ROWS = 300  # three shards, five batches
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
        files = [
            str(tiny_folder("bert")),
            str(tmp_path / "cache"),
            str(ROWS),
            str(tmp_path / own),
            str(tmp_path / other),
        ]
        command = [sys.executable, "-c", CHILD, *files]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, "it never came to pass"
        time.sleep(0.01)


def result_of(process: subprocess.Popen[str]) -> tuple[int, float]:
    """(forward passes, sum of all states) of a child that is done; it lives on and holds its entry."""
    assert process.stdout is not None
    passes, total = process.stdout.readline().split()
    return int(passes), float(total)


def open_here(cache: Path, load_tiny) -> Features:
    split = EncodedSplit([Row(n, 0, (2, *[5 + n % 7] * (n % 20 + 2)), (), (), None) for n in range(ROWS)], ROWS)
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
    assert sum(passes for passes, _ in done) == -(-ROWS // ENCODING_BATCH)
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
    wait_for((tmp_path / "began").exists)
    opened: list[Features] = []
    here = threading.Thread(target=lambda: opened.append(open_here(tmp_path / "cache", load_tiny)), daemon=True)
    here.start()
    (folder,) = [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    wait_for(lambda: len(list(folder.glob("shard-*.json"))) == 2)  # all but the one that the doomed process holds
    assert not opened
    doomed.kill()
    doomed.wait()
    here.join(PATIENCE_SECONDS)
    assert entries(tmp_path / "cache")[0].complete
    undisturbed = open_here(tmp_path / "alone", load_tiny)
    assert torch.equal(opened[0].gather(range(ROWS)), undisturbed.gather(range(ROWS)))
