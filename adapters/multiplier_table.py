"""Adaptation as a table of learning-rate multipliers: layer groups (rows) × steps (columns).

The mode determines the phases and whether the encoder's rows are masked, and each trick gives factors. All factors are
multiplied, so the order of tricks does not matter. A multiplier is exactly 0 only for a frozen group. A mode also names
its default heads, by the kind of task and the traits of the encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from meltpoint.adapters.hyperparameters import Parameter, Setting
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.kinds import Input
from meltpoint.tasks.core.task import Kind

if TYPE_CHECKING:
    from meltpoint.adapters.encoder import Encoder
    from meltpoint.adapters.families import EncoderReference


@dataclass(frozen=True)
class Phase:
    """Consecutive epochs of training with the same base rate, in which the encoder trains or is frozen.

    Attributes:
        name: "stack", "finetune" or "train"; its name in tables and MLflow.
        epochs: its length.
        learning_rate: the base rate, which the table's multipliers scale.
        encoder_trains: whether the encoder trains; if not, its rows are 0.
        top_groups: the number of the encoder's highest layer groups that train; None for all.
        fit_c: the inverse strength of the penalty with which a solver fits the head, one linear layer, in one epoch
            (`evaluation.fit_heads`); None for gradient steps.
    """

    name: str
    epochs: int
    learning_rate: float
    encoder_trains: bool
    top_groups: int | None = None
    fit_c: float | None = None

    def trains(self, group: int, groups: int) -> bool:
        """True if one of the encoder's groups, numbered bottom → top, trains in this phase."""
        return self.encoder_trains and (self.top_groups is None or group >= groups - self.top_groups)


@dataclass(frozen=True)
class DefaultHead:
    """A head's name, and the source of the choice for `plan`."""

    name: str
    source: str


SENTENCE_VECTORS = DefaultHead(
    "sentence_vectors", "a linear classifier on one vector per sentence: Kiros et al. 2015, section 3"
)
"""The head of encoders without a state for each word, in every mode."""


@dataclass(frozen=True)
class DefaultHeads:
    """The default heads of a mode.

    Attributes:
        joint: kind of task → the head of an encoder that takes a pair as one input, as BERT does.
        single: the same for an encoder that reads one sentence at a time, as ELMo does, if it has another head.
        pooled: the preferred head for sentences and pairs of an encoder that was trained to give one vector per
            sentence, or None.
        native: kind of task → the head preferred over `joint` if transformers builds one on the encoder, or None.
    """

    joint: Mapping[Kind, DefaultHead]
    single: Mapping[Kind, DefaultHead] = field(default_factory=dict)
    pooled: DefaultHead | None = None
    native: Mapping[Kind, DefaultHead] | None = None

    def of(self, encoder: EncoderReference, kind: Kind) -> DefaultHead:
        """The head for an encoder and a kind of task."""
        if not encoder.has_words:
            return SENTENCE_VECTORS
        if encoder.has_pooling and (head := self.with_pooling(kind)) is not None:
            return head
        if self.native is not None and encoder.has_native_head(kind):
            return self.with_native(kind)
        return self.without_native(kind, encoder.joins_pairs)

    def with_pooling(self, kind: Kind) -> DefaultHead | None:
        """The head for an encoder that ships its own pooling; None if it has no other than without."""
        return None if kinds.get(kind).labels_words else self.pooled

    def with_native(self, kind: Kind) -> DefaultHead:
        """The head for an encoder on which transformers builds a native head."""
        return (self.native or self.joint)[kind]

    def without_native(self, kind: Kind, joins_pairs: bool) -> DefaultHead:
        """The head for an encoder without a native head, which may read both sentences of a pair as one input."""
        return self.joint[kind] if joins_pairs else self.single.get(kind, self.joint[kind])


def by_kind(labels: DefaultHead, sentences: DefaultHead, pairs: DefaultHead) -> Mapping[Kind, DefaultHead]:
    """Kind of task → head, by the contents of its examples, independent of the target."""
    heads: Mapping[Input, DefaultHead] = {"words": labels, "sentence": sentences, "pair": pairs}
    return {kind: heads[kinds.get(kind).input] for kind in kinds.names()}


Layers = Literal["mix", "mean", "top"] | float
"""The head's input; see `Mode.layers`."""


@dataclass(frozen=True)
class Mode:
    """A way to adapt an encoder, such as fine-tuning.

    Attributes:
        name: its file name, and its name on the command line.
        symbol: its symbol in tables (❄, 🔥, ❄🔥).
        layers: complete setting → the head's input: a learned "mix" of all layers, their "mean", the "top" layer, or
            the relative depth of a layer, from 0 (the embeddings) to 1 (the top).
        trains_encoder: whether the encoder trains in any phase.
        default_heads: the heads if none is named.
        phases: complete setting → phases of training.
        verb: the recommendation to use it, such as "Fine-tune {}", with the encoder in the braces.
        colour: in plots, on the page and in MLflow, as `#rrggbb`; at least 3 : 1 against white and black.
        rung: its place among all modes by the cost of a trial, the cheapest first.
        adapt: changes a trial's own copy of the encoder before training, from the complete setting: it adds weights, or
            freezes some for good by `requires_grad`; None changes nothing.
        side_by_side: whether trials that train the encoder share its frozen weights, so that a GPU can train several
            as one bundle.
        space: the mode whose space files lie under this mode's own; "" for none.
        families: the families of encoders that it supports; () for all.
        is_random: whether its runs depend on the seed.
        fits_head: whether a solver fits the head in one of its phases.
        unused: the common hyperparameters without an effect.
        hyperparameters: the hyperparameters that only this mode, or few modes, have.
        idle_when_constant: the part of `hyperparameters` that has no effect with a constant learning rate.
        summary: one line for `meltpoint list modes`.
    """

    name: str
    symbol: str
    layers: Callable[[Setting], Layers]
    trains_encoder: bool
    default_heads: DefaultHeads
    phases: Callable[[Setting], tuple[Phase, ...]]
    verb: str
    colour: str
    rung: int
    adapt: Callable[[Encoder, Setting], None] | None = None
    side_by_side: bool = False
    space: str = ""
    families: tuple[str, ...] = ()
    is_random: bool = True
    fits_head: bool = False
    unused: tuple[str, ...] = ()
    hyperparameters: tuple[Parameter, ...] = ()
    idle_when_constant: tuple[Parameter, ...] = ()
    summary: str = ""


def top_layer(_: Setting) -> Literal["top"]:
    """`Mode.layers` of the modes that train the encoder: heads get its last layer."""
    return "top"


@dataclass(frozen=True)
class Plan:
    """The planned training of a trial: its layer groups, phases and steps.

    Attributes:
        groups: number of layer groups, including the head, which is the last.
        steps_per_epoch: optimiser steps per epoch.
        phases: in order.
        restart_schedule: whether the learning-rate schedule restarts with each phase, or spans all of them.
        plateaus: the epochs so far after which the dev score was on a plateau, if a schedule uses this.
    """

    groups: int
    steps_per_epoch: int
    phases: tuple[Phase, ...]
    restart_schedule: bool = True
    plateaus: tuple[int, ...] = ()

    @property
    def epochs(self) -> int:
        """The number of epochs of all phases."""
        return sum(phase.epochs for phase in self.phases)

    @property
    def total_steps(self) -> int:
        """The number of steps of all phases."""
        return self.epochs * self.steps_per_epoch

    def phase_at(self, step: int) -> tuple[Phase, int]:
        """The phase of a step, and that phase's first step."""
        first = 0
        for phase in self.phases:
            steps = phase.epochs * self.steps_per_epoch
            if step < first + steps:
                return phase, first
            first += steps
        raise IndexError(f"step {step} is past the plan's {self.total_steps} steps")

    def with_first_phase(self, epochs: int) -> Plan:
        """The same plan with another number of epochs in the first phase."""
        return replace(self, phases=(replace(self.phases[0], epochs=epochs), *self.phases[1:]))

    def ended_at(self, epoch: int) -> Plan:
        """The same plan, but its last phase ends with this epoch of the plan."""
        last = self.phases[-1]
        before = self.epochs - last.epochs
        return replace(self, phases=(*self.phases[:-1], replace(last, epochs=epoch - before)))

    def schedule_at(self, step: int) -> tuple[int, int]:
        """(step, number of steps) within the schedule, which spans one phase or the whole plan."""
        if not self.restart_schedule:
            return step, self.total_steps
        phase, first = self.phase_at(step)
        return step - first, phase.epochs * self.steps_per_epoch


@dataclass(frozen=True)
class Trick:
    """A fine-tuning trick: a pure function from (group, step) to a multiplier.

    Attributes:
        name: its file name, and the key or value that switches it on.
        multiplier: (layer group, step, plan, setting) → a factor; 0 freezes.
        is_schedule: whether it is a value of the hyperparameter `schedule`, so that only one is active at a time;
            otherwise it has its own boolean hyperparameter.
        hyperparameters: the hyperparameters that have an effect only while it is on.
        summary: one line for `meltpoint list tricks`.
    """

    name: str
    multiplier: Callable[[int, int, Plan, Setting], float]
    is_schedule: bool
    hyperparameters: tuple[Parameter, ...] = ()
    summary: str = ""

    def is_on(self, setting: Setting) -> bool:
        """True if a setting switches the trick on."""
        return setting.get("schedule") == self.name if self.is_schedule else bool(setting.get(self.name, False))


@dataclass(frozen=True)
class MultiplierTable:
    """The multiplier table of one trial.

    Attributes:
        plan: the trial's layer groups (rows) and steps (columns).
        tricks: the tricks that the setting switches on.
        setting: the complete setting.
    """

    plan: Plan
    tricks: tuple[Trick, ...]
    setting: Setting

    def multiplier(self, group: int, step: int) -> float:
        """The factor on a group's rate at a step; 0 means frozen."""
        phase, _ = self.plan.phase_at(step)
        is_head = group == self.plan.groups - 1
        product = 1.0 if is_head or phase.trains(group, self.plan.groups - 1) else 0.0
        for trick in self.tricks:
            product *= trick.multiplier(group, step, self.plan, self.setting)
        return product

    def learning_rate(self, group: int, step: int) -> float:
        """A group's learning rate at a step: the phase's rate times the multiplier."""
        return self.plan.phase_at(step)[0].learning_rate * self.multiplier(group, step)

    def ever_trains(self, group: int) -> bool:
        """True if a group trains at the first or the last step of any epoch of the plan."""
        size = self.plan.steps_per_epoch
        steps = (step for first in range(0, self.plan.total_steps, size) for step in (first, first + size - 1))
        return any(self.multiplier(group, step) != 0.0 for step in reversed([*steps]))  # most groups train at the end

    def frozen_groups(self, step: int) -> int:
        """The number of the encoder's groups frozen at a step of a phase that trains them; otherwise 0."""
        phase, groups = self.plan.phase_at(step)[0], self.plan.groups - 1
        return sum(phase.trains(group, groups) and self.multiplier(group, step) == 0.0 for group in range(groups))

    def encoder_is_frozen(self, step: int) -> bool:
        """True if every row of the encoder is 0, so that cached features can be used instead of running it."""
        return all(self.multiplier(group, step) == 0.0 for group in range(self.plan.groups - 1))
