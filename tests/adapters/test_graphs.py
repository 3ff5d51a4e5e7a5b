"""CUDA graphs of steps and forward passes: a recorder on the CPU stands in, and on a GPU the real one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from meltpoint.adapters.data.batch import Row
from meltpoint.adapters.data.batching import collate, static_width
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.layers.affine import narrow_norms
from meltpoint.adapters.training.graphs import CudaRecorder
from meltpoint.adapters.training.trainer import Trainer
from meltpoint.tests.adapters.devices import HARDWARE, ON_GPU

T = TypeVar("T")


class FakeRecorder:
    """What CUDA graphs do, on a CPU: work that is recorded runs when it is asked to, on the same tensors."""

    def __init__(self) -> None:
        self.recorded = self.runs = 0

    def used(self) -> AbstractContextManager[None]:
        return nullcontext()

    def renew(self) -> None: ...

    def plainly(self, work: Callable[[], T]) -> T:
        return work()

    def record(self, work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        found, waiting = work(), [True]  # a CPU cannot record without running, so the first run has been
        self.recorded += 1

        def run() -> None:
            self.runs += 1
            if waiting:
                waiting.clear()
                return
            again = work()
            if isinstance(found, Tensor):
                found.copy_(again)

        return found, run


class CountingRecorder(CudaRecorder):
    """CUDA graphs, counted."""

    def __init__(self) -> None:
        super().__init__(torch.device(HARDWARE.device))
        self.recorded = self.runs = 0

    def record(self, work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        found, run = super().record(work)
        self.recorded += 1

        def counted() -> None:
            self.runs += 1
            run()

        return found, counted


def a_recorder() -> FakeRecorder | CountingRecorder:
    return CountingRecorder() if ON_GPU else FakeRecorder()


class Refuses(FakeRecorder):
    """The same batches, each run plainly."""

    def plainly(self, work: Callable[[], T]) -> T:
        raise RuntimeError("called a synchronizing CUDA operation")


Make = Callable[..., Trainer]

CASES: dict[str, dict[str, Any]] = {
    "fine_tuning": {"mode": "fine_tuning", "head": "linear"},
    "fine_tuning pooling": {"mode": "fine_tuning", "head": "pooling"},
    "words": {"mode": "fine_tuning", "head": "linear", "kind": "sequence_labelling"},
    "pairs": {"mode": "fine_tuning", "head": "native", "kind": "pair_classification"},
    "scores": {"mode": "fine_tuning", "head": "linear", "kind": "pair_regression"},
    "lora": {"mode": "lora", "head": "linear"},
    "top_k": {"mode": "top_k", "head": "linear", "top_k.k": 1},
    "norm_bias": {"mode": "norm_bias", "head": "linear"},
    "lp_ft": {"mode": "lp_ft", "head": "linear"},
    "unfreezing": {"mode": "fine_tuning", "head": "linear", "gradual_unfreezing": True},
    "frozen": {"mode": "feature_extraction", "head": "bilstm"},
    "stack": {"mode": "stack_and_finetune", "head": "bilstm"},
    "moments in bf16": {"mode": "fine_tuning", "head": "linear", "optimiser": "adamw_bf16"},
    "bert_adam": {"mode": "fine_tuning", "head": "mlp", "optimiser": "bert_adam"},
    "focal": {"mode": "fine_tuning", "head": "linear", "focal_gamma": 2.0, "class_weights": "balanced"},
}


def trained(make: Make, recorder: CudaRecorder | None, dropouts: tuple[float, float] = (0, 0), **asked: Any) -> Trainer:
    """Three epochs of six batches with a smaller last one; the dropout of the head and of an encoder that trains."""
    asked["dropout"] = dropouts[0]
    if asked.get("mode") != "feature_extraction":
        asked["encoder_dropout"] = dropouts[1]
    trainer = make(train=22, dev=9, batch_size=4, recorder=recorder, **{"epochs": 3, **asked})
    list(trainer.epochs())
    return trainer


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: own.detach() for name, own in trainer.model.state_dict().items()}


@pytest.mark.parametrize("case", CASES)
def test_recorded_steps_have_the_bits_of_plain_steps(make_trainer: Make, case: str):
    recorder = a_recorder()
    recorded = trained(make_trainer, recorder, (0.3, 0.2), **CASES[case])
    plain = trained(make_trainer, Refuses(), (0.3, 0.2), **CASES[case])
    assert recorder.runs > recorder.recorded > 0
    for name, own in weights(plain).items():
        assert torch.equal(own, weights(recorded)[name]), name
    assert [r.dev for r in recorded.trials[0].results] == [r.dev for r in plain.trials[0].results]


# A solver's last digits decide where lp_ft starts, and bf16 rounds more than last digits.
@pytest.mark.parametrize("case", sorted(CASES.keys() - {"lp_ft", "moments in bf16"}))
def test_wider_padding_changes_nothing_but_rounding(make_trainer: Make, case: str):
    recorded = trained(make_trainer, a_recorder(), **CASES[case])
    plain = trained(make_trainer, None, **CASES[case])
    for name, own in weights(plain).items():
        if name.endswith("key.bias"):
            continue  # it cancels in the softmax, so its gradient is rounding alone
        torch.testing.assert_close(weights(recorded)[name], own, atol=2e-4, rtol=1e-3, msg=name)


@pytest.mark.parametrize("family", ["bert", "modernbert", "deberta-v2"])
def test_narrow_norms_round_states_and_change_nothing_in_float32(load_tiny: Callable[[str], Encoder], family: str):
    encoder = load_tiny(family)
    row = Row(0, 0, (*encoder.tokenizer.sentence("the old harbour was quiet", 32)[0],), (), (), None)
    batch = collate([row], [0], encoder.tokenizer.pad_piece, "sentence_classification")
    expected, names = encoder(batch), list(encoder.state_dict())
    narrow_norms(encoder)
    assert all(torch.equal(one, two) for one, two in zip(encoder(batch), expected, strict=True))
    with torch.autocast("cpu", torch.bfloat16):
        found = encoder.top(batch)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected[-1], atol=0.1, rtol=0.1)
    assert list(encoder.state_dict()) == names


@pytest.mark.parametrize("head", ["linear", "pooling", "native", "mlp", "bilstm"])
@pytest.mark.parametrize("mode", ["fine_tuning", "lora"])
def test_heads_train_on_narrow_states_as_on_wide_ones(make_trainer: Make, mode: str, head: str):
    losses = []
    for is_narrow in (False, True):
        trainer = make_trainer(mode, head=head, precision="bf16", dropout=0.0, encoder_dropout=0.0, learning_rate=1e-3)
        if is_narrow:
            narrow_norms(trainer.model.encoder)
        losses.append([result.train_loss for result in trainer.results()])
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


def test_each_shape_is_recorded_once(make_trainer: Make):
    recorder = a_recorder()
    trainer = trained(make_trainer, recorder, epochs=6)
    shapes = {(len(batch), batch.pieces.shape[1]) for epoch in (1, 2) for batch in trainer._batches(epoch, False, [0])}
    assert recorder.recorded <= len(shapes) + 3, "one of each shape of training, and at most three of dev"
    assert recorder.runs >= 6 * 6 - len(shapes)


def test_a_model_that_makes_the_host_wait_trains_without_graphs(make_trainer: Make):
    trainer = make_trainer(
        train=22, dev=9, batch_size=4, epochs=1, recorder=Refuses(), dropout=0.0, encoder_dropout=0.0
    )
    before = weights(trainer)
    assert trainer.recorded.refusal is None
    list(trainer.epochs())
    assert trainer.recorded.refusal == "no CUDA graphs: in each step, the host waits for the GPU"
    assert any(not torch.equal(own, before[name]) for name, own in weights(trainer).items())


def test_other_errors_of_the_first_batch_are_raised(make_trainer: Make):
    class Fails(FakeRecorder):
        def plainly(self, work: Callable[[], T]) -> T:
            raise RuntimeError("CUDA error: device-side assert triggered")

    with pytest.raises(RuntimeError, match="device-side assert"):
        trained(make_trainer, Fails())


@pytest.mark.parametrize("asked", [
    {"head": "esim", "kind": "pair_classification"}, {"head": "crf", "kind": "sequence_labelling"}, {"micro_batch": 2},
    {"checkpoints": True},
])  # fmt: skip
def test_what_cannot_be_recorded_is_not(make_trainer: Make, asked: dict[str, Any]):
    recorder = a_recorder()
    trained(make_trainer, recorder, epochs=1, **asked)
    assert (recorder.recorded, recorder.runs) == (0, 0)


@pytest.mark.parametrize(("longest", "most", "width"), [(50, 50, 50), (50, 60, 60), (50, 512, 64), (70, 64, 70)])
def test_a_static_width_has_no_position_that_the_encoder_lacks(longest: int, most: int, width: int):
    assert static_width(longest, most) == width


@given(st.integers(1, 5000))
def test_a_static_width_is_little_wider_and_one_of_few(longest: int):
    width = static_width(longest)
    assert longest <= width <= max(longest + 15, 1.25 * longest + 1)
    assert width % 16 == 0
    assert static_width(width) == width
    assert len({static_width(length) for length in range(1, longest + 1)}) <= 4 * longest.bit_length()


def test_when_weights_move_all_is_forgotten_and_the_recorder_begins_anew(make_trainer: Make):
    class Renewed(type(a_recorder())):  # type: ignore[misc]
        renewals = 0

        def renew(self) -> None:
            super().renew()
            self.renewals += 1

    recorder = Renewed()
    trainer = trained(make_trainer, recorder, epochs=2)
    before, runs = recorder.renewals, recorder.recorded
    trainer._place()
    assert recorder.renewals == before + 1
    assert not trainer.recorded._known
    assert not trainer.forward._known
    assert runs > 0
