"""🔝 Top layers: the encoder's highest layer groups train, and the head; the states below are cached once.

Lee, Tang & Lin 2019, "What Would Elsa Do?": the top quarter of BERT's layers gives nine tenths of fine-tuning's gain.
With k = 0 it is ❄ on the top layer; with all groups it is 🔥.
"""

from __future__ import annotations

from dataclasses import replace

from meltpoint.adapters.hyperparameters import Parameter, Setting
from meltpoint.adapters.modes import fine_tuning
from meltpoint.adapters.multiplier_table import Phase

K = Parameter("top_k.k", 2, "the number of the encoder's highest layer groups that train", 0, 1000)


def phases(setting: Setting) -> tuple[Phase, ...]:
    """One phase in which the highest groups train."""
    (phase,) = fine_tuning.phases(setting)
    return (Phase(phase.name, phase.epochs, phase.learning_rate, encoder_trains=True, top_groups=int(setting[K.name])),)


MODE = replace(
    fine_tuning.MODE,
    name="top_k",
    symbol="🔝",
    phases=phases,
    verb="Tune the top layers of {}",
    colour="#2e8b57",
    rung=3,
    space="fine_tuning",
    hyperparameters=(K,),
    summary="the highest layers of the encoder train, and the head; the states below are cached",
)
