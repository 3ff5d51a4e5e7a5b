"""🔥 Fine-tuning: every weight of the encoder trains, under a head of few parameters.

Peters, Ruder & Smith 2019, §3.2 and appendix A.2; Devlin et al. 2018, §3.2.
"""

from meltpoint.adapters.default_head import SENTENCE_VECTORS, DefaultHead, Reader
from meltpoint.adapters.hyperparameters import Setting
from meltpoint.adapters.multiplier_table import Mode, Phase, top_layer
from meltpoint.tasks.core.task import Kind


def phases(setting: Setting) -> tuple[Phase, ...]:
    """One phase in which the encoder trains."""
    return (Phase("train", int(setting["epochs"]), float(setting["learning_rate"]), encoder_trains=True),)


def default_head(encoder: Reader, kind: Kind) -> DefaultHead:
    """The output layers of Peters, Ruder & Smith 2019, section 3.2."""
    if not encoder.has_words:
        return SENTENCE_VECTORS
    if encoder.has_native_head(kind):
        return DefaultHead("native", "the family's own, with BERT's pooler: Devlin et al. 2019, section 3.2 and A.1")
    if encoder.joins_pairs:
        return DefaultHead("linear", "a softmax, or one output: Peters, Ruder & Smith 2019, section 3.2; Devlin et al.")
    if kind == "sentence_classification":
        return DefaultHead("pooling", "the maximum over ELMo's states: Peters, Ruder & Smith 2019, section 3.2")
    if kind == "sequence_labelling":
        return DefaultHead("crf", "a CRF on ELMo's states: Peters, Ruder & Smith 2019, section 3.2")
    return DefaultHead("bi_attention", "attention without weights: Peters, Ruder & Smith 2019, section 3.2 and A.2")


MODE = Mode(
    name="fine_tuning",
    symbol="🔥",
    layers=top_layer,
    trains_encoder=True,
    default_head=default_head,
    phases=phases,
    summary="the whole encoder trains, with a small output layer on its top layer",
)
