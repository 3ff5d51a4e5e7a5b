"""Gradual unfreezing: the head first, then one more layer group at a time from the top (Howard & Ruder 2018, §3.3).

It helps a recurrent encoder on small data (Peters, Ruder & Smith 2019, A.2: ELMo on SST-2 and NER). A trial shorter
than groups × `epochs_per_group` never unfreezes the lowest group. Early scores do not predict final scores, so it
cannot be combined with early stopping.
"""

from meltpoint.adapters.hyperparameters import Parameter, Setting
from meltpoint.adapters.multiplier_table import Plan, Trick

PACE = Parameter("gradual_unfreezing.epochs_per_group", 1.0, "epochs before the next layer group thaws", 0.01, 100.0)


def multiplier(group: int, step: int, plan: Plan, setting: Setting) -> float:
    """1 for the head and for the groups below it that have thawed since the phase's first step, otherwise 0."""
    _, first = plan.phase_at(step)
    epochs = (step - first) / plan.steps_per_epoch
    thawed = int(epochs / float(setting[PACE.name]) + 1e-9)  # 3 × 0.1 epochs must thaw the third group
    return 1.0 if plan.groups - 1 - group <= thawed else 0.0


TRICK = Trick(
    name="gradual_unfreezing",
    multiplier=multiplier,
    is_schedule=False,
    hyperparameters=(PACE,),
    summary="one more layer group thaws each epoch, from the top (Howard & Ruder 2018, §3.3)",
)
