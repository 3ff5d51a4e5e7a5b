"""Adaptation as a table of learning-rate multipliers: layer groups (rows) × steps (columns).

The mode gives the phases and the mask of the encoder's rows, each trick gives numbers, and they multiply, so their
order does not matter. Zero means frozen, and nothing but freezing is ever exactly zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from meltpoint.adapters.hyperparameters import Parameter, Setting


@dataclass(frozen=True)
class Phase:
    """A stretch of training with one base rate and one mask over the encoder's rows.

    Attributes:
        name: "stack", "finetune" or "train"; what tables and MLflow call it.
        epochs: its length.
        learning_rate: the rate that the table's numbers multiply.
        encoder_trains: whether the encoder's rows are open.
    """

    name: str
    epochs: int
    learning_rate: float
    encoder_trains: bool


@dataclass(frozen=True)
class Mode:
    """How an encoder is adapted.

    Attributes:
        name: its file name and its word on the command line.
        symbol: its mark in tables (❄, 🔥, ❄🔥).
        layers: from a complete setting to what the head sees: a learned "mix" of all layers, or the "top" one.
        head: the head it takes where the user names none.
        phases: from a complete setting to its phases.
        hyperparameters: its own, beside the common ones.
        idle_when_constant: those of them that change nothing while no schedule is on.
        first_phase_parameters: those of them that its first phase depends on, beside rates and lengths.
        summary: one line for `meltpoint list modes`.
    """

    name: str
    symbol: str
    layers: Callable[[Setting], Literal["mix", "top"]]
    trains_encoder: bool
    head: str
    phases: Callable[[Setting], tuple[Phase, ...]]
    hyperparameters: tuple[Parameter, ...] = ()
    idle_when_constant: tuple[Parameter, ...] = ()
    first_phase_parameters: tuple[Parameter, ...] = ()
    summary: str = ""


def top_layer(_: Setting) -> Literal["top"]:
    """What heads see of an encoder that trains: its last layer."""
    return "top"


@dataclass(frozen=True)
class Plan:
    """The whole course of a trial, before its first step.

    Attributes:
        groups: how many layer groups there are, the head's included; the head is the last.
        steps_per_epoch: optimiser steps an epoch.
        phases: in order.
        restart_schedule: whether a schedule starts anew with each phase, or spans them all.
    """

    groups: int
    steps_per_epoch: int
    phases: tuple[Phase, ...]
    restart_schedule: bool = True

    @property
    def epochs(self) -> int:
        """Epochs of all phases."""
        return sum(phase.epochs for phase in self.phases)

    @property
    def total_steps(self) -> int:
        """Steps of all phases."""
        return self.epochs * self.steps_per_epoch

    @property
    def first_phase_steps(self) -> int:
        """Steps of the first phase."""
        return self.phases[0].epochs * self.steps_per_epoch

    def phase_at(self, step: int) -> tuple[Phase, int]:
        """The phase that a step lies in, and that phase's first step."""
        first = 0
        for phase in self.phases:
            steps = phase.epochs * self.steps_per_epoch
            if step < first + steps:
                return phase, first
            first += steps
        raise IndexError(f"step {step} is past the plan's {self.total_steps} steps")

    def with_first_phase(self, epochs: int) -> Plan:
        """The same course, its first phase of another length."""
        return replace(self, phases=(replace(self.phases[0], epochs=epochs), *self.phases[1:]))

    def schedule_at(self, step: int) -> tuple[int, int]:
        """(the step within the schedule's span, the span's steps): one phase's, or the whole plan's."""
        if not self.restart_schedule:
            return step, self.total_steps
        phase, first = self.phase_at(step)
        return step - first, phase.epochs * self.steps_per_epoch


@dataclass(frozen=True)
class Trick:
    """A fine-tuning trick: a pure function from (group, step) to a multiplier.

    Attributes:
        name: its file name and the key that switches it on.
        multiplier: (layer group, step, plan, setting) → a factor; 0 freezes.
        is_schedule: True where it is a word of the `schedule` key, since only one of them makes sense at a time;
            False where it has a switch of its own.
        hyperparameters: its own, active only while it is on.
        summary: one line for `meltpoint list tricks`.
    """

    name: str
    multiplier: Callable[[int, int, Plan, Setting], float]
    is_schedule: bool
    hyperparameters: tuple[Parameter, ...] = ()
    summary: str = ""

    def is_on(self, setting: Setting) -> bool:
        """Whether a setting uses it."""
        return setting.get("schedule") == self.name if self.is_schedule else bool(setting.get(self.name, False))


@dataclass(frozen=True)
class Table:
    """The multiplier table of one trial.

    Attributes:
        plan: its columns and rows.
        tricks: those that the setting switches on.
        setting: the complete setting.
    """

    plan: Plan
    tricks: tuple[Trick, ...]
    setting: Setting

    def multiplier(self, group: int, step: int) -> float:
        """The factor on a group's rate at a step; 0 means frozen."""
        phase, _ = self.plan.phase_at(step)
        is_head = group == self.plan.groups - 1
        product = 1.0 if is_head or phase.encoder_trains else 0.0
        for trick in self.tricks:
            product *= trick.multiplier(group, step, self.plan, self.setting)
        return product

    def learning_rate(self, group: int, step: int) -> float:
        """A group's learning rate at a step: the phase's rate times the multiplier."""
        return self.plan.phase_at(step)[0].learning_rate * self.multiplier(group, step)

    def encoder_is_frozen(self, step: int) -> bool:
        """Whether every row of the encoder is 0, so that its features can stand in for it."""
        return all(self.multiplier(group, step) == 0.0 for group in range(self.plan.groups - 1))
