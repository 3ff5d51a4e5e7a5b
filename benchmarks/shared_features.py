"""How much memory workers need for one task's cached features: all of them together against one (Linux).

    python -m meltpoint.benchmarks.shared_features --task sst2 --data-dir DIR [--workers 4]

Each worker opens the features as a trial does and reads all of them. What counts is the proportional set size of the
mapped files: a page that four processes share counts a quarter in each.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import torch

from meltpoint import tasks
from meltpoint.adapters import encoders
from meltpoint.adapters.features.layout import feature_key
from meltpoint.adapters.features.opening import open_features
from meltpoint.benchmarks.encoded import encoded
from meltpoint.benchmarks.job import add_data_arguments, data_of
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec

GATHERED_ROWS = 64


@dataclass(frozen=True)
class Found:
    """What the kernel says.

    Attributes:
        workers: how many had the features open at last.
        feature_bytes: of the files.
        one_bytes: proportional set size of them in the first worker, while it was alone.
        all_bytes: summed over all workers, while all had read everything.
        ratio: all over one.
    """

    workers: int
    feature_bytes: int
    one_bytes: int
    all_bytes: int
    ratio: float


def measure(encoder: str, data: DataSpec, workers: int) -> Found:
    """Start one worker, look, start the others, look.

    Raises:
        ValueError, OSError: a word that does not exist, or data that are not there.
    """
    encoders.resolve(encoder, load_training_data(data).task.kind)  # what is wrong is said here, and not by a worker
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as folder, ExitStack() as stack:
        seen, processes, written = list[int](), list[int](), 0
        for count in range(1, workers + 1):
            ours, theirs = context.Pipe()
            worker = context.Process(target=read_all, args=(encoder, data, Path(folder), theirs), daemon=True)
            worker.start()
            stack.callback(worker.join)
            stack.callback(ours.close)  # what a worker waits for
            theirs.close()  # else its end would not be seen
            written = ours.recv()
            assert worker.pid is not None, "it was started"
            processes.append(worker.pid)
            if count in (1, workers):
                seen.append(sum(mapped_bytes(process, Path(folder)) for process in processes))
    return Found(workers, written, seen[0], seen[-1], seen[-1] / seen[0])


def read_all(encoder: str, data: DataSpec, folder: Path, answer: Connection) -> None:
    """A worker: open the training split's features, or encode them; read all; say their size; wait."""
    loaded = encoders.load(encoders.resolve(encoder, tasks.get(data.task).kind))
    read = encoded(loaded, data)
    split, kind = read.train, read.task.kind
    key = feature_key(loaded, split, kind, "bf16", "all")
    layers, device = tuple(range(loaded.layers)), torch.device("cpu")
    features = open_features(folder, key, loaded, split, kind, layers, device, {})
    rows = range(len(split.rows))
    for start in rows[::GATHERED_ROWS]:
        features.gather(rows[start : start + GATHERED_ROWS])
    answer.send(features.bytes)
    answer.poll(None)  # until the other end is closed


def mapped_bytes(process: int, folder: Path) -> int:
    """Proportional set size of the files of a folder that a process has mapped."""
    found = psutil.Process(process).memory_maps()
    return sum(file.pss for file in found if Path(file.path).is_relative_to(folder.resolve()))


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(prog="shared_features", description=(__doc__ or "").splitlines()[0])
    add_data_arguments(parser, "sst2")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if sys.platform != "linux":
        parser.error("only Linux says how many processes share a page; run it there.")
    try:
        found = measure(options.encoder, data_of(options), options.workers)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if options.json:
        print(json.dumps(asdict(found), indent=1))
        return
    print(f"{options.encoder}, {options.task}: {found.feature_bytes / 1e6:.1f} MB of features")
    print(f"  one worker  {found.one_bytes / 1e6:.1f} MB of them in memory")
    print(f"  {found.workers} workers   {found.all_bytes / 1e6:.1f} MB together, {found.ratio:.3f} times one's")


if __name__ == "__main__":
    main()
