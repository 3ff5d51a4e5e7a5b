"""Memory of workers for one task's cached hidden states: all workers together against one (Linux).

    python -m meltpoint.benchmarks.shared_features --task sst2 --data-dir DIR [--workers 4]

Each worker opens the cached states as a trial does and reads all of them. The measure is the proportional set size of
the mapped files: a page that four processes share counts a quarter in each.
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
class FeatureMemory:
    """Memory of the cached states, as reported by the kernel.

    Attributes:
        workers: the number of workers.
        feature_bytes: the size of the files.
        one_bytes: their proportional set size in the first worker, before the others started.
        all_bytes: the sum over all workers, after all had read everything.
        ratio: `all_bytes` over `one_bytes`.
    """

    workers: int
    feature_bytes: int
    one_bytes: int
    all_bytes: int
    ratio: float


def measure(encoder: str, data: DataSpec, workers: int) -> FeatureMemory:
    """Start one worker and measure; start the others and measure again.

    Raises:
        ValueError, OSError: an unknown name, or missing data.
    """
    encoders.resolve(encoder, load_training_data(data).task.kind)  # raises errors here rather than in a worker
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as folder, ExitStack() as stack:
        seen, processes, written = list[int](), list[int](), 0
        for count in range(1, workers + 1):
            ours, theirs = context.Pipe()
            worker = context.Process(target=read_all, args=(encoder, data, Path(folder), theirs), daemon=True)
            worker.start()
            stack.callback(worker.join)
            stack.callback(ours.close)  # the worker waits for this
            theirs.close()  # otherwise the end of the worker would go unnoticed
            written = ours.recv()
            assert worker.pid is not None, "it was started"
            processes.append(worker.pid)
            if count in (1, workers):
                seen.append(sum(mapped_bytes(process, Path(folder)) for process in processes))
    return FeatureMemory(workers, written, seen[0], seen[-1], seen[-1] / seen[0])


def read_all(encoder: str, data: DataSpec, folder: Path, answer: Connection) -> None:
    """A worker: open or compute the training split's hidden states, read all, send their size, wait."""
    loaded = encoders.load(encoders.resolve(encoder, tasks.get(data.task).kind))
    tokenised = encoded(loaded, data)
    split, kind = tokenised.train, tokenised.task.kind
    key = feature_key(loaded, split, kind, "bf16", "all")
    layers, device = tuple(range(loaded.layers)), torch.device("cpu")
    features = open_features(folder, key, loaded, split, kind, layers, device, {})
    rows = range(len(split.rows))
    for start in rows[::GATHERED_ROWS]:
        features.gather(rows[start : start + GATHERED_ROWS])
    answer.send(features.bytes)
    answer.poll(None)  # wait until the other end is closed


def mapped_bytes(process: int, folder: Path) -> int:
    """Proportional set size of the files of a folder that a process has mapped, in bytes."""
    mapped = psutil.Process(process).memory_maps()
    return sum(file.pss for file in mapped if Path(file.path).is_relative_to(folder.resolve()))


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(prog="shared_features", description=(__doc__ or "").splitlines()[0])
    add_data_arguments(parser, "sst2")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if sys.platform != "linux":
        parser.error("only Linux reports how many processes share a page; run it there.")
    try:
        result = measure(options.encoder, data_of(options), options.workers)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if options.json:
        print(json.dumps(asdict(result), indent=1))
        return
    print(f"{options.encoder}, {options.task}: {result.feature_bytes / 1e6:.1f} MB of features")
    print(f"  one worker  {result.one_bytes / 1e6:.1f} MB of them in memory")
    print(f"  {result.workers} workers   {result.all_bytes / 1e6:.1f} MB together, {result.ratio:.3f} times one's")


if __name__ == "__main__":
    main()
