"""Benchmark of the optimisations of a fine-tuning step on the CPU: cumulative variants on the same batches.

    python benchmarks/fine_tuning_step.py --text FILE [--steps 20] [--rounds 5] [--batch 32] [--threads 1]

FILE has one sentence per line. Each variant adds one optimisation, from plain torch to all of Meltpoint's. Times are
CPU seconds of this process, which depend less on other load of the machine, and wall seconds.
"""

from __future__ import annotations

import argparse
import copy
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from meltpoint.adapters import encoders
from meltpoint.adapters.data.batch import Batch, EncodedSplit
from meltpoint.adapters.data.batching import inputs, training_batches
from meltpoint.adapters.data.tokenising import encode_split
from meltpoint.adapters.encoder import Encoder, LayerGroup
from meltpoint.adapters.families.huggingface import attention as transformers_attention
from meltpoint.adapters.families.huggingface.encoder import HuggingFaceEncoder
from meltpoint.adapters.families.huggingface.gelu import Gelu
from meltpoint.adapters.families.huggingface.residual_norm import FusedOutput
from meltpoint.adapters.families.huggingface.specialise import restore
from meltpoint.adapters.hardware import claim_device, resolve_precision
from meltpoint.adapters.layers.compact_embedding import pieces_of
from meltpoint.adapters.layers.quick_dropout import QuickDropout
from meltpoint.adapters.training.encoder_optimiser import EncoderAdamW, encoder_adamw
from meltpoint.tasks.core.task import Example, Kind

KIND: Kind = "sentence_classification"
PHASES = ("forward", "backward", "clip", "optimiser")
WARM_UP_STEPS = 3


@dataclass
class StepVariant:
    """A set of optimisations, and the times of its steps.

    Attributes:
        quick_dropout, short_attention, compact_table, kernels, padding_free, cls_only, masters: which of Meltpoint's
            optimisations it has; `kernels` are those for residuals, norms and GELU, `padding_free` has attention's.
        cpu, wall: seconds per step.
        phases: CPU seconds per step, in the order of PHASES.
    """

    name: str
    quick_dropout: bool = False
    short_attention: bool = False
    compact_table: bool = False
    kernels: bool = False
    padding_free: bool = False
    cls_only: bool = False
    masters: bool = False
    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    phases: list[list[float]] = field(default_factory=list)


def variants() -> list[StepVariant]:
    """The variants, from plain torch to all optimisations."""
    return [
        StepVariant("torch's own parts"),
        StepVariant("+ quick dropout", True),
        StepVariant("+ short attention", True, True),
        StepVariant("+ compact table", True, True, True),
        StepVariant("+ kernels", True, True, True, True),
        StepVariant("+ no padding", True, True, True, True, True),
        StepVariant("+ [CLS] alone on top", True, True, True, True, True, True),
        StepVariant("+ bf16 and masters", True, True, True, True, True, True, True),
    ]


class Classifier(nn.Module):
    """A linear classifier on the encoder's first position."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(encoder.dim, 2)

    def forward(self, batch: Batch) -> Tensor:
        """(batch, 2)."""
        scores: Tensor = self.head(self.encoder.top(batch)[:, 0])
        return scores


def stepper(
    variant: StepVariant, pristine: HuggingFaceEncoder, split: EncodedSplit, dropout: float
) -> Callable[[Batch], None]:
    """Build the model of a variant and return a function that trains it for one step and records the times."""
    torch.manual_seed(0)
    encoder = copy.deepcopy(pristine, {id(pristine.tokenizer): pristine.tokenizer})
    encoder.set_dropout(dropout)
    encoder.padding_free = variant.padding_free
    if not variant.quick_dropout:
        plain_dropouts(encoder)
    if not variant.kernels:
        plain_operations(encoder)
    encoder.model.set_attn_implementation(transformers_attention.NAME if variant.short_attention else "sdpa")
    table = encoder.compact_pieces(pieces_of(split, encoder.tokenizer.pad_piece)) if variant.compact_table else None
    model = Classifier(encoder).train()
    bf16 = resolve_precision("auto", "cpu") == "bf16"
    masters = encoder.train_in_bf16() if variant.masters and bf16 else {}
    encoder_adam = encoder_adamw(
        [*encoder.layer_groups(), LayerGroup("head", tuple(model.head.parameters()))], 0.01, masters
    )
    adam = encoder_adam if variant.masters else torch.optim.AdamW(encoder_adam.param_groups, fused=True)
    for group in adam.param_groups:
        group["lr"] = 1e-4
    if table is not None:
        table.follow(adam)

    def step(batch: Batch) -> None:
        wall, marks = time.perf_counter(), [time.process_time()]
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            scores = model(replace(batch, cls_only=variant.cls_only))
        assert batch.labels is not None
        loss = nn.functional.cross_entropy(scores.float(), batch.labels)
        marks.append(time.process_time())
        adam.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        marks.append(time.process_time())
        if isinstance(adam, EncoderAdamW):
            adam.scale((1.0 / (adam.norm() + 1e-6)).clamp(max=1.0))
        else:
            nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 1.0)
        marks.append(time.process_time())
        adam.step()
        marks.append(time.process_time())
        variant.phases.append([after - before for before, after in pairwise(marks)])
        variant.cpu.append(marks[-1] - marks[0])
        variant.wall.append(time.perf_counter() - wall)

    return step


def plain_dropouts(model: nn.Module) -> None:
    """Restore torch's dropout modules."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is QuickDropout:
                setattr(parent, name, nn.Dropout(child.p))


def plain_operations(model: nn.Module) -> None:
    """Restore torch's GELU and the original residual connections and layer norms."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Gelu):
                setattr(parent, name, nn.GELU())
        if isinstance(parent, FusedOutput):
            restore(parent)


def read(path: Path, encoder: Encoder, sentences: int) -> EncodedSplit:
    """The first sentences of a file, with arbitrary labels."""
    lines = path.read_text(encoding="utf-8").split("\n")[:sentences]
    examples = [Example(str(i), texts=(line.strip(),), label=i % 2) for i, line in enumerate(lines) if line.strip()]
    return encode_split(KIND, examples, encoder.tokenizer, 128)


def report(variants: list[StepVariant], batch_size: int, rounds: int) -> None:
    """Print one line per variant: examples per second, its phases, and its speed-up over the first with the spread."""
    print(f"{'variant':20s} {'ex/s CPU':>8s} {'ex/s wall':>9s}  " + " ".join(f"{p:>9s}" for p in PHASES) + "   ratio")
    for variant in variants:
        cpu, wall = (sum(times) / len(times) for times in (variant.cpu, variant.wall))
        phases = [1000 * statistics.mean(column) for column in zip(*variant.phases, strict=True)]
        size = len(variant.cpu) // rounds
        parts = range(0, size * rounds, size)
        ratios = sorted(sum(variants[0].cpu[i : i + size]) / sum(variant.cpu[i : i + size]) for i in parts)
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})"
        shown = " ".join(f"{p:6.1f} ms" for p in phases)
        print(f"{variant.name:20s} {batch_size / cpu:8.0f} {batch_size / wall:9.0f}  {shown}   {spread}")


def main() -> None:
    """Parse the command line, run the variants alternately, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--text", type=Path, required=True)
    for name, default in (("sentences", 1000), ("steps", 20), ("rounds", 5), ("batch", 32), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dropout", type=float, default=0.1)
    options = parser.parse_args()
    claim_device(options.threads)
    encoder = encoders.load(encoders.resolve("minilm", KIND))
    assert isinstance(encoder, HuggingFaceEncoder)
    split = read(options.text, encoder, options.sentences)
    every = variants()
    steppers = [stepper(variant, encoder, split, options.dropout) for variant in every]
    pad = encoder.tokenizer.pad_piece
    batches = [
        b
        for e in range(1, 99)
        for b in training_batches(inputs(split), KIND, pad, options.batch, [0], e, by_length=False)
    ]
    batches = [batch for batch in batches if len(batch) == options.batch]
    for batch in batches[: WARM_UP_STEPS + options.steps * options.rounds]:
        for step in steppers:
            step(batch)
    for variant in every:
        for times in (variant.cpu, variant.wall, variant.phases):
            del times[:WARM_UP_STEPS]
    mean = statistics.mean(batch.pieces.shape[1] for batch in batches)
    pieces = len(pieces_of(split, pad))
    print(f"{len(split.rows)} sentences, {mean:.1f} pieces a row, {pieces} different pieces, dropout {options.dropout}")
    report(every, options.batch, options.rounds)
    print(f"peak memory of all variants: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
