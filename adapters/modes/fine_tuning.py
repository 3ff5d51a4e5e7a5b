"""🔥 Fine-tuning: every weight of the encoder trains, under a head of few parameters.

Peters, Ruder & Smith 2019, §3.2 and appendix A.2; Devlin et al. 2018, §3.2.
"""

from meltpoint.adapters.hyperparameters import Setting
from meltpoint.adapters.multiplier_table import DefaultHead, DefaultHeads, Mode, Phase, by_kind, top_layer


def phases(setting: Setting) -> tuple[Phase, ...]:
    """One phase in which the encoder trains."""
    return (Phase("train", int(setting["epochs"]), float(setting["learning_rate"]), encoder_trains=True),)


_NATIVE = DefaultHead("native", "the family's head, BERT's with its pooler: Devlin et al. 2019, section 3.2 and A.1")
_NATIVE_OF_WORDS = DefaultHead("native", "the family's head, one layer on each word: Devlin et al. 2019, section 3.2")
_LINEAR = DefaultHead("linear", "a softmax, or one output: Peters, Ruder & Smith 2019, section 3.2")

HEADS = DefaultHeads(
    native=by_kind(labels=_NATIVE_OF_WORDS, sentences=_NATIVE, pairs=_NATIVE),
    joint=by_kind(labels=_LINEAR, sentences=_LINEAR, pairs=_LINEAR),
    single=by_kind(
        labels=DefaultHead("crf", "a CRF on ELMo's states: Peters, Ruder & Smith 2019, section 3.2"),
        sentences=DefaultHead("pooling", "the maximum over ELMo's states: Peters, Ruder & Smith 2019, section 3.2"),
        pairs=DefaultHead("bi_attention", "attention without weights: Peters, Ruder & Smith 2019, 3.2 and A.2"),
    ),
)
"""The output layers of Peters, Ruder & Smith 2019, section 3.2, and Devlin et al.'s if transformers has it."""


MODE = Mode(
    name="fine_tuning",
    symbol="🔥",
    layers=top_layer,
    trains_encoder=True,
    default_heads=HEADS,
    phases=phases,
    verb="Fine-tune {}",
    colour="#d9580f",
    rung=6,
    summary="the whole encoder trains, with a small output layer on its top layer",
)
