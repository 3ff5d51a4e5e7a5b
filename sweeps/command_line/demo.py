"""The sweep of `meltpoint demo`: offline, a few minutes on two cores."""

from meltpoint.sweeps.specification.sweep_spec import Block, SweepSpec

HEADS = {"feature_extraction": "bilstm", "fine_tuning": "linear", "stack_and_finetune": "bilstm"}
"""Mode → a head that serves every kind of task and is quick to train; the papers' own take several times as long."""

TASKS = ("demo_entities", "demo_sentiment", "demo_entailment", "demo_similarity")


def demo_spec(name: str) -> SweepSpec:
    """`minilm` × the three modes × one small task of each kind; three settings per cell, two seeds.

    Finals of the published setting are at most 12 runs beside 48 (36 search trials and 12 finals that none answers).
    """
    blocks = (
        Block(name=mode, encoders=("minilm",), modes=(mode,), tasks=TASKS, head=head, trials=3, seeds=2)
        for mode, head in HEADS.items()
    )
    return SweepSpec(name=name, blocks=tuple(blocks), default_finals=True)
