"""Rates that fall on a plateau: multiplied by 0.5 after each epoch in which dev has not improved (AllenNLP's ESIM).

It helps if the right training length is unknown. The name, the factor and the wait are from AllenNLP's configuration
(esim_elmo.jsonnet, `reduce_on_plateau`), in which patience ends training. The rate falls after epochs that depend on
dev: the training loop notes them in the plan (`trial_state.plateaus`), and the factor is a pure function of the plan.
"""

from meltpoint.adapters.hyperparameters import Parameter, Setting
from meltpoint.adapters.multiplier_table import Plan, Trick

FACTOR = Parameter("reduce_on_plateau.factor", 0.5, "factor on the rate at each plateau", 0.01, 0.99)
WAIT = Parameter("reduce_on_plateau.patience", 0, "epochs without a better dev score before the rate falls", 0, 1000)


def multiplier(group: int, step: int, plan: Plan, setting: Setting) -> float:
    """factorᵏ after the k-th plateau of the schedule's span, the same for every layer group."""
    at, _ = plan.schedule_at(step)
    ends = [epoch * plan.steps_per_epoch for epoch in plan.plateaus]
    return float(float(setting[FACTOR.name]) ** sum(step - at < end <= step for end in ends))


TRICK = Trick(
    name="reduce_on_plateau",
    multiplier=multiplier,
    is_schedule=True,
    hyperparameters=(FACTOR, WAIT),
    summary="the rate is halved when dev stops improving (AllenNLP's ESIM: Gardner et al. 2018)",
)
