"""❄ Feature extraction: the encoder never changes; a task model trains on a learned mix of all its layers.

Peters, Ruder & Smith 2019, §3.2 and appendix A.1; the mix is Peters et al. 2018, eq. 1.
"""

from meltpoint.adapters.parameters import Setting
from meltpoint.adapters.table import Mode, Phase


def phases(setting: Setting) -> tuple[Phase, ...]:
    """One phase, the encoder's rows closed."""
    return (Phase("train", int(setting["epochs"]), float(setting["learning_rate"]), encoder_trains=False),)


MODE = Mode(
    name="feature_extraction",
    symbol="❄",
    layers="mix",
    trains_encoder=False,
    head="bilstm",
    phases=phases,
    summary="the encoder stays frozen; a task model trains on a learned mix of all its layers",
)
