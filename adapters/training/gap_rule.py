"""The gap rule of stack-and-finetune: the first phase ends at the last epoch before train is ahead of dev by too much.

arXiv 1907.05338: the head is trained not "until it reaches the highest accuracy on the training or validation data
sets, but rather only up to a point where the prediction accuracy of the training and validation data sets do not differ
much" (Methodology), "only for a few epochs, until it reaches a reasonable accuracy, while closely monitoring the
discrepancy" (Discussions and Conclusions). The epoch that is beyond the limit is taken back. The first one is not,
since a head that never trained has no reasonable accuracy: if it is beyond the limit, the second phase begins with it.
"""

from __future__ import annotations

from torch import Tensor

from meltpoint.adapters.hyperparameters import Setting
from meltpoint.adapters.model import AdaptedModel
from meltpoint.adapters.multiplier_table import Plan
from meltpoint.adapters.snapshot import Snapshot
from meltpoint.adapters.training.optimisers import StackedAdamW
from meltpoint.adapters.training.trial_state import TrialState
from meltpoint.tasks.core.metrics import gain


class GapRule:
    """The rule of one trial, which trains alone.

    Attributes:
        largest_gap: the largest difference that is allowed between the metric on train and on dev; 0 is no rule.
        within: the head's weights, and its optimiser's state, after the last epoch of the first phase that met it; None
            before there is one.
    """

    def __init__(self, setting: Setting) -> None:
        self.largest_gap = float(setting.get("stack_and_finetune.largest_gap", 0.0))
        self.within: tuple[Snapshot, dict[str, Tensor]] | None = None

    def watches(self, plan: Plan, step: int) -> bool:
        """True where the epoch that ended with so many steps needs the metrics on train."""
        return self.largest_gap > 0.0 and step <= plan.first_phase_steps

    def apply(self, trial: TrialState, model: AdaptedModel, optimiser: StackedAdamW, metric: str) -> None:
        """Look at the last epoch; beyond the limit, end the first phase, and restore the last state within it."""
        result = trial.results[-1]
        if gain(metric, result.train[metric] - result.dev[metric]) <= self.largest_gap:
            state = {name: tensor.clone() for name, tensor in optimiser.state().items()}
            self.within = model.own_weights(0), state
            return
        trial.end_first_phase(result.epoch)
        if self.within is not None:
            weights, state = self.within
            model.load_trained([weights])
            optimiser.load(state)
