"""A cell's parts and hyperparameters: what can be combined, what a setting may name, and its defaults.

Impossible cells are refused before the first trial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from meltpoint.adapters import heads, modes, tricks
from meltpoint.adapters.data.input_format import CONTEXT, FEATS, INPUT_FORMAT, PAIRING, PREFIX, WORD_TOKENIZER
from meltpoint.adapters.encoders import EncoderReference, pooling
from meltpoint.adapters.hyperparameters import COMMON, OF_TARGET, Parameter, Setting, Value
from meltpoint.adapters.multiplier_table import Trick
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.kinds import TaskKind
from meltpoint.tasks.core.task import Kind

if TYPE_CHECKING:
    from meltpoint.adapters.head import Head


def check_possible(reference: EncoderReference, head: str, kind: Kind, pairing: str = "auto") -> None:
    """Refuse a cell whose encoder, head and kind of task cannot be combined.

    Args:
        reference: the encoder, resolved.
        head: the head's name.
        kind: the task's kind.
        pairing: the setting's `pairing`; "auto" if it leaves the choice open.

    Raises:
        ValueError: the head does not support the kind, or does not support it with this encoder; the message names the
            heads that do.
    """
    reason = _incompatibility(reference, heads.get(head, kind), kind)
    if reason:
        able = [name for name in heads.names() if kind in heads.get(name).kinds]
        able = [name for name in able if not _incompatibility(reference, heads.get(name), kind)]
        raise ValueError(f"Head '{head}' {reason}; use --head {' or '.join(able)}.")
    if pairing == "joint" and kinds.get(kind).is_pair and not reference.joins_pairs:
        word = reference.word
        raise ValueError(f"pairing is joint, but {word} reads one sentence at a time; use separate or auto.")


def check_mode(reference: EncoderReference, mode: str, head: str, kind: Kind) -> None:
    """Refuse a mode that does not support the encoder's family or the head; the remedy names heads for the kind.

    Raises:
        ValueError: one line with the remedy.
    """
    adaptation = modes.get(mode)
    if adaptation.families and reference.family not in adaptation.families:
        others = [name for name in modes.names() if not modes.get(name).families]
        raise ValueError(
            f"Mode '{mode}' needs an encoder of transformers, which {reference.word} is not; use --mode "
            f"{','.join(others)}."
        )
    if adaptation.fits_head and not heads.get(head).is_linear:
        linear = [name for name in heads.names() if heads.get(name).is_linear and kind in heads.get(name).kinds]
        able = [name for name in linear if not _incompatibility(reference, heads.get(name), kind)]
        raise ValueError(f"Mode '{mode}' fits a linear head, which {head} is not; use --head {' or '.join(able)}.")


def check_own_pooling(reference: EncoderReference) -> None:
    """Refuse `pooling.kind: encoder` for an encoder that ships no pooling; a hub encoder must be downloaded already.

    Raises:
        ValueError: the encoder ships no readable pooling; one line with the remedy.
    """
    if pooling(reference) is None:
        raise ValueError(
            f"pooling.kind is encoder, but {reference.word} ships no mean, cls or max pooling that Meltpoint reads "
            "(modules.json, 1_Pooling/config.json); use --set pooling.kind=mean."
        )


def _incompatibility(reference: EncoderReference, head: type[Head], kind: Kind) -> str:
    """The reason why a head that supports the kind cannot be used with an encoder; "" if it can."""
    if head.is_native and not reference.has_native_head(kind):
        return f"is the head that transformers builds on an encoder, but transformers has none for {reference.word}"
    if not reference.has_words and head.reads != "first":
        return f"reads a state of each word, but {reference.word} has one vector per sentence"
    if head.reads == "first" and not kinds.get(kind).labels_words and not reference.has_sentence_state:
        return f"reads the first state only, but {reference.word}'s first state is a word's, not the sentence's"
    if kinds.get(kind).is_pair and not reference.joins_pairs and not head.separate_pairs:
        return f"reads both sentences of a pair as one, but {reference.word} reads one at a time"
    return ""


# The hyperparameters of a cell, and complete settings.


ENCODER_DROPOUT = "encoder_dropout"
SCHEDULE, CONSTANT = "schedule", "constant"
PATIENCE = "patience"
OPTIMISER, ADAMW = "optimiser", "adamw"

LEFT_OUT: Setting = {
    **{parameter.name: parameter.default for parameter in INPUT_FORMAT}, PATIENCE: 0, OPTIMISER: ADAMW, FEATS: False,
    "esim.activation": "tanh", "feature_extraction.depth": 1.0,
    **{parameter.name: parameter.default for declared in OF_TARGET.values() for parameter in declared},
}  # fmt: skip
"""Hyperparameter → the value at which a complete setting omits it.

Most tasks leave no choice of input format, and settings of older versions lack the others.
"""


def schedule_parameter() -> Parameter:
    """The hyperparameter that selects one of the tricks that are schedules, or a constant rate."""
    choices = (CONSTANT, *(trick.name for trick in tricks.every() if trick.is_schedule))
    return Parameter(SCHEDULE, CONSTANT, "the course of the learning rate over the steps", choices=choices)


def switch(trick: Trick) -> Parameter:
    """The boolean hyperparameter that switches a trick on."""
    return Parameter(trick.name, False, trick.summary)


def encoder_tricks() -> tuple[Trick, ...]:
    """The tricks that treat layer groups differently, and so require an encoder that trains."""
    return tuple(trick for trick in tricks.every() if not trick.is_schedule)


def parameters(mode: str, head: str, kind: Kind | None = None) -> tuple[Parameter, ...]:
    """Every hyperparameter that a setting of this mode and head may name.

    Args:
        mode: the mode's name.
        head: the head's name.
        kind: the task's kind, or None for every kind that the head supports.

    Raises:
        ValueError: an unknown mode or head.
    """
    head_class, unused = heads.get(head), modes.get(mode).unused
    served = [kinds.get(name) for name in (head_class.kinds if kind is None else (kind,))]
    objective = dict.fromkeys(parameter for one in served for parameter in OF_TARGET.get(one.target, ()))
    common = [*COMMON, *input_parameters(head_class, served), *objective, schedule_parameter()]
    if SCHEDULE not in unused:
        common += [parameter for trick in tricks.every() if trick.is_schedule for parameter in trick.hyperparameters]
    if modes.get(mode).trains_encoder:
        for trick in encoder_tricks():
            common += [switch(trick), *trick.hyperparameters]
    else:
        common = [parameter for parameter in common if parameter.name != ENCODER_DROPOUT]
    own = (one for one in head_class.hyperparameters if kind is None or served[0].is_pair or not one.of_pairs)
    return tuple(one for one in (*common, *modes.get(mode).hyperparameters, *own) if one.name not in unused)


def input_parameters(head: type[Head], served: Sequence[TaskKind]) -> tuple[Parameter, ...]:
    """The hyperparameters of the encoder's input format for which a head and kinds of task leave a choice."""
    either = head.separate_pairs and head.joint_pairs
    pairs = either and any(kind.is_pair for kind in served)
    texts = (WORD_TOKENIZER, PREFIX) if any(not kind.labels_words for kind in served) else ()
    return (*((PAIRING,) if pairs else ()), *((CONTEXT,) if any(kind.labels_words for kind in served) else ()), *texts)


def all_parameters() -> tuple[Parameter, ...]:
    """The hyperparameters of all modes, tricks and heads, each once; imports no torch (`heads.parameters`)."""
    declared = [
        *COMMON,
        *INPUT_FORMAT,
        *(one for declared in OF_TARGET.values() for one in declared),
        schedule_parameter(),
        *(switch(trick) for trick in encoder_tricks()),
    ]
    declared += [parameter for trick in tricks.every() for parameter in trick.hyperparameters]
    declared += [parameter for mode in modes.names() for parameter in modes.get(mode).hyperparameters]
    return tuple({parameter.name: parameter for parameter in (*declared, *heads.parameters())}.values())


def complete(setting: Setting, mode: str, head: str, kind: Kind | None = None) -> dict[str, Value]:
    """A setting with every default filled in, and without the hyperparameters that have no effect in it.

    Settings that train the same way complete to the same mapping, so they have the same identity. Hyperparameters of
    `LEFT_OUT` are named only if they differ from it.

    Args:
        kind: the task's kind; None keeps hyperparameters that apply only to pairs.

    Raises:
        ValueError: a key that this mode and head do not have, or a value outside its limits.
    """
    allowed: Mapping[str, Parameter] = {parameter.name: parameter for parameter in parameters(mode, head)}
    for name in setting:
        if name not in allowed:
            raise ValueError(f"{name} has no place in a setting of {mode} with head {head}.")
    full = {name: parameter.check(setting.get(name, parameter.default)) for name, parameter in allowed.items()}
    off = [trick for trick in tricks.every() if not trick.is_on(full)]
    idle = {parameter.name for trick in off for parameter in trick.hyperparameters}
    if full.get(SCHEDULE) == CONSTANT:
        idle |= {parameter.name for parameter in modes.get(mode).idle_when_constant}
    if kind is not None and not kinds.get(kind).is_pair:
        idle |= {name for name, parameter in allowed.items() if parameter.of_pairs}
    idle |= {name for name, value in LEFT_OUT.items() if full.get(name) == value}
    return {name: value for name, value in sorted(full.items()) if name not in idle}


def bundle_key(setting: Setting, mode: str, head: str) -> tuple[Value, ...]:
    """The values of a setting that trials must share to train as one bundle (`Parameter.shapes`).

    Args:
        setting: a complete setting, or one whose missing values are the defaults.
        mode: the mode's name.
        head: the head's name.
    """
    shaping = (parameter for parameter in parameters(mode, head) if parameter.shapes)
    return tuple(parameter.check(setting.get(parameter.name, parameter.default)) for parameter in shaping)
