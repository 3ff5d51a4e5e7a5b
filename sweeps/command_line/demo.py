"""The sweep of `meltpoint demo`: offline, a few minutes on two cores; and two sentences for its model."""

from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.sweep_file import read_sweep
from meltpoint.sweeps.specification.sweep_spec import Block, SweepSpec
from meltpoint.sweeps.storage.files import storage_folder

TASK = "demo_similarity"
PAIR = ("the chef dropped a cup in the cellar .", "in the basement , the cook let fall a mug .")
"""The same four facts in other words; no split of the task holds it as a pair."""


def demo_spec(name: str) -> SweepSpec:
    """`minilm`, frozen and fine-tuned, on one small task; two settings per cell, two seeds.

    Frozen with a `bilstm`, the quicker to train of the heads that read words; the papers' own takes several times as
    long. Four epochs are 100 steps of fine-tuning, from which on no guard calls it undertrained.
    """
    frozen = Block(
        name="feature_extraction", encoders=("minilm",), modes=("feature_extraction",), tasks=(TASK,), head="bilstm",
        trials=2, seeds=2,
    )  # fmt: skip
    tuned = Block(
        name="fine_tuning", encoders=("minilm",), modes=("fine_tuning",), tasks=(TASK,), head="linear", trials=2,
        seeds=2, overrides=("epochs=4",),
    )  # fmt: skip
    return SweepSpec(name=name, blocks=(frozen, tuned))


def refuse_other(spec: SweepSpec, storage: str) -> None:
    """Refuse a name that another sweep has, such as the demo of an older version.

    Raises:
        ValueError: with both remedies.
    """
    ledger = Ledger(storage_folder(storage) / spec.name)
    if ledger.specification.exists() and read_sweep(ledger).spec != spec:
        raise ValueError(
            f"{ledger.folder} holds another sweep, perhaps the demo of an older version: name this one with "
            f"--name demo2, or remove that one with `meltpoint rm {spec.name}`."
        )
