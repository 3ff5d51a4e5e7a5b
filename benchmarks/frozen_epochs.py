"""Trials on cached features: an epoch of one against encoding its texts once, and many side by side against one.

    python -m meltpoint.benchmarks.frozen_epochs --task mrpc --data-dir DIR [--head bilstm --members 8 --random-base]

`--random-base` takes a BERT-base with random weights and BERT-base-uncased's own pieces, which minilm shares: speed
does not depend on what a weight is. Everything runs in turn in one process, which gets its memory as a worker does.
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
from meltpoint.adapters.training.epoch_result import EpochResult
from meltpoint.adapters.training.shared_first_phase import open_frozen_states
from meltpoint.adapters.training.trainer import Trainer
from meltpoint.adapters.training.trial_state import EncodedData
from meltpoint.benchmarks.alternation import Spread, spread
from meltpoint.benchmarks.encoded import encoded
from meltpoint.benchmarks.gpu.frozen import Cached
from meltpoint.benchmarks.gpu.sizes import BASE, config_of
from meltpoint.benchmarks.job import add_data_arguments, data_of
from meltpoint.sweeps.on_ray.fork_server import environment

EPOCHS = 2  # the first opens the cache and is not counted
DEV_ROWS = 32  # dev is not what is measured
MODE = "feature_extraction"


@dataclass(frozen=True)
class Found:
    """What alternating rounds gave.

    Attributes:
        rows, pieces: of the training split: what is encoded, and what an epoch reads.
        encoding_seconds: the training split through the frozen encoder once, into an empty cache.
        epoch_seconds, stack_seconds: a training epoch of one trial, and of `members` side by side.
        epoch_share: an epoch of one over encoding, round by round.
        stack_ratio: the stack's epoch over one's, round by round.
    """

    encoder: str
    head: str
    members: int
    rows: int
    pieces: int
    encoding_seconds: Spread
    epoch_seconds: Spread
    stack_seconds: Spread
    epoch_share: Spread
    stack_ratio: Spread


def measure(
    name: str, encoder: Encoder, data: EncodedData, head: str, members: int, batch_size: int, repeats: int
) -> Found:  # fmt: skip
    """Encode, train one, train many: in turn."""
    times = []
    for number in range(repeats):
        with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as folder:
            cache = Cached(Path(folder), "cpu")
            encoding = encoding_seconds(encoder, data, head, batch_size, cache)
            one, many = (epoch_seconds(encoder, data, head, batch_size, count, cache) for count in (1, members))
        times.append((encoding, one, many))
        print(f"{number + 1}/{repeats}  encoding {encoding:.2f} s, epochs {one:.2f} and {many:.2f} s", file=sys.stderr)
    encodings, ones, many_times = (list(column) for column in zip(*times, strict=True))
    rows = data.train.rows
    return Found(
        encoder=name, head=head, members=members, rows=len(rows), pieces=sum(len(row.pieces) for row in rows),
        encoding_seconds=spread(encodings), epoch_seconds=spread(ones), stack_seconds=spread(many_times),
        epoch_share=spread([one / encoding for encoding, one, _ in times]),
        stack_ratio=spread([many / one for _, one, many in times]),
    )  # fmt: skip


def encoding_seconds(encoder: Encoder, data: EncodedData, head: str, batch_size: int, cache: Cached) -> float:
    """Wall seconds to write the training split's states, all that the head's mix reads, and a few rows' of dev."""
    trainer = trainer_of(encoder, data, head, batch_size, 1, cache)
    started = time.perf_counter()
    open_frozen_states(trainer)
    return time.perf_counter() - started


def epoch_seconds(
    encoder: Encoder, data: EncodedData, head: str, batch_size: int, members: int, cache: Cached
) -> float:  # fmt: skip
    """Training seconds of an epoch of so many trials, the median after the first."""
    trainer = trainer_of(encoder, data, head, batch_size, members, cache)
    seconds = [sum(r.train_seconds for _, r in found if isinstance(r, EpochResult)) for found in trainer.epochs()]
    return statistics.median(seconds[1:])


def trainer_of(
    encoder: Encoder, data: EncodedData, head: str, batch_size: int, members: int, cache: Cached
) -> Trainer:  # fmt: skip
    """The one loop over a stack: trials of one cell that differ in rate and dropout, as a search draws them."""
    said: dict[str, Value] = {"epochs": EPOCHS, "batch_size": batch_size, "precision": "bf16"}
    stack = [
        Member(settings.complete({**said, "learning_rate": 1e-3 / (1 + number), "dropout": 0.1 + 0.05 * number},
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


def lines(found: Found) -> list[str]:
    """The figures as text."""
    return [
        f"{found.encoder}, {found.head}: {found.rows} rows of {found.pieces} pieces; median (lowest – highest)",
        f"  encoding them once     {found.encoding_seconds} s",
        f"  an epoch of one trial  {found.epoch_seconds} s, {found.epoch_share} of encoding",
        f"  {found.members} side by side         {found.stack_seconds} s, {found.stack_ratio} times one",
    ]


def run(options: argparse.Namespace) -> Found:
    """What the options ask for.

    Raises:
        ValueError, OSError: a word that does not exist, or data that are not there.
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
    """Read the command line, measure, print."""
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
    if any(os.environ.get(name) != word for name, word in environment().items()):  # glibc reads it at a start
        os.execve(
            sys.executable, [sys.executable, "-m", "meltpoint.benchmarks.frozen_epochs", *sys.argv[1:]], environment()
        )
    try:
        found = run(options)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(json.dumps(asdict(found), indent=1) if options.json else "\n".join(lines(found)))


if __name__ == "__main__":
    main()
