"""`python -m meltpoint.benchmarks.gpu`: the whole suite, as a table or as JSON."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

import torch

from meltpoint.benchmarks.alternation import RunSpread, spread
from meltpoint.benchmarks.gpu import ceiling, counting
from meltpoint.benchmarks.gpu.fine_tuning import our_rate, trainer_rate
from meltpoint.benchmarks.gpu.frozen import epoch_seconds
from meltpoint.benchmarks.gpu.sizes import BASE, TINY, Size, save_encoder


@dataclass(frozen=True)
class Suite:
    """The results of the suite.

    Attributes:
        matmul_flops, copy_bytes: the limits of the machine, per second.
        example_flops, step_bytes: FLOPs per example and bytes per step, counted analytically.
        floor_examples: examples per second that the limits allow.
        ours, trainer: examples per second of fine-tuning; None where the Trainer's package accelerate is missing.
        ratio: ours over the Trainer's, run by run.
        ceiling_share: the share of the matmul limit that fine-tuning reaches.
        frozen_epoch_seconds: an epoch of one trial with the `bilstm` head on cached hidden states.
        bundle_ratio: an epoch of `size.together` such trials trained together over an epoch of one.
    """

    device: str
    matmul_flops: float
    copy_bytes: float
    example_flops: int
    step_bytes: int
    floor_examples: float
    ours: RunSpread
    trainer: RunSpread | None
    ratio: RunSpread | None
    ceiling_share: RunSpread
    frozen_epoch_seconds: RunSpread
    bundle_ratio: RunSpread


def measure(size: Size, device: str, repeats: int) -> Suite:
    """Run all measurements alternately, each in a separate process, since torch's global settings differ."""
    flops = apart(ceiling.matmul_flops, device, size.matmuls)
    copied = apart(ceiling.copy_bytes, device)
    ours, theirs, frozen, stacked = list[float](), list[float](), list[float](), list[float]()
    with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as folder:
        encoder = save_encoder(size, Path(folder))
        for number in range(repeats):
            print(f"{number + 1}/{repeats}", file=sys.stderr)
            ours.append(apart(our_rate, size, encoder, device))
            if find_spec("accelerate") is not None:
                theirs.append(apart(trainer_rate, size, encoder, device))
            frozen.append(apart(epoch_seconds, size, encoder, device, 1))
            stacked.append(apart(epoch_seconds, size, encoder, device, size.together))
    work = counting.training_flops(size)
    name = torch.cuda.get_device_name() if device == "cuda" else torch.backends.cpu.get_cpu_capability()
    return Suite(
        device=name, matmul_flops=flops, copy_bytes=copied, example_flops=work,
        step_bytes=counting.step_bytes(size), floor_examples=size.batch / counting.floor_seconds(size, flops, copied),
        ours=spread(ours), trainer=spread(theirs) if theirs else None,
        ratio=spread([a / b for a, b in zip(ours, theirs, strict=True)]) if theirs else None,
        ceiling_share=spread([rate * work / flops for rate in ours]), frozen_epoch_seconds=spread(frozen),
        bundle_ratio=spread([many / one for many, one in zip(stacked, frozen, strict=True)]),
    )  # fmt: skip


def apart(work: Callable[..., float], *arguments: object) -> float:
    """The result of a function in a new process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as one:
        return one.submit(work, *arguments).result()


def lines(suite: Suite) -> list[str]:
    """The suite as text."""
    return [
        f"{suite.device}: bf16 products {suite.matmul_flops / 1e12:.3g} TFLOP/s, "
        f"copies {suite.copy_bytes / 1e9:.3g} GB/s",
        f"an example {suite.example_flops / 1e9:.3g} GFLOP, a step {suite.step_bytes / 1e9:.3g} GB: "
        f"at most {suite.floor_examples:.4g} examples/s",
        f"fine-tuning  meltpoint {suite.ours} examples/s, {suite.ceiling_share} of the matmul ceiling",
        f"             Trainer   {suite.trainer or 'not measured: the package accelerate is missing'}",
        f"             ratio     {suite.ratio or 'not measured'}",
        f"frozen       an epoch of one bilstm trial {suite.frozen_epoch_seconds} s",
        f"             of a bundle of them {suite.bundle_ratio} times that",
    ]


def main() -> None:
    """Run the suite."""
    parser = argparse.ArgumentParser(prog="meltpoint.benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a toy size, to check that the suite runs")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU here; --device cpu --tiny shows that the suite runs.")
    suite = measure(TINY if options.tiny else BASE, options.device, options.repeats)
    print(json.dumps(asdict(suite), indent=1) if options.json else "\n".join(lines(suite)))


if __name__ == "__main__":
    main()
