"""🔍🔥 Linear probe, then fine-tuning: the head is fitted on the frozen encoder, then everything trains.

Kumar et al. 2022, section 4 (LP-FT): fine-tuning from a random head distorts the encoder's features before the head has
learnt, which costs accuracy on other distributions; a probed head avoids that. The second phase may train LoRA's
matrices instead (Tomihari & Sato 2024, arXiv 2405.16747, section 5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meltpoint.adapters.hyperparameters import Parameter, Setting
from meltpoint.adapters.modes import fine_tuning, lora, probe
from meltpoint.adapters.multiplier_table import Mode, Phase, top_layer

if TYPE_CHECKING:
    from meltpoint.adapters.encoder import Encoder

THEN = Parameter(
    "lp_ft.then", "fine_tuning", "the second phase: everything trains, or LoRA's matrices with rank 16 (lora)",
    choices=("fine_tuning", "lora"), shapes=True,
)  # fmt: skip
C = Parameter("lp_ft.c", 1.0, "the probe's inverse strength of the L2 penalty, as probe.c", 1e-8, 1e8)


def adapt(encoder: Encoder, setting: Setting) -> None:
    """Add LoRA's matrices if the second phase trains them."""
    if setting[THEN.name] == "lora":
        encoder.add_lora(int(lora.RANK.default), int(lora.ALPHA.default))


def phases(setting: Setting) -> tuple[Phase, ...]:
    """Two phases: the fit of the head, then fine-tuning."""
    return (probe.fitted(float(setting[C.name])), *fine_tuning.phases(setting))


MODE = Mode(
    name="lp_ft",
    symbol="🔍🔥",
    layers=top_layer,
    trains_encoder=True,
    default_heads=probe.HEADS,
    phases=phases,
    verb="Probe, then fine-tune {}",
    colour="#8c564b",
    rung=5,
    adapt=adapt,
    space="fine_tuning",
    fits_head=True,
    unused=("sentence_vectors.hidden_size", "sentence_vectors.regression"),
    hyperparameters=(C, THEN),
    summary="a probe fits the head on the frozen encoder, then everything trains",
)
