"""The update rules of Adam with decoupled weight decay that the hyperparameter `optimiser` names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

BETA_1, BETA_2 = 0.9, 0.999
"""Decay rates of the two moments: torch.optim.AdamW's own, and BERT's (Devlin et al. 2018, A.2)."""

UNCORRECTED_STEP = math.inf
"""The step count at which torch's fused kernels correct nothing: 1 - beta**inf is 1, exactly."""


@dataclass(frozen=True)
class AdamRule:
    """The part of an update that differs between the rules.

    With moments m and v of the gradient, a rate and a decay, both rules are
    w ← w · (1 - rate · decay) - rate · m / (√v + epsilon).

    Attributes:
        corrects_bias: whether m and v are divided by 1 - beta**t at step t, since both begin at 0.
        epsilon: what is added to √v.
    """

    corrects_bias: bool
    epsilon: float


ADAMW = AdamRule(corrects_bias=True, epsilon=1e-8)
"""torch.optim.AdamW (Loshchilov & Hutter 2019, algorithm 2; epsilon of Kingma & Ba 2015)."""

BERT_ADAM = AdamRule(corrects_bias=False, epsilon=1e-6)
"""`AdamWeightDecayOptimizer` of BERT's released code (google-research/bert, optimization.py)."""

ADAM_RULES: Mapping[str, AdamRule] = {"adamw": ADAMW, "bert_adam": BERT_ADAM}
"""Value of `optimiser` → rule."""
