"""The input format of examples: pairs encoded jointly or separately, sentences with or without document context.

Imports no torch: settings are checked in processes that load no encoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from meltpoint.adapters.hyperparameters import Parameter, Setting

Pairing = Literal["auto", "joint", "separate"]
Context = Literal["sentence", "document"]

PAIRING = Parameter(
    "pairing", "auto", "both sentences of a pair in one input, or each in its own; auto: jointly where the encoder can",
    choices=("auto", "joint", "separate"), shapes=True,
)  # fmt: skip
"""Peters, Ruder & Smith 2019, table 4: joint against separate encoding of pairs by a frozen BERT."""

CONTEXT = Parameter(
    "context", "sentence", "a sentence to label alone, or with what its document has around it, up to max_pieces",
    choices=("sentence", "document"), shapes=True,
)  # fmt: skip
"""Peters, Ruder & Smith 2019, appendix A.1: document context for the features of a frozen BERT in NER."""


@dataclass(frozen=True)
class InputFormat:
    """The form in which an encoder is given a task's examples.

    Attributes:
        pairing: both sentences of a pair in one input ("joint"), each in its own ("separate"), or "auto": jointly
            if the encoder supports it (ELMo and Skip-thoughts do not).
        context: a sentence to label alone ("sentence"), or with the surrounding text of its document ("document").
    """

    pairing: Pairing = "auto"
    context: Context = "sentence"


def input_format_of(setting: Setting, joint_pairs: bool) -> InputFormat:
    """The input format of a setting, with the defaults for hyperparameters that it does not name.

    Args:
        joint_pairs: whether the head supports jointly encoded pairs (`Head.joint_pairs`); if not, "auto" becomes
            "separate".
    """
    pairing = PAIRING.check(setting.get(PAIRING.name, PAIRING.default))
    if pairing == "auto" and not joint_pairs:
        pairing = "separate"
    context = CONTEXT.check(setting.get(CONTEXT.name, CONTEXT.default))
    return InputFormat(cast(Pairing, pairing), cast(Context, context))
