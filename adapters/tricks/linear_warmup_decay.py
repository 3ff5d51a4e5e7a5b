"""Linear warm-up, then linear decay to zero: BERT's schedule (Devlin et al. 2018, appendix A.2).

It nearly always helps to fine-tune a transformer; the warm-up keeps Adam's first, badly scaled steps small.
"""

from meltpoint.adapters.hyperparameters import Parameter, Setting
from meltpoint.adapters.multiplier_table import Plan, Trick

WARMUP = Parameter("linear_warmup_decay.warmup_fraction", 0.1, "share of the steps in which the rate rises", 0.0, 0.999)


def warmup_decay(step: int, steps: int, warmup_fraction: float) -> float:
    """The factor of the peak rate: rises over the warm-up steps to 1, then falls towards 0 at `steps`.

    It is shifted by one step from the usual form, whose first factor is 0, since 0 means frozen here.
    """
    warmup = round(steps * warmup_fraction)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return (steps - step) / max(1, steps - warmup)


def multiplier(group: int, step: int, plan: Plan, setting: Setting) -> float:
    """The factor at a step, the same for every layer group."""
    at, span = plan.schedule_at(step)
    return warmup_decay(at, span, float(setting[WARMUP.name]))


TRICK = Trick(
    name="linear_warmup_decay",
    multiplier=multiplier,
    is_schedule=True,
    hyperparameters=(WARMUP,),
    summary="BERT's schedule: linear warm-up, then linear decay (Devlin et al. 2018, A.2)",
)
