"""🔝 Top layers: the encoder's highest layer groups train, and the head; the states below are cached once.

Lee, Tang & Lin 2019, "What Would Elsa Do?": the top quarter of BERT's layers gives nine tenths of fine-tuning's gain.
With k = 0 it is ❄ on the top layer; with all groups it is 🔥.
"""

from __future__ import annotations

from meltpoint.adapters.hyperparameters import Parameter, Setting
from meltpoint.adapters.modes import fine_tuning
from meltpoint.adapters.multiplier_table import Mode, Phase, top_layer

K = Parameter("top_k.k", 2, "the number of the encoder's highest layer groups that train", 0, 1000)


def phases(setting: Setting) -> tuple[Phase, ...]:
    """One phase in which the highest groups train."""
    (phase,) = fine_tuning.phases(setting)
    return (Phase(phase.name, phase.epochs, phase.learning_rate, encoder_trains=True, top_groups=int(setting[K.name])),)


MODE = Mode(
    name="top_k",
    symbol="🔝",
    layers=top_layer,
    trains_encoder=True,
    default_heads=fine_tuning.HEADS,
    phases=phases,
    verb="Tune the top layers of {}",
    hue=0.15,
    rung=3,
    space="fine_tuning",
    hyperparameters=(K,),
    summary="the highest layers of the encoder train, and the head; the states below are cached",
)
