"""`python -m meltpoint.benchmarks.gpu.sharing`: examples per second of trials that share one GPU, a process each.

What `--gpus-per-trial auto` decides by: how much more several processes train together than one, and the memory that
each takes. Each count of processes is measured in turn, all processes at the same time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing.managers import SyncManager
from pathlib import Path
from threading import Barrier

import torch

from meltpoint.benchmarks.gpu.ceiling import wait
from meltpoint.benchmarks.gpu.fine_tuning import trainer_of
from meltpoint.benchmarks.gpu.frozen import HEAD, FolderCache
from meltpoint.benchmarks.gpu.sizes import BASE, MINILM, TINY, Size, save_encoder

SIZES = {"base": replace(BASE, epochs=3), "minilm": MINILM, "tiny": TINY}
PATIENCE = 600.0  # seconds until a process that never came to the start ends the others


@dataclass(frozen=True)
class Shared:
    """Some processes that trained at the same time.

    Attributes:
        processes: how many.
        examples: per second, of all of them, while all trained.
        bytes: of GPU memory per process, with its CUDA context.
    """

    size: str
    mode: str
    processes: int
    examples: float
    bytes: int


def measure(name: str, device: str, mode: str, counts: Sequence[int]) -> Iterator[Shared]:
    """Each count of processes after another, on one random encoder."""
    size, context = SIZES[name], multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as folder, SyncManager(ctx=context) as manager:
        encoder = save_encoder(size, Path(folder))
        for count in counts:
            start = manager.Barrier(count)
            with ProcessPoolExecutor(count, context) as pool:
                runs = [pool.submit(train, size, encoder, device, mode, start) for _ in range(count)]
                results = [run.result() for run in runs]
            examples = count * size.examples * (size.epochs - 1)
            rate = examples / max(seconds for seconds, _ in results)
            yield Shared(name, mode, count, rate, max(used for _, used in results) // count)


def train(size: Size, encoder: str, device: str, mode: str, start: Barrier) -> tuple[float, int]:
    """One process's trial: seconds of all epochs but the first, and the GPU memory that all processes take."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as folder:
        cache = None if mode == "fine_tuning" else FolderCache(Path(folder), device)
        head = "linear" if mode == "fine_tuning" else HEAD
        trainer = trainer_of(size, encoder, device, mode, head, frozen_states=cache)
        epochs = trainer.epochs()
        next(epochs)
        start.wait(PATIENCE)
        begun = time.perf_counter()
        for _ in epochs:
            pass
        wait(torch.device(device))
        seconds = time.perf_counter() - begun
        start.wait(PATIENCE)  # all are at their most, and none has ended
        used = _used() if device == "cuda" else 0
        start.wait(PATIENCE)
        return seconds, used


def _used() -> int:
    """The GPU memory that is in use, by whatever process."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def line(one: Shared, base: Shared) -> str:
    """A result beside that of the fewest processes of its size and mode."""
    return (
        f"{one.size:8} {one.mode:20} {one.processes:3} at a time  {one.examples:9.4g} examples/s  "
        f"{one.examples / base.examples:5.2f} times {base.processes}'s  {one.bytes / 2**30:.2f} GiB each"
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="meltpoint.benchmarks.gpu.sharing", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--size", default="minilm", help=f"of {', '.join(SIZES)}; several with commas")
    parser.add_argument("--mode", default="fine_tuning,feature_extraction")
    parser.add_argument("--processes", default="1,2,4,8")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU here; --device cpu --size tiny shows that the benchmark runs.")
    counts = [int(count) for count in options.processes.split(",")]
    results = list[Shared]()
    for name in options.size.split(","):
        for mode in options.mode.split(","):
            base = None
            for one in measure(name, options.device, mode, counts):
                base = base or one
                results.append(one)
                print(line(one, base), file=sys.stderr if options.json else sys.stdout, flush=True)
    if options.json:
        print(json.dumps([asdict(one) for one in results], indent=1))


if __name__ == "__main__":
    main()
