"""Benchmark of trials on cached hidden states: an epoch of one trial against encoding, and many trials against one.

    python -m meltpoint.benchmarks.frozen_epochs --task mrpc --data-dir DIR [--head bilstm --members 8 --random-base]

`--random-base` uses a BERT-base with random weights and the vocabulary of BERT-base-uncased, which minilm shares, since
speed does not depend on the weights. All measurements alternate in one process with the memory settings of a worker.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import transformers

from meltpoint import tasks
from meltpoint.adapters import encoders, settings
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.families.huggingface.encoder import HuggingFaceEncoder
from meltpoint.adapters.hardware import claim_device
from meltpoint.adapters.hyperparameters import Value
from meltpoint.adapters.model import Member, build
from meltpoint.adapters.training.epochs import EpochResult
from meltpoint.adapters.training.shared_first_phase import open_frozen_states
from meltpoint.adapters.training.trainer import Trainer
from meltpoint.adapters.training.trial_state import EncodedData
from meltpoint.benchmarks.alternation import RunSpread, spread
from meltpoint.benchmarks.encoded import encoded
from meltpoint.benchmarks.gpu.frozen import FolderCache
from meltpoint.benchmarks.gpu.sizes import BASE, config_of
from meltpoint.benchmarks.job import add_data_arguments, data_of
from meltpoint.sweeps.on_ray.cluster import MALLOC

EPOCHS = 2  # the first one fills the cache and is not counted
DEV_ROWS = 32  # dev is not measured
MODE = "feature_extraction"


@dataclass(frozen=True)
class FrozenEpochTimes:
    """The results of alternating rounds.

    Attributes:
        rows, pieces: rows and subword tokens of the training split.
        encoding_seconds: encoding of the training split by the frozen encoder, into an empty cache.
        epoch_seconds, bundle_seconds: a training epoch of one trial, and of `members` trials trained together.
        epoch_share: an epoch of one trial over encoding, per round.
        bundle_ratio: an epoch of the bundle over an epoch of one trial, per round.
    """

    encoder: str
    head: str
    members: int
    rows: int
    pieces: int
    encoding_seconds: RunSpread
    epoch_seconds: RunSpread
    bundle_seconds: RunSpread
    epoch_share: RunSpread
    bundle_ratio: RunSpread


def measure(
    name: str, encoder: Encoder, data: EncodedData, head: str, members: int, batch_size: int, repeats: int
) -> FrozenEpochTimes:  # fmt: skip
    """Alternately encode, train one trial, and train many."""
    times = []
    for number in range(repeats):
        with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as folder:
            cache = FolderCache(Path(folder), "cpu")
            encoding = encoding_seconds(encoder, data, head, batch_size, cache)
            one, many = (epoch_seconds(encoder, data, head, batch_size, count, cache) for count in (1, members))
        times.append((encoding, one, many))
        print(f"{number + 1}/{repeats}  encoding {encoding:.2f} s, epochs {one:.2f} and {many:.2f} s", file=sys.stderr)
    encodings, ones, many_times = (list(column) for column in zip(*times, strict=True))
    rows = data.train.rows
    return FrozenEpochTimes(
        encoder=name, head=head, members=members, rows=len(rows), pieces=sum(len(row.pieces) for row in rows),
        encoding_seconds=spread(encodings), epoch_seconds=spread(ones), bundle_seconds=spread(many_times),
        epoch_share=spread([one / encoding for encoding, one, _ in times]),
        bundle_ratio=spread([many / one for _, one, many in times]),
    )  # fmt: skip


def encoding_seconds(encoder: Encoder, data: EncodedData, head: str, batch_size: int, cache: FolderCache) -> float:
    """Wall seconds to cache the hidden states of the training split and a few dev rows, of all layers that are read."""
    trainer = trainer_of(encoder, data, head, batch_size, 1, cache)
    started = time.perf_counter()
    open_frozen_states(trainer)
    return time.perf_counter() - started


def epoch_seconds(
    encoder: Encoder, data: EncodedData, head: str, batch_size: int, members: int, cache: FolderCache
) -> float:  # fmt: skip
    """Training seconds of an epoch of a number of trials: the median without the first epoch."""
    trainer = trainer_of(encoder, data, head, batch_size, members, cache)
    seconds = [sum(r.train_seconds for _, r in results if isinstance(r, EpochResult)) for results in trainer.epochs()]
    return statistics.median(seconds[1:])


def trainer_of(
    encoder: Encoder, data: EncodedData, head: str, batch_size: int, members: int, cache: FolderCache
) -> Trainer:  # fmt: skip
    """A trainer of several trials of one cell, which differ in learning rate and dropout as in a search."""
    common: dict[str, Value] = {"epochs": EPOCHS, "batch_size": batch_size, "precision": "bf16"}
    stack = [
        Member(settings.complete({**common, "learning_rate": 1e-3 / (1 + number), "dropout": 0.1 + 0.05 * number},
                                  MODE, head), 0)
        for number in range(members)
    ]  # fmt: skip
    hardware = claim_device(torch.get_num_threads())
    model = build(encoder, data.task, MODE, head, stack, hardware.device)
    return Trainer(model, data, MODE, stack, hardware, cache)


def random_base(folder: Path, like: Encoder) -> str:
    """Write a BERT-base with random weights and another encoder's pieces; the word that it is loaded by.

    Raises:
        ValueError: the other one has no pieces that a BERT could read.
    """
    if not isinstance(like, HuggingFaceEncoder):
        raise ValueError(
            "--random-base takes the pieces of --encoder, which has none of a BERT's; leave --encoder out."
        )
    torch.manual_seed(0)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    like.save(folder)
    size = replace(BASE, vocabulary=like.model.config.vocab_size)
    transformers.BertModel(config_of(size), add_pooling_layer=False).save_pretrained(folder)
    return f"hf:{folder}"


def lines(result: FrozenEpochTimes) -> list[str]:
    """The figures as text."""
    return [
        f"{result.encoder}, {result.head}: {result.rows} rows of {result.pieces} pieces; median (lowest – highest)",
        f"  encoding them once     {result.encoding_seconds} s",
        f"  an epoch of one trial  {result.epoch_seconds} s, {result.epoch_share} of encoding",
        f"  {result.members} side by side         {result.bundle_seconds} s, {result.bundle_ratio} times one",
    ]


def run(options: argparse.Namespace) -> FrozenEpochTimes:
    """Run the benchmark with command-line options.

    Raises:
        ValueError, OSError: an unknown name, or missing data.
    """
    claim_device(options.threads)
    kind = tasks.get(options.task).kind
    with ExitStack() as stack:
        name, encoder = options.encoder, encoders.load(encoders.resolve(options.encoder, kind))
        if options.random_base:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-")))
            name, encoder = "random BERT-base", encoders.load(encoders.resolve(random_base(folder, encoder), kind))
        data = encoded(encoder, data_of(options), dev_rows=DEV_ROWS)
        return measure(name, encoder, data, options.head, options.members, options.batch_size, options.repeats)


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(prog="frozen_epochs", description=(__doc__ or "").splitlines()[0])
    add_data_arguments(parser, "mrpc")
    parser.add_argument("--random-base", action="store_true", help="a BERT-base with random weights instead")
    parser.add_argument("--head", default="bilstm")
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if "GLIBC_TUNABLES" not in os.environ:  # as a sweep's workers have it; glibc reads it at process start
        os.environ["GLIBC_TUNABLES"] = MALLOC
        os.execv(sys.executable, [sys.executable, "-m", "meltpoint.benchmarks.frozen_epochs", *sys.argv[1:]])
    try:
        result = run(options)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(json.dumps(asdict(result), indent=1) if options.json else "\n".join(lines(result)))


if __name__ == "__main__":
    main()
