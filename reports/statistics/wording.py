"""Conclusions of comparisons in plain words."""

from __future__ import annotations

from meltpoint.reports.statistics.sample_sizes import Needs
from meltpoint.sweeps.ledger.records import CellKey
from meltpoint.tasks.core.wording import some

MODES = {
    "feature_extraction": "feature extraction",
    "fine_tuning": "fine-tuning",
    "stack_and_finetune": "stack-and-finetune",
}
TUNED, PUBLISHED = "tuning", "the published setting"
UNADJUSTED = "cannot be told: not adjusted for the other comparisons of its table"


def names(upper: CellKey, lower: CellKey) -> tuple[str, str]:
    """The two cells by what tells them apart: `fine-tuning`, `fine-tuning with crf`, `crf`, `bert-base`."""
    return _name(upper, lower), _name(lower, upper)


def _name(cell: CellKey, other: CellKey) -> str:
    encoder, mode, _, variant = (*cell, "")[:4]
    other_encoder, other_mode, _, other_variant = (*other, "")[:4]
    words = [MODES.get(mode, mode.replace("_", " "))] if mode != other_mode else []
    if variant != other_variant:
        words.append(f"with {variant or 'the default head'}" if words else variant or "the default head")
    if encoder != other_encoder:
        words.append(f"of {encoder}" if words else encoder)
    return " ".join(words) or MODES.get(mode, mode.replace("_", " "))


def better(first: str, second: str) -> str:
    """`fine-tuning is better than feature extraction`."""
    return f"{first} is better than {second}"


def untold(reason: str) -> str:
    """`cannot be told: one seed: …`."""
    return f"cannot be told: {reason}"


def not_yet(seeds: int, examples: int, needs: Needs) -> str:
    """`cannot be told with 5 seeds and 408 examples; about 12 seeds would`.

    Args:
        seeds, examples: the sizes of the comparison.
        needs: the sizes that would do.
    """
    text = f"cannot be told with {some(seeds, 'seed')} and {some(examples, 'example')}"
    if needs.seeds is not None:
        return f"{text}; about {some(_rounded(needs.seeds), 'seed')} would"
    if needs.examples is None:
        return text
    others = needs.with_seeds if needs.with_seeds is not None and needs.with_seeds > seeds else None
    beside = "" if others is None else f" with {some(_rounded(others), 'seed')}"
    return f"{text}; no number of seeds would, about {some(_rounded(needs.examples), 'example')}{beside} would"


def _rounded(number: int) -> int:
    """Two significant digits: these numbers follow from a variance that is itself a rough figure."""
    step: int = 10 ** max(0, len(str(number)) - 2)
    return -(-number // step) * step
