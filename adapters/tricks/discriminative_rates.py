"""Discriminative rates: each layer group learns more slowly than the one above it (Howard & Ruder 2018, §3.2).

It helps if the lower layers' pretrained weights should change little. Peters, Ruder & Smith 2019, A.2, multiply by 0.4
for each layer downwards; Howard & Ruder divide by 2.6, which is nearly the same.
"""

from meltpoint.adapters.hyperparameters import Parameter, Setting
from meltpoint.adapters.multiplier_table import Plan, Trick

FACTOR = Parameter("discriminative_rates.factor", 0.4, "rate of a group as a share of the group above", 0.001, 1.0)


def multiplier(group: int, step: int, plan: Plan, setting: Setting) -> float:
    """factorᵏ for the k-th layer group below the head."""
    return float(float(setting[FACTOR.name]) ** (plan.groups - 1 - group))


TRICK = Trick(
    name="discriminative_rates",
    multiplier=multiplier,
    is_schedule=False,
    hyperparameters=(FACTOR,),
    summary="each layer group learns at 0.4 of the rate of the one above (Howard & Ruder 2018, §3.2)",
)
