"""The one training loop: every mode and every trick is a row of the multiplier table that it reads.

It trains a *bundle*: trials of one cell, side by side, on the same frozen encoder. A trial whose encoder trains is a
bundle of one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from meltpoint.adapters import modes, tricks
from meltpoint.adapters.data.batch import Batch, EncodedSplit
from meltpoint.adapters.data.batching import CachedStates, Inputs, inputs, training_batches
from meltpoint.adapters.data.prefetch import prefetched
from meltpoint.adapters.hardware import Hardware, resolve_precision
from meltpoint.adapters.hyperparameters import Setting
from meltpoint.adapters.layers.compact_embedding import CompactEmbedding, pieces_of
from meltpoint.adapters.model import AdaptedModel, Member
from meltpoint.adapters.multiplier_table import Plan, Table
from meltpoint.adapters.snapshot import Snapshot
from meltpoint.adapters.training.encoder_optimiser import EncoderAdamW
from meltpoint.adapters.training.epoch_result import EpochResult
from meltpoint.adapters.training.evaluation import Evaluation, evaluate
from meltpoint.adapters.training.stacked_adamw import StackedAdamW
from meltpoint.adapters.training.trial_state import (
    EncodedData,
    FirstPhaseCheckpoint,
    NotFiniteError,
    Outcome,
    TrialState,
    plan,
)
from meltpoint.tasks.core.task import Example, Task

FINITE_CHECK_STEPS = 64  # a loss is looked at this often: each look makes a GPU wait


class FrozenStates(Protocol):
    """Where the states of frozen encoders are kept (`features.Cache`)."""

    def open(self, model: AdaptedModel, split: EncodedSplit, task: Task, first_pieces: bool) -> CachedStates | None:
        """A split's states; None where the cache has no room and the encoder has to run."""


class Trainer:
    """A bundle of trials: a model, its data and a table a member; iterate `epochs()` and read each trial's best state.

    Args:
        members: the trials; they agree on what shapes the computation (`settings.bundle_key`).
        frozen_states: the cache of frozen encoders' states, or None to run the encoder each time.
    """

    def __init__(
        self, model: AdaptedModel, data: EncodedData, mode: str, members: Sequence[Member], hardware: Hardware,
        frozen_states: FrozenStates | None = None,
    ) -> None:  # fmt: skip
        setting = members[0].setting
        self.model, self.data, self.frozen_states = model, data, frozen_states
        self.hardware, self.device = hardware, torch.device(hardware.device)
        self.precision = resolve_precision(str(setting["precision"]), hardware.device)
        self.trains_encoder = modes.get(mode).trains_encoder
        table = self._compact_table()  # before anything holds the parameters
        in_bf16 = self.trains_encoder and self.precision == "bf16" and self.device.type == "cpu"
        masters = model.encoder.train_in_bf16() if in_bf16 else {}
        self.groups = model.layer_groups()
        self.trials = [TrialState(member, self._table(mode, member.setting)) for member in members]
        self.active = list(range(len(members)))
        self.batch_size = int(setting["batch_size"])
        decays = torch.tensor([float(member.setting["weight_decay"]) for member in members])
        self.head_optimiser = StackedAdamW(list(model.own_parameters().values()), decays)
        decay = float(setting["weight_decay"])
        self.encoder_optimiser = EncoderAdamW(self.groups[:-1], decay, masters) if self.trains_encoder else None
        if table is not None and self.encoder_optimiser is not None:
            table.follow(self.encoder_optimiser)
        self.encoder_moved = False
        self.step = 0
        self._read: dict[str, Inputs] = {}

    def _compact_table(self) -> CompactEmbedding | None:
        """Train only those rows of the encoder's table of pieces that the task has; the same training, exactly."""
        if not self.trains_encoder:
            return None
        encoder = self.model.encoder
        return encoder.compact_pieces(pieces_of(self.data.train, encoder.tokenizer.pad_piece))

    def _table(self, mode: str, setting: Setting) -> Table:
        active = tuple(trick for trick in tricks.every() if trick.is_on(setting))
        return Table(plan(len(self.data.train.rows), len(self.groups), mode, setting), active, setting)

    def epochs(self) -> Iterator[list[Outcome]]:
        """Train, an epoch at a time: what it gave for every member that trained.

        A member whose loss or weights are no longer finite gives its error, and leaves; so does one that is done.
        """
        while self.active:
            yield self._epoch()

    def first_phase(self) -> Iterator[list[Outcome]]:
        """The epochs of the first phase alone."""
        while self.active and self._is_in_first_phase():
            yield self._epoch()

    def _is_in_first_phase(self) -> bool:
        """Whether the next step is the first phase's; its end may move (`_watch_gap`)."""
        return self.step < self._plan.phases[0].epochs * self._plan.steps_per_epoch

    def open_frozen_states(self) -> None:
        """Open the states that a frozen phase reads; what is missing is encoded, together with other workers."""
        for split in (self.data.train, self.data.dev):
            self._inputs(split, frozen=True)

    def stage(self) -> FirstPhaseCheckpoint:
        """Where a bundle of one stands, all that going on from here depends on."""
        (trial,) = self.trials
        weights, optimiser = self.model.own_weights(0), self.head_optimiser.state()
        return FirstPhaseCheckpoint(list(trial.results), trial.best, trial.best_state, weights, optimiser)

    def resume(self, stage: FirstPhaseCheckpoint) -> None:
        """Stand where a stage ended."""
        (trial,) = self.trials
        trial.results, trial.best = list(stage.results), stage.best
        trial.best_state = self.model.pretrained_weights() | Snapshot(stage.best_state)  # no stage trains the encoder
        self.model.load_trained([stage.weights])
        self.head_optimiser.load(stage.optimiser)
        self.step = stage.results[-1].step
        trial.end_first_phase(len(stage.results))

    def evaluate(self, split: EncodedSplit, examples: list[Example]) -> list[Evaluation]:
        """Score any split with the members' weights as they are, the encoder running."""
        return evaluate(self.model, self.data.task, split, examples, self.device, self.precision)

    def evaluate_dev(self) -> list[Evaluation]:
        """Score dev with the members' weights as they are."""
        data = self.data
        read = self._inputs(data.dev, self.model.encoder_is_frozen)
        return evaluate(self.model, data.task, data.dev, data.dev_examples, self.device, self.precision, read)

    def _train_metrics(self) -> dict[str, float]:
        """The metrics on train after an epoch of the first phase, where there is a rule on the gap; else nothing."""
        trial, data = self.trials[0], self.data
        if trial.largest_gap == 0.0 or self.step > self._plan.phases[0].epochs * self._plan.steps_per_epoch:
            return {}
        assert len(data.train_examples) == data.train.examples, "the rule on the gap needs the training examples"
        read = self._inputs(data.train, self.model.encoder_is_frozen)
        (train,) = evaluate(self.model, data.task, data.train, data.train_examples, self.device, self.precision, read)
        return train.metrics

    def _watch_gap(self, result: EpochResult) -> None:
        """End the first phase once train is ahead of dev by more than the rule allows, at the last weights within it.

        After the epoch is remembered: its dev score is of the weights that it ended with.
        """
        trial, metric = self.trials[0], self.data.task.metric
        if result.train[metric] - result.dev[metric] <= trial.largest_gap:
            trial.within = self.stage()
            return
        trial.end_first_phase(result.epoch)
        if trial.within is not None:
            self.model.load_trained([trial.within.weights])
            self.head_optimiser.load(trial.within.optimiser)

    @property
    def _plan(self) -> Plan:
        """Any member's plan; they agree on steps an epoch."""
        return self.trials[0].table.plan

    def _inputs(self, split: EncodedSplit, frozen: bool) -> Inputs:
        """A split as this epoch reads it: through the cache where the encoder is frozen, else whole."""
        frozen = frozen and self.frozen_states is not None and not self.encoder_moved
        key = f"{id(split)}.{frozen}"
        if key not in self._read:
            self._read[key] = self._open(split) if frozen else inputs(split)
        return self._read[key]

    def _open(self, split: EncodedSplit) -> Inputs:
        assert self.frozen_states is not None
        first_pieces = self.model.head.reads == "first"
        features = self.frozen_states.open(self.model, split, self.data.task, first_pieces)
        return inputs(split) if features is None else inputs(split, features, first_pieces)

    def _epoch(self) -> list[Outcome]:
        """One epoch of every active member, and the farewell of those that are done or lost."""
        epoch = self.step // self._plan.steps_per_epoch + 1
        started = time.perf_counter()
        losses = self._train_epoch(epoch)
        trained = time.perf_counter()
        healthy = [place for place, loss in enumerate(losses) if math.isfinite(loss)]
        lost: list[Outcome] = [
            (self.active[place], self._not_finite(self.trials[self.active[place]], epoch))
            for place, loss in enumerate(losses) if not math.isfinite(loss)
        ]  # fmt: skip
        self._keep(healthy)
        if not self.active:
            return lost
        found = self.evaluate_dev()
        train = self._train_metrics() if self.trains_encoder else {}
        share = len(self.active)
        seconds = ((trained - started) / share, (time.perf_counter() - trained) / share)
        results: list[Outcome] = [
            (index, self._remember(place, epoch, losses[healthy[place]], found[place], train, seconds))
            for place, index in enumerate(self.active)
        ]
        if train:
            self._watch_gap(self.trials[0].results[-1])
        self._keep([
            place for place, index in enumerate(self.active) if epoch < self.trials[index].table.plan.epochs
        ])  # fmt: skip
        return lost + results

    def _remember(
        self, place: int, epoch: int, loss: float, dev: Evaluation, train: dict[str, float],
        seconds: tuple[float, float],
    ) -> EpochResult:  # fmt: skip
        trial = self.trials[self.active[place]]
        score = dev.metrics[self.data.task.metric]
        if score > trial.best[0]:
            trial.best = (score, epoch)
            trial.best_state = self._weights(place, goes_on=epoch < trial.table.plan.epochs)
        phase, _ = trial.table.plan.phase_at(self.step - 1)
        result = EpochResult(
            epoch=epoch, phase=phase.name, step=self.step, train_loss=loss, dev=dev.metrics, train=train,
            encoder_frozen=self.model.encoder_is_frozen,
            train_seconds=seconds[0], dev_seconds=seconds[1],
            learning_rate=trial.table.learning_rate(len(self.groups) - 1, self.step - 1),
        )  # fmt: skip
        trial.results.append(result)
        return result

    def _weights(self, place: int, goes_on: bool) -> Snapshot:
        """A member's weights that training may have changed; the encoder's are not copied after the last epoch."""
        own = self.model.own_weights(place)
        if not self.trains_encoder:
            return own
        if not self.encoder_moved:
            return own | self.model.pretrained_weights()
        return own | self.model.encoder_weights(copied=goes_on)

    def _not_finite(self, trial: TrialState, epoch: int) -> NotFiniteError:
        phase, _ = trial.table.plan.phase_at(self.step - 1)
        return NotFiniteError(
            f"the loss or a weight is not finite in epoch {epoch} ({phase.name}), by step {self.step}; "
            f"a lower learning rate than {phase.learning_rate:g} or a gradient_clip may cure it"
        )

    def _keep(self, places: list[int]) -> None:
        """Let the other members leave the bundle."""
        if len(places) == len(self.active):
            return
        self.active = [self.active[place] for place in places]
        if self.active:
            self.model.keep(places)
            self.head_optimiser.keep(places)

    def _train_epoch(self, epoch: int) -> list[float]:
        """Each active member's mean loss; not finite where its loss or a weight is not."""
        tables = [self.trials[index].table for index in self.active]
        members = [self.trials[index].member for index in self.active]
        rates = self._head_rates(tables)
        clips = torch.tensor([float(member.setting["gradient_clip"]) for member in members], device=self.device)
        seeds = [member.seed for member in members]
        self._thaw(tables[0])
        self.model.train()
        torch.manual_seed(_stream(seeds[0], epoch))  # of the encoder's dropout; a resumed trial draws the same
        lanes = seeds if len(set(seeds)) > 1 else seeds[:1]
        pad = self.model.encoder.tokenizer.pad_piece
        total = torch.zeros(len(members), device=self.device)
        steps = 0
        frozen = self._is_frozen_epoch(tables[0])
        read = self._inputs(self.data.train, frozen)
        by_length = frozen or not self.model.encoder.padding_free  # heads read padded rows, most encoders need not
        batches = training_batches(read, self.data.task.kind, pad, self.batch_size, lanes, epoch, by_length)
        for batch in prefetched(batches, self.device):
            total += self._train_step(batch, tables[0], rates[steps], clips)
            steps += 1
            if steps % FINITE_CHECK_STEPS == 0 and not bool(total.isfinite().any()):
                break  # nobody is left to train for
        # The last step's weights have given no loss yet, and a class id is finite whatever the scores were.
        healthy = self._weights_are_finite() & total.isfinite()
        return torch.where(healthy, total / steps, math.nan).tolist()

    def _is_frozen_epoch(self, table: Table) -> bool:
        """Whether the encoder is frozen at every step of the epoch that begins."""
        steps = range(self.step, self.step + self._plan.steps_per_epoch)
        return all(table.encoder_is_frozen(step) for step in reversed(steps))  # from the end: what thaws stays so

    def _head_rates(self, tables: Sequence[Table]) -> Tensor:
        """The head's rates in this epoch: (steps, members)."""
        head, first = len(self.groups) - 1, self.step
        steps = range(first, first + self._plan.steps_per_epoch)
        rates = [[table.learning_rate(head, step) for table in tables] for step in steps]
        return torch.tensor(rates, device=self.device)

    def _weights_are_finite(self) -> Tensor:
        """Of each member: (members,) bool."""
        finite = self.head_optimiser.weights.isfinite().all(1)
        if self.trains_encoder:
            norm = nn.utils.get_total_norm([parameter.detach() for parameter in self.model.encoder.parameters()])
            finite = finite & norm.isfinite()
        return finite

    def _train_step(self, batch: Batch, table: Table, rates: Tensor, clips: Tensor) -> Tensor:
        """One optimiser step of every member; their losses."""
        self._thaw(table)
        self.model.rng.begin(self.step)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            scores = self.model(batch)
        losses = self.model.head.loss(scores.float(), batch)
        self.head_optimiser.zero_grad()
        losses.sum().backward()  # type: ignore[no-untyped-call]
        encoder = self.encoder_optimiser
        thawed = encoder if encoder is not None and encoder.gradients() else None
        self._clip(thawed, clips)
        self.head_optimiser.step(rates)
        if thawed is not None:
            thawed.step()
            self.encoder_moved = True
            thawed.zero_grad(set_to_none=True)
        self.step += 1
        return losses.detach()

    def _clip(self, thawed: EncoderAdamW | None, clips: Tensor) -> None:
        """Scale each member's gradient, the encoder's included, to its largest norm; 0 is no clipping."""
        norms = self.head_optimiser.norms()
        if thawed is not None:
            norms = torch.hypot(norms, thawed.norm())
        # As torch.nn.utils.clip_grad_norm_ does it, which adds 1e-6 to the norm.
        factors = torch.where(clips > 0, (clips / (norms + 1e-6)).clamp(max=1.0), 1.0)
        self.head_optimiser.scale(factors)
        if thawed is not None:
            thawed.scale(factors[0])

    def _thaw(self, table: Table) -> None:
        """Set the encoder's rates and freeze the rows that are 0: without a gradient, AdamW skips a parameter."""
        if self.encoder_optimiser is None:
            return
        rates = [table.learning_rate(group, self.step) for group in range(len(self.groups) - 1)]
        for parameters in self.encoder_optimiser.param_groups:
            parameters["lr"] = rates[parameters["layer_group"]]
        for index, group in enumerate(self.groups[:-1]):
            open_row = table.multiplier(index, self.step) != 0.0
            if group.parameters and group.parameters[0].requires_grad != open_row:
                for parameter in group.parameters:
                    parameter.requires_grad_(open_row)
                    parameter.grad = None
        self.model.freeze_encoder(table.encoder_is_frozen(self.step))


def _stream(seed: int, epoch: int) -> int:
    """The seed of an epoch's random numbers: distinct for each (seed, epoch), and inside torch's 63 bits."""
    return (seed * 1_000_003 + epoch) % (1 << 62)
