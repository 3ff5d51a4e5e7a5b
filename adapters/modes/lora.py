"""🧩 LoRA: a product of two thin matrices trains beside each linear layer, whose own weights stay frozen.

Hu et al. 2022, section 4, with all linear layers instead of the attention's queries and values alone: "LoRA Without
Regret" (Schulman et al. 2025) finds it as good as full fine-tuning on small data if all layers have one and its rate is
about ten times as large. Variants are level once the rate is tuned (arXiv 2602.04998), so none of them is a mode.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from meltpoint.adapters.hyperparameters import Parameter, Setting
from meltpoint.adapters.modes import fine_tuning

if TYPE_CHECKING:
    from meltpoint.adapters.encoder import Encoder

RANK = Parameter("lora.rank", 16, "the number of columns of each thin matrix", 1, 4096)
ALPHA = Parameter("lora.alpha", 32, "the product is multiplied by alpha / rank", 1, 4096)


def adapt(encoder: Encoder, setting: Setting) -> None:
    """Add the thin matrices, and freeze the encoder's own weights.

    Raises:
        ValueError: the encoder is not of transformers.
    """
    encoder.add_lora(int(setting[RANK.name]), int(setting[ALPHA.name]))


MODE = replace(
    fine_tuning.MODE,
    name="lora",
    symbol="🧩",
    verb="Use LoRA on {}",
    colour="#c2408c",
    rung=4,
    adapt=adapt,
    side_by_side=True,
    space="fine_tuning",
    families=("hf",),
    hyperparameters=(RANK, ALPHA),
    summary="low-rank matrices added to all linear layers train, and the head",
)
