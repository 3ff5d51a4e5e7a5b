"""🔥 Fine-tuning: every weight of the encoder trains, under a head of few parameters.

Peters, Ruder & Smith 2019, §3.2 and appendix A.2; Devlin et al. 2018, §3.2.
"""

from meltpoint.adapters.hyperparameters import Setting
from meltpoint.adapters.multiplier_table import Mode, Phase, top_layer


def phases(setting: Setting) -> tuple[Phase, ...]:
    """One phase in which the encoder trains."""
    return (Phase("train", int(setting["epochs"]), float(setting["learning_rate"]), encoder_trains=True),)


MODE = Mode(
    name="fine_tuning",
    symbol="🔥",
    layers=top_layer,
    trains_encoder=True,
    head="linear",
    phases=phases,
    summary="the whole encoder trains, with a small output layer on its top layer",
)
