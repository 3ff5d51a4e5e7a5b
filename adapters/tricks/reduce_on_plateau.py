"""Rates that fall on a plateau: multiplied by 0.5 after each epoch in which dev has not improved (AllenNLP's ESIM).

Helps where nothing says how long a task model should train. The name, the factor and the wait are those of AllenNLP's
configuration (esim_elmo.jsonnet, `reduce_on_plateau`), in which patience ends training. After which epochs the rate
falls depends on dev: the training loop notes it in the plan (`trial_state.plateaus`), of which this is a pure function.
"""

from meltpoint.adapters.hyperparameters import Parameter, Setting
from meltpoint.adapters.multiplier_table import Plan, Trick

FACTOR = Parameter("reduce_on_plateau.factor", 0.5, "what the rate is multiplied by on a plateau", 0.01, 0.99)
WAIT = Parameter("reduce_on_plateau.patience", 0, "epochs without a better dev score that leave the rate", 0, 1000)


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
