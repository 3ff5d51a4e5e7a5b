"""The single training loop for all modes and tricks, which the loop reads from the multiplier table.

It trains a bundle: trials of one cell, side by side, on the same frozen encoder (`layers.bundle`). A trial that trains
its encoder is a bundle of one, except LoRA's on a GPU (`layers.side_by_side`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from meltpoint.adapters import modes
from meltpoint.adapters.data.batch import Batch, EncodedSplit
from meltpoint.adapters.data.batching import Inputs, inputs, prefetched, training_batches
from meltpoint.adapters.hardware import GRAPHS, Hardware, is_on, resolve_precision
from meltpoint.adapters.hyperparameters import common_value
from meltpoint.adapters.layers.affine import narrow_norms
from meltpoint.adapters.layers.compact_embedding import CompactEmbedding, pieces_of
from meltpoint.adapters.model import AdaptedModel, Member
from meltpoint.adapters.multiplier_table import MultiplierTable
from meltpoint.adapters.training.epochs import EpochResult, OutOfTimeError, best_epoch
from meltpoint.adapters.training.evaluation import EVALUATION_BATCH, Evaluation, FrozenStates, evaluate, fit_heads
from meltpoint.adapters.training.graphs import CudaRecorder, Recorded
from meltpoint.adapters.training.optimisers import ADAM_RULES, AdamRule, EncoderAdamW, StackedAdamW
from meltpoint.adapters.training.trial_state import EncodedData, GapRule, Outcome, TrialState
from meltpoint.tasks.core.metrics import CALIBRATION, METRICS
from meltpoint.tasks.core.scoring import value
from meltpoint.tasks.core.task import Example

FINITE_CHECK_STEPS = 64  # the interval of checking the loss; each check makes a GPU wait


class Trainer:
    """Training of a bundle: iterate `epochs()`, then read each trial's best weights from `trials`.

    Args:
        members: the trials; they agree on everything that shapes the computation (`settings.bundle_key`).
        frozen_states: the cache of frozen encoders' hidden states, or None to run the encoder each time.
        micro_batch: the maximum number of rows per pass through the model, if a batch does not fit into memory.
            Gradients of several passes add up to the batch's, and evaluation's batches shrink equally. None for whole
            batches.
        recorder: records steps and forward passes that are the same for many batches, for models that allow it; by
            default CUDA graphs, on a GPU unless the environment turns them off (`hardware.GRAPHS`).

    Attributes:
        trials: one per member, in the members' order, including members that have left the bundle.
        active: indices into `trials` of the trials that still train, in the order of the model's members.
        table: the encoder's compact table of pieces; None without one.
        recorder: records steps and forward passes; None if each kernel is started by itself.
        recorded, forward: a step (`_pass`) and the model, run through the recorder.
        clips, total: (active trials,) float32 on the device: each one's `gradient_clip`, and its epoch's summed loss.
        step: optimiser steps so far.
        ends_at: `time.monotonic()` at which training raises `OutOfTimeError`; never by default.
        encoder_moved: whether a step has changed the encoder, so that cached hidden states are no longer valid.
    """

    def __init__(
        self, model: AdaptedModel, data: EncodedData, mode: str, members: Sequence[Member], hardware: Hardware,
        frozen_states: FrozenStates | None = None, micro_batch: int | None = None, recorder: CudaRecorder | None = None,
    ) -> None:  # fmt: skip
        setting = members[0].setting
        self.model, self.data, self.frozen_states = model, data, frozen_states
        self.hardware, self.device = hardware, torch.device(hardware.device)
        self.precision = resolve_precision(str(setting["precision"]), hardware.device)
        self.batch_size = int(common_value(setting, "batch_size"))
        self.micro_batch = micro_batch if micro_batch is not None and micro_batch < self.batch_size else None
        part = (self.micro_batch or self.batch_size) / self.batch_size
        self.evaluation_rows = max(1, int(EVALUATION_BATCH * part))
        if not (model.encoder.static and model.head.static) or self.micro_batch is not None:
            recorder = None
        elif recorder is None and self.device.type == "cuda" and is_on(GRAPHS):
            recorder = CudaRecorder(self.device)
        self.recorder = recorder
        self._opened: dict[tuple[int, bool], Inputs] = {}
        self.recorded = Recorded(self._pass, model.rng, recorder, self._drop_gradients)
        self.forward = Recorded(model, model.rng, recorder)
        self.trains_encoder = modes.get(mode).trains_encoder
        self.watches_calibration = modes.get(mode).fits_head and self.trains_encoder
        trains_matrices = any(own.requires_grad and own.dim() > 1 for own in model.encoder.parameters())
        if self.trains_encoder and trains_matrices and self.precision == "bf16" and self.device.type == "cuda":
            narrow_norms(model.encoder)  # a CPU gains nothing, and trained norms alone need their small steps
        self.table: CompactEmbedding | None = None
        self._open_groups: tuple[bool, ...] = ()
        decay, rule = float(common_value(setting, "weight_decay")), ADAM_RULES[str(common_value(setting, "optimiser"))]
        self.encoder_optimiser = self._prepare_encoder(decay, rule) if self.trains_encoder else None
        self.groups = model.layer_groups()
        self.trials = [TrialState.start(member, mode, len(self.groups), len(data.train.rows)) for member in members]
        self.steps_per_epoch = self.trials[0].table.plan.steps_per_epoch
        self.gap_rule = GapRule(setting)
        self.active = list(range(len(members)))
        decays = torch.tensor([float(common_value(member.setting, "weight_decay")) for member in members])
        self.head_optimiser = StackedAdamW(list(model.own_parameters().values()), decays, rule)
        self.encoder_moved = False
        self.step = 0
        self.ends_at = math.inf
        model.head.weigh([row.label for row in data.train.rows])
        self._place()

    def _place(self) -> None:
        """Put the numbers of the active trials on the device; call it whenever the heads' weights have moved."""
        members = [self.trials[index].member for index in self.active]
        # A mode without gradient steps has no clip.
        clips = [float(each.setting.get("gradient_clip", 0.0)) for each in members]
        self.clips = torch.tensor(clips, device=self.device)
        self.total = torch.zeros(len(members), device=self.device)
        self.recorded.clear()
        self.forward.clear()
        if self.recorder is not None:
            self.recorder.renew()

    def _prepare_encoder(self, weight_decay: float, rule: AdamRule) -> EncoderAdamW | None:
        """Replace the encoder's parameters by the ones that train; return their optimiser, None without any."""
        encoder = self.model.encoder
        if self.model.frozen:
            groups = self.model.layer_groups()[:-1]
            return EncoderAdamW(groups, weight_decay, rule) if any(group.parameters for group in groups) else None
        # Only the task's rows of its table of subword tokens are trained; the result is exactly the same.
        self.table = encoder.compact_pieces(pieces_of(self.data.train, encoder.tokenizer.pad_piece))
        return EncoderAdamW(self.model.layer_groups()[:-1], weight_decay, rule)

    def epochs(self) -> Iterator[list[Outcome]]:
        """Train to the end, and yield each epoch's results."""
        while self.active:
            yield self.epoch()

    def epoch(self) -> list[Outcome]:
        """Train one epoch, score dev, keep the best weights, and return the result of every trial that trained.

        A trial whose loss or weights are no longer finite returns its error and leaves the bundle. A trial also leaves
        the bundle after its last epoch, by its plan or by `patience`.
        """
        with self._recorder_in_use():
            return self._epoch()

    def _recorder_in_use(self) -> AbstractContextManager[None]:
        return nullcontext() if self.recorder is None else self.recorder.used()

    def _epoch(self) -> list[Outcome]:
        epoch = self.step // self.steps_per_epoch + 1
        started = time.perf_counter()
        phase, _ = self.trials[self.active[0]].table.plan.phase_at(self.step)
        losses = self._train(epoch) if phase.fit_c is None else self._fit()
        trained = time.perf_counter()
        outcomes: list[Outcome] = [
            (index, self.trials[index].not_finite(epoch, self.step))
            for index, loss in zip(self.active, losses, strict=True) if not math.isfinite(loss)
        ]  # fmt: skip
        healthy = [member for member, loss in enumerate(losses) if math.isfinite(loss)]
        self._keep(healthy)
        if not self.active:
            return outcomes
        dev = self.evaluate_dev()
        watches_gap = self.gap_rule.watches(self.trials[0].table.plan, self.step)
        train = self._score(self.data.train, self.data.train_examples)[0].metrics if watches_gap else {}
        share = len(self.active)
        seconds = ((trained - started) / share, (time.perf_counter() - trained) / share)
        outcomes += [
            (index, self._remember(member, epoch, losses[healthy[member]], dev[member], train, seconds))
            for member, index in enumerate(self.active)
        ]
        if watches_gap:
            weights = self.head_optimiser.weights
            self.gap_rule.apply(self.trials[0], self.model, self.head_optimiser, self.data.task.metric)
            if self.head_optimiser.weights is not weights:
                self._place()
        for index in self.active:
            self.trials[index].follow_dev(self.data.task.metric)
        self._keep([member for member, index in enumerate(self.active) if epoch < self.trials[index].table.plan.epochs])
        return outcomes

    def _train(self, epoch: int) -> list[float]:
        """Train one pass; return each active trial's mean loss, NaN if its loss or a weight is not finite."""
        trials = [self.trials[index] for index in self.active]
        seeds = [trial.member.seed for trial in trials]
        rates = torch.tensor([trial.head_rates(self.step) for trial in trials]).T.contiguous()
        steps, is_new = 0, True
        self.total.zero_()
        self.model.train()
        # For the encoder's dropout; a resumed trial draws the same masks. Distinct for each epoch, in torch's 63 bits.
        torch.manual_seed((seeds[0] * 1_000_003 + epoch) % (1 << 62))
        for batch in self._batches(epoch, trials[0].is_frozen_epoch(self.step), seeds):
            if is_new:
                self._set_encoder_rates(trials[0].table)
                self.head_optimiser.begin(rates[steps])
                self.model.rng.begin(self.step)
            encoder_trains = self.recorded(batch, self.step, self._open_groups)
            is_new = batch.ends_step
            if not is_new:
                continue  # the gradients of the step's next micro-batch are added to these
            if encoder_trains:
                self._count_encoder_step()
            self.step, steps = self.step + 1, steps + 1
            self._check_time()
            if steps % FINITE_CHECK_STEPS == 0 and not bool(self.total.isfinite().any()):
                break  # no trial is left to train
        # The last step's weights have given no loss yet, and a class id is finite even for scores that are not.
        finite = self.total.isfinite() & self._weights_are_finite()
        return torch.where(finite, self.total / steps, math.nan).tolist()

    def _check_time(self) -> None:
        if time.monotonic() > self.ends_at:
            raise OutOfTimeError

    def _pass(self, batch: Batch) -> bool:
        """The gradients of a batch, and the update if it ends a step; a CUDA graph on a GPU.

        Returns:
            Whether the update included the encoder.
        """
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            scores = self.model(batch)
        losses = self.model.head.loss(scores.float(), batch)
        losses = losses if batch.share == 1.0 else losses * batch.share
        losses.sum().backward()  # type: ignore[no-untyped-call]
        self.total += losses.detach()
        if not batch.ends_step:
            return False
        encoder = self.encoder_optimiser  # None if the encoder is frozen at this step
        encoder = encoder if encoder is not None and encoder.gradients() else None
        norms = self.head_optimiser.norms()  # of each trial's gradient, which includes a trained encoder's
        norms = norms if encoder is None else torch.hypot(norms, nn.utils.get_total_norm(encoder.gradients()))
        # As in torch.nn.utils.clip_grad_norm_, which adds 1e-6 to the norm; 0 means no clipping.
        factors = torch.where(self.clips > 0, (self.clips / (norms + 1e-6)).clamp(max=1.0), 1.0)
        self.head_optimiser.scale(factors)
        if encoder is not None:
            encoder.scale(factors[0])
        self.head_optimiser.step()
        if encoder is None:
            return bool(self.model.beside)
        encoder.step()
        encoder.zero_grad(set_to_none=True)
        return True

    def _drop_gradients(self) -> None:
        self.head_optimiser.zero_grad()
        if self.encoder_optimiser is not None:
            self.encoder_optimiser.zero_grad(set_to_none=True)

    def _count_encoder_step(self) -> None:
        """Count a step that has changed the encoder, on the host."""
        self.encoder_moved = True
        if self.table is not None and self.table.weight.requires_grad:
            assert self.encoder_optimiser is not None, "an optimiser has changed the encoder"
            self.table.decay *= self.encoder_optimiser.decay_of(self.table.weight)

    def _fit(self) -> list[float]:
        """Fit the heads instead of an epoch's steps; return each active trial's mean loss."""
        self.model.freeze_encoder(True)
        read = self._open(self.data.train, frozen=True)
        phases = [self.trials[index].table.plan.phase_at(self.step)[0] for index in self.active]
        strengths = [phase.fit_c for phase in phases if phase.fit_c is not None]
        losses = fit_heads(self.model, read, self.data.task, strengths, self.device, self.precision, self._check_time)
        self.step += self.steps_per_epoch
        return losses

    def _batches(self, epoch: int, frozen: bool, seeds: Sequence[int]) -> Iterator[Batch]:
        """The epoch's batches on the device; one lane per trial if their seeds differ.

        Args:
            frozen: whether the encoder is frozen throughout.
            seeds: the seeds of each active trial's data order.
        """
        encoder = self.model.encoder
        read = self._open(self.data.train, frozen)
        lanes = seeds if len(set(seeds)) > 1 else seeds[:1]
        by_length = frozen or not encoder.padding_free  # heads read padded rows; most encoders need not
        pad, kind = encoder.tokenizer.pad_piece, self.data.task.kind
        batches = training_batches(read, kind, pad, self.batch_size, lanes, epoch, by_length, self.micro_batch)
        return prefetched(batches, self.device)

    def _open(self, split: EncodedSplit, frozen: bool) -> Inputs:
        """A split's inputs, opened once: cached hidden states of a frozen encoder, otherwise subword tokens.

        Hidden states missing from the cache are computed now, together with other workers.

        Args:
            frozen: whether the encoder is frozen; the cache is valid for it until it has moved. Layers that never train
                (`AdaptedModel.starts_at`) are always frozen, for rows that the encoder reads as they are.
        """
        is_part = self.model.starts_at is not None
        is_valid = all(row.is_its_input for row in split.rows) if is_part else frozen and not self.encoder_moved
        cache = self.frozen_states if is_valid else None
        key = id(split), cache is not None
        if key not in self._opened:
            first_pieces = self.model.head.reads == "first" and not is_part
            # `top_k` opens dev after its first epoch, when the model's own encoder is no longer the pretrained one.
            pretrained, layers = self.model.pretrained, self.model.layers_read
            features = None if cache is None else cache.open(pretrained, layers, split, self.data.task, first_pieces)
            read = inputs(split) if features is None else inputs(split, features, first_pieces)
            self._opened[key] = self._prepared(read)
        return self._opened[key]

    def _prepared(self, read: Inputs) -> Inputs:
        """Inputs whose batches are padded to a few widths if steps are recorded."""
        return replace(read, static=self.recorder is not None, most=self.model.encoder.max_pieces)

    def _set_encoder_rates(self, table: MultiplierTable) -> None:
        """Set the encoder's rates and freeze the rows that are 0: without a gradient, AdamW skips a parameter."""
        if not self.trains_encoder:
            return
        if self.encoder_optimiser is not None:
            rates = [table.learning_rate(group, self.step) for group in range(len(self.groups) - 1)]
            self.encoder_optimiser.set_rates(rates)
        for index, group in enumerate(self.groups[:-1]):
            is_open = table.multiplier(index, self.step) != 0.0
            if group.parameters and group.parameters[0].requires_grad != is_open:
                for parameter in group.parameters:
                    parameter.requires_grad_(is_open)
                    parameter.grad = None
        if self.model.encoder_is_frozen != table.encoder_is_frozen(self.step):  # it walks through all modules
            self.model.freeze_encoder(table.encoder_is_frozen(self.step))
        self._open_groups = tuple(table.multiplier(index, self.step) != 0.0 for index in range(len(self.groups) - 1))

    def _weights_are_finite(self) -> Tensor:
        """(active trials,) bool."""
        finite = self.head_optimiser.weights.isfinite().all(1)
        if self.encoder_optimiser is not None:
            norm = nn.utils.get_total_norm([parameter.detach() for parameter in self.model.encoder.parameters()])
            finite = finite & norm.isfinite()
        return finite

    def evaluate_dev(self) -> list[Evaluation]:
        """Score dev with the active trials' weights, on cached hidden states if the encoder is frozen."""
        return self._score(self.data.dev, self.data.dev_examples)

    def _score(self, split: EncodedSplit, examples: list[Example]) -> list[Evaluation]:
        return self.evaluate(split, examples, self._open(split, self.model.encoder_is_frozen))

    def evaluate(self, split: EncodedSplit, examples: list[Example], read: Inputs | None = None) -> list[Evaluation]:
        """Score any split with the active trials' weights, running the encoder unless its inputs are given."""
        task, rows = self.data.task, self.evaluation_rows
        with self._recorder_in_use():
            read = read or self._prepared(inputs(split))
            return evaluate(self.model, task, split, examples, self.device, self.precision, read, rows, self.forward)

    def _remember(
        self, member: int, epoch: int, loss: float, dev: Evaluation, train: dict[str, float],
        seconds: tuple[float, float],
    ) -> EpochResult:  # fmt: skip
        """Record an active trial's epoch, and its weights if they are the best of its last phase so far."""
        trial, metric = self.trials[self.active[member]], self.data.task.metric
        phase, _ = trial.table.plan.phase_at(self.step - 1)
        scores, task = dev.metrics, self.data.task
        if self.watches_calibration and METRICS[CALIBRATION].fits(task):
            gold = [example.label for example in self.data.dev_examples]
            scores = {**scores, CALIBRATION: value(CALIBRATION, task, gold, dev.predictions, dev.probabilities)}
        result = EpochResult(
            epoch=epoch, phase=phase.name, step=self.step, train_loss=loss, dev=scores, train=train,
            encoder_frozen=self.model.encoder_is_frozen, frozen_groups=trial.table.frozen_groups(self.step - 1),
            train_seconds=seconds[0], dev_seconds=seconds[1],
            learning_rate=trial.table.learning_rate(len(self.groups) - 1, self.step - 1),
        )  # fmt: skip
        trial.results.append(result)
        if best_epoch(trial.results, metric, trial.table.plan.phases[-1].name) is result:
            trial.best = (result.dev[metric], epoch)
            trial.best_state = self.weights(member, goes_on=epoch < trial.table.plan.epochs)
            trial.best_moved_encoder = self.encoder_moved or bool(self.model.frozen)
        return result

    def weights(self, member: int, goes_on: bool) -> dict[str, Tensor]:
        """The trained weights of an active trial; the encoder's are not copied after the last epoch."""
        own = self.model.own_weights(member)
        if not self.trains_encoder:
            return own
        if not (self.encoder_moved or self.model.frozen):
            return own | self.model.pretrained_weights()
        return own | self.model.encoder_weights(copied=goes_on)

    def _keep(self, members: list[int]) -> None:
        """Continue with some of the active trials."""
        if len(members) == len(self.active):
            return
        self.active = [self.active[member] for member in members]
        if self.active:
            self.model.keep(members)
            self.head_optimiser.keep(members)
            self._place()
