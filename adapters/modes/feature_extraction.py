"""❄ Feature extraction: the encoder never changes; a task model trains on a learned mix of all its layers.

Peters, Ruder & Smith 2019, §3.2 and appendix A.1; the mix is Peters et al. 2018, eq. 1.
"""

from meltpoint.adapters.hyperparameters import Parameter, Setting
from meltpoint.adapters.multiplier_table import DefaultHead, DefaultHeads, Layers, Mode, Phase, by_kind
from meltpoint.tasks.core.kinds import reading

LAYERS = Parameter(
    "feature_extraction.layers", "mix",
    "the head's input: a learned mix of all layers, the top layer, or the one layer at feature_extraction.depth",
    choices=("mix", "top", "depth"), shapes=True,
)  # fmt: skip
DEPTH = Parameter(
    "feature_extraction.depth", 1.0, "the layer's relative depth: 0 is the embeddings, 1 the top layer", 0.0, 1.0,
    shapes=True,
)  # fmt: skip


def layers(setting: Setting) -> Layers:
    """The layers in the head's input: the papers' mix, or one layer, 1/7 of a six-layer encoder's cache.

    Middle layers are often better than the last (Skean et al. 2025, arXiv 2502.02013).
    """
    if setting[LAYERS.name] == "depth":
        return float(setting.get(DEPTH.name, DEPTH.default))
    return "top" if setting[LAYERS.name] == "top" else "mix"


def phases(setting: Setting) -> tuple[Phase, ...]:
    """One phase with the encoder frozen."""
    return (Phase("train", int(setting["epochs"]), float(setting["learning_rate"]), encoder_trains=False),)


HEADS = DefaultHeads(
    pooled=DefaultHead(
        "pooling", "the encoder's own pooling under a linear classifier: Reimers & Gurevych 2019, section 5"
    ),
    joint=by_kind(
        labels=DefaultHead("bilstm", "two BiLSTM layers and a softmax, BERT's: Peters, Ruder & Smith 2019, A.1"),
        sentences=DefaultHead("bcn", "the biattentive classification network: Peters, Ruder & Smith 2019, A.1"),
        pairs=DefaultHead("esim", "ESIM: Peters, Ruder & Smith 2019, A.1"),
    ),
    single={
        kind: DefaultHead("bilstm_crf", "two BiLSTM layers and a CRF, ELMo's: Peters, Ruder & Smith 2019, A.1")
        for kind in reading("words")
    },
)
"""The task models of Peters, Ruder & Smith 2019, appendix A.1; for sentence encoders, their makers' task model.

Reimers & Gurevych 2019, section 5, evaluate sentence encoders by SentEval (Conneau & Kiela 2018, section 3): a logistic
regression on a sentence's vector, or on [|u - v|; u * v] of a pair's two.
"""


MODE = Mode(
    name="feature_extraction",
    symbol="❄",
    layers=layers,
    trains_encoder=False,
    default_heads=HEADS,
    phases=phases,
    verb="Freeze {}",
    colour="#3b76c4",
    rung=1,
    hyperparameters=(LAYERS, DEPTH),
    summary="the encoder stays frozen; a task model trains on a learned mix of all its layers",
)
