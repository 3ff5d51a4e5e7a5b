"""⚖ Norms and biases: only layer norms, biases and the head train.

BitFit (Ben Zaken, Goldberg & Ravfogel 2022, section 3) trains the biases and the head; layer norms are added here, as
in Qi et al. 2022, "Parameter-Efficient Tuning on Layer Normalization". About 0.1 % of BERT's weights train.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from meltpoint.adapters.hyperparameters import Setting
from meltpoint.adapters.modes import fine_tuning

if TYPE_CHECKING:
    from meltpoint.adapters.encoder import Encoder


def adapt(encoder: Encoder, _: Setting) -> None:
    """Freeze everything but the biases and the weights of norms.

    Raises:
        ValueError: the encoder has neither.
    """
    norms = {
        id(parameter)
        for module in encoder.modules() if type(module).__name__.endswith("Norm")
        for parameter in module.parameters(recurse=False)
    }  # fmt: skip
    trains = {
        name: id(parameter) in norms or "bias" in name.rpartition(".")[2]
        for name, parameter in encoder.named_parameters()
    }
    if not any(trains.values()):
        raise ValueError(f"{encoder.revision} has no biases and no layer norms, so norm_bias cannot train it.")
    for name, parameter in encoder.named_parameters():
        parameter.requires_grad_(trains[name])


MODE = replace(
    fine_tuning.MODE,
    name="norm_bias",
    symbol="⚖",
    verb="Tune norms and biases of {}",
    colour="#a87b0a",
    rung=2,
    adapt=adapt,
    space="fine_tuning",
    summary="layer norms, biases and the head train",
)
