"""Slanted triangular rates: a short linear rise, then a long linear fall (Howard & Ruder 2018, eq. 3).

It helps if a fine-tuned encoder should converge quickly to a good region and then refine its weights slowly. Scores in
the middle of runs of different lengths cannot be compared after the same epoch, so early stopping needs rungs at shares
of each run (`grace_fraction`).
"""

from meltpoint.adapters.hyperparameters import Parameter, Setting
from meltpoint.adapters.multiplier_table import Plan, Trick

CUT = Parameter("slanted_triangular.cut_fraction", 0.1, "share of the steps in which the rate rises", 0.001, 0.999)
RATIO = Parameter("slanted_triangular.ratio", 32.0, "the peak rate divided by the lowest rate", 1.0, 1e6)


def slanted_triangle(step: int, steps: int, cut_fraction: float, ratio: float) -> float:
    """The factor of the peak rate (Howard & Ruder 2018, eq. 3): from 1/ratio up to 1 and back.

    Args:
        step: t, counted from 0.
        steps: T.
        cut_fraction: cut_frac.
        ratio: ratio.
    """
    cut = max(1, int(steps * cut_fraction))
    share = step / cut if step < cut else 1 - (step - cut) / (cut * (1 / cut_fraction - 1))
    # max(): because ⌊T · cut_frac⌋ rounds down, the equation can fall below 0 just before T.
    return (1 + max(0.0, share) * (ratio - 1)) / ratio


def multiplier(group: int, step: int, plan: Plan, setting: Setting) -> float:
    """The factor at a step, the same for every layer group."""
    at, span = plan.schedule_at(step)
    return slanted_triangle(at, span, float(setting[CUT.name]), float(setting[RATIO.name]))


TRICK = Trick(
    name="slanted_triangular",
    multiplier=multiplier,
    is_schedule=True,
    hyperparameters=(CUT, RATIO),
    summary="the rate rises for a tenth of the steps, then falls (Howard & Ruder 2018, eq. 3)",
)
