"""The input format of examples: the sentences of a pair together or apart, a sentence alone or in its document.

Imports nothing heavy: settings are checked where no encoder is loaded.
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
            where the encoder can (ELMo and Skip-thoughts cannot).
        context: a sentence to label alone ("sentence"), or with what its document has around it ("document").
    """

    pairing: Pairing = "auto"
    context: Context = "sentence"


def input_format_of(setting: Setting, joint_pairs: bool) -> InputFormat:
    """The input format that a setting asks for, with defaults for what it does not name.

    Args:
        joint_pairs: whether the head serves pairs in one input (`Head.joint_pairs`); else "auto" is "separate".
    """
    pairing = PAIRING.check(setting.get(PAIRING.name, PAIRING.default))
    if pairing == "auto" and not joint_pairs:
        pairing = "separate"
    context = CONTEXT.check(setting.get(CONTEXT.name, CONTEXT.default))
    return InputFormat(cast(Pairing, pairing), cast(Context, context))
