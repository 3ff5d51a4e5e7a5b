"""Micro-batches: the gradient of a batch in parts is the whole batch's, whatever its loss is the mean of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meltpoint.adapters.data.batch import EncodedSplit, Row
from meltpoint.adapters.data.batching import inputs, training_batches
from meltpoint.adapters.features import reading
from meltpoint.tasks.core.task import Kind

Make = Callable[..., Any]

CASES: list[tuple[str, Kind, str | None]] = [
    ("fine_tuning", "sentence_classification", None),
    ("fine_tuning", "pair_regression", None),
    ("fine_tuning", "sequence_labelling", "linear"),
    ("fine_tuning", "sequence_labelling", "crf"),
    ("feature_extraction", "sequence_labelling", "bilstm_crf"),
    ("feature_extraction", "pair_classification", "esim"),
]


def steps_of(trainer: Any) -> list[list[torch.Tensor]]:
    """The gradients that each step of a trial's first epoch is made with, as the optimisers read them."""
    found = []
    step = trainer.head_optimiser.step

    def watched() -> None:
        encoder = [p.grad for p in trainer.model.encoder.parameters() if p.grad is not None]
        found.append([trainer.head_optimiser.gathered().clone(), *(gradient.clone() for gradient in encoder)])
        step()

    trainer.head_optimiser.step = watched
    trainer.epoch()
    return found


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize(("mode", "kind", "head"), CASES)
def test_the_gradient_in_parts_is_the_whole_batchs_within_float_tolerance(make_trainer: Make, mode, kind, head, rows):
    words = {"batch_size": 5, "dropout": 0.0, "epochs": 1, "learning_rate": 1e-4, "gradient_clip": 0.0, "train": 12}
    words |= {} if mode == "feature_extraction" else {"encoder_dropout": 0.0}
    whole = steps_of(make_trainer(mode, kind, head, **words))
    parts = steps_of(make_trainer(mode, kind, head, micro_batch=rows, **words))
    assert len(parts) == len(whole) == 3, "as many steps, the last of them on two rows"
    for one, two in zip(whole, parts, strict=True):
        assert len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            assert torch.allclose(a, b, rtol=1e-3, atol=1e-5 * float(a.abs().max()) + 1e-7)


def test_parts_with_more_words_weigh_more(make_trainer: Make):
    words = {"batch_size": 5, "train": 5, "micro_batch": 2}
    trainer = make_trainer("feature_extraction", "sequence_labelling", "linear", **words)
    batches = list(trainer._batches(1, True, [0]))
    counts = [int(batch.word_mask.sum()) for batch in batches]
    assert len(set(counts)) > 1
    assert [batch.share for batch in batches] == [count / sum(counts) for count in counts]


def test_every_micro_batch_of_a_step_has_masks_of_its_own_and_the_next_step_others(make_trainer: Make):
    trainer = make_trainer("feature_extraction", dropout=0.5, batch_size=4, micro_batch=2, train=8, epochs=1)
    seen = []
    bits = trainer.model.rng.bits

    def watched(shape: Any, device: torch.device) -> torch.Tensor:
        drawn = bits(shape, device)
        seen.append(tuple(drawn.flatten().tolist()))
        return drawn

    trainer.model.rng.bits = watched
    trainer.epoch()
    assert len(seen) >= 4
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize(
    ("rows", "said", "evaluated"), [(None, None, 64), (4, None, 64), (9, None, 64), (2, 2, 32), (1, 1, 16)]
)
def test_evaluation_shrinks_with_the_micro_batch_and_whole_batches_say_none(make_trainer: Make, rows, said, evaluated):
    trainer = make_trainer("feature_extraction", batch_size=4, micro_batch=rows)
    assert (trainer.micro_batch, trainer.evaluation_rows) == (said, evaluated)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=40), st.integers(1, 12), st.integers(1, 12),
    st.sampled_from(["sequence_labelling", "sentence_classification"]),
)  # fmt: skip
def test_the_parts_of_each_step_are_its_rows_in_order_and_their_shares_add_up_to_one(words, batch, micro, kind):
    labels = kind == "sequence_labelling"
    rows = [
        Row(n, 0, tuple(range(2 + count)), (), tuple(range(1, 1 + count)), (0,) * count)
        if labels
        else Row(n, 0, tuple(range(2 + count)), (), (), 1)
        for n, count in enumerate(words)
    ]
    read = inputs(EncodedSplit(rows, len(rows)))
    whole = [one.rows for one in training_batches(read, kind, 0, batch, [3], 1, True)]
    parts = list(training_batches(read, kind, 0, batch, [3], 1, True, micro))
    assert all(len(part) <= micro for part in parts)
    steps: list[tuple[int, ...]] = [()]
    shares = [0.0]
    for part in parts:
        steps[-1] += part.rows
        shares[-1] += part.share
        if part.ends_step:
            steps.append(())
            shares.append(0.0)
    assert steps == [*whole, ()]
    for step, share in zip(whole, shares, strict=False):
        terms = sum(words[row] for row in step) if labels and len(step) > micro else 1
        assert share == pytest.approx(1.0 if terms else 0.0)


# --- hidden states of a frozen encoder ---


class SmallGpu:
    """A pass that more than some rows do not fit."""

    def __init__(self, most: int, error: RuntimeError | None = None) -> None:
        self.most, self.passes = most, []
        self.error = error or torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    def read(self, rows: list[int]) -> torch.Tensor:
        """(1, positions, 1): two positions a row."""
        if len(rows) > self.most:
            raise self.error
        self.passes.append(len(rows))
        return torch.tensor([float(row) for row in rows for _ in range(2)]).view(1, -1, 1)


@pytest.mark.parametrize("most", [1, 3, 10])
def test_states_that_do_not_fit_at_once_are_encoded_by_halves_in_the_same_order(most):
    gpu = SmallGpu(most)
    found = reading._in_parts(gpu.read, list(range(10)))
    assert found.flatten().tolist() == [float(row) for row in range(10) for _ in range(2)]
    assert sum(gpu.passes) == 10


def test_a_row_that_does_not_fit_by_itself_is_out_of_memory():
    with pytest.raises(torch.OutOfMemoryError):
        reading._in_parts(SmallGpu(0).read, [1, 2])


def test_a_library_that_got_no_memory_is_one_too_and_another_error_is_not():
    for said in ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "cuDNN error: NO"):
        gpu = SmallGpu(3, RuntimeError(said))
        if "ALLOC" in said:
            assert len(reading._in_parts(gpu.read, list(range(10))).flatten()) == 20
        else:
            with pytest.raises(RuntimeError, match="cuDNN error"):
                reading._in_parts(gpu.read, list(range(10)))
