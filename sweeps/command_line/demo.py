"""The sweep of `meltpoint demo`: offline, a few minutes on two cores."""

from meltpoint.sweeps.specification.sweep_spec import SweepSpec

MODES = ("feature_extraction", "fine_tuning", "stack_and_finetune")
TASKS = ("demo_entities", "demo_sentiment", "demo_entailment", "demo_similarity")


def demo_spec(name: str) -> SweepSpec:
    """`minilm` × the three modes × one small task of each kind; three settings per cell, two seeds."""
    return SweepSpec(name=name, encoders=("minilm",), modes=MODES, tasks=TASKS, trials=3, seeds=2)
