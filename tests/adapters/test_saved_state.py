"""training_state: a trial that goes on from a saved epoch is the undisturbed one, to the last bit."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from meltpoint.adapters.training.saved_state import (
    DamagedStateError,
    read_about,
    read_state,
    restore,
    state_of,
    write_state,
)
from meltpoint.tests.adapters.devices import cpu_draws
from meltpoint.tests.adapters.tiny_tasks import opposite_examples

Make = Callable[..., Any]

GRADUAL = {"gradual_unfreezing": True, "schedule": "slanted_triangular", "discriminative_rates": True}
PLATEAU = {"schedule": "reduce_on_plateau", "reduce_on_plateau__factor": 0.3}
WARMUP = {"schedule": "linear_warmup_decay", "weight_decay": 0.3, "encoder_dropout": 0.2, "dropout": 0.3}
TWO_PHASES = {"epochs": 2, "stack_and_finetune__stack_epochs": 2, "stack_and_finetune__stack_learning_rate": 1e-2}

CASES: dict[str, tuple[str, str, str | None, dict[str, Any]]] = {
    "frozen": ("feature_extraction", "sentence_classification", None, {"epochs": 3}),
    "frozen, words, CRF": ("feature_extraction", "sequence_labelling", "bilstm_crf", {"epochs": 3, "dropout": 0.3}),
    "frozen, pairs": ("feature_extraction", "pair_classification", "esim", {"epochs": 3}),
    "frozen, plateaus": ("feature_extraction", "sentence_classification", None, {"epochs": 5, **PLATEAU}),
    "two phases, plateaus": ("stack_and_finetune", "sentence_classification", "linear", {**TWO_PHASES, **PLATEAU}),
    "fine-tuning": ("fine_tuning", "sentence_classification", None, {"epochs": 3, **WARMUP}),
    "fine-tuning, gradual": ("fine_tuning", "sentence_classification", None, {"epochs": 5, **GRADUAL}),
    "fine-tuning, regression": ("fine_tuning", "pair_regression", None, {"epochs": 3, **WARMUP}),
    "fine-tuning, CRF": ("fine_tuning", "sequence_labelling", "crf", {"epochs": 3, **GRADUAL}),
    "two phases": ("stack_and_finetune", "sequence_labelling", None, {**TWO_PHASES, **WARMUP}),
    "two phases, gradual": ("stack_and_finetune", "sentence_classification", "linear", {**TWO_PHASES, **GRADUAL}),
}  # fmt: skip


def timeless(results: list[Any]) -> list[Any]:
    return [result.model_copy(update={"train_seconds": 0.0, "dev_seconds": 0.0}) for result in results]


def everything(trainer: Any) -> dict[str, torch.Tensor]:
    """All that a trial ends with: weights, moments, and the weights of its best epoch."""
    best = {f"best of all/{name}": weight.clone() for name, weight in trainer.trial.best_state.items()}
    encoder = {name: weight.detach().clone() for name, weight in trainer.model.encoder.state_dict().items()}
    return {**state_of(trainer).tensors, **best, **encoder}


def assert_same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    assert one.keys() == two.keys()
    assert [name for name in one if not torch.equal(one[name], two[name])] == []


def gone_on(make: Callable[[], Any], epochs: int, path: Path) -> Any:
    """A trial that trains some epochs, is saved, and goes on in another trainer, to its end."""
    first = make()
    list(itertools.islice(first.results(), epochs))
    write_state(path, state_of(first), {})
    torch.manual_seed(12345)  # another process's generators stand elsewhere
    second = make()
    restore(second, read_state(path))
    list(second.results())
    return second


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("case", CASES)
def test_a_trial_that_goes_on_after_any_epoch_ends_with_the_same_bits(make_trainer: Make, tmp_path, case, precision):
    mode, kind, head, setting = CASES[case]

    def make() -> Any:
        return make_trainer(mode, kind, head, precision=precision, seed=5, **setting)

    whole = make()
    results = list(whole.results())
    for epochs in range(1, len(results)):
        second = gone_on(make, epochs, tmp_path / f"{epochs}.safetensors")
        assert timeless(second.trial.results) == timeless(results), f"after {epochs} epochs"
        assert second.trial.best == whole.trial.best
        assert_same(everything(second), everything(whole))


@cpu_draws
def test_the_gap_rule_goes_on_with_the_weights_that_it_keeps(make_trainer: Make, tmp_path):
    def make() -> Any:
        return make_trainer(
            "stack_and_finetune", **opposite_examples(), epochs=2, encoder_dropout=0.0, learning_rate=1e-6,
            stack_and_finetune__stack_epochs=40, stack_and_finetune__stack_learning_rate=0.01,
            stack_and_finetune__largest_gap=0.6,
        )  # fmt: skip

    whole = make()
    results = list(whole.results())
    first_phase = sum(result.phase == "stack" for result in results)
    assert 1 < first_phase < 40
    for epochs in (first_phase - 1, first_phase, first_phase + 1):
        second = gone_on(make, epochs, tmp_path / "state.safetensors")
        assert timeless(second.trial.results) == timeless(results)
        assert_same(everything(second), everything(whole))


def test_weights_that_have_not_changed_are_not_written(make_trainer: Make):
    trainer = make_trainer("stack_and_finetune", **TWO_PHASES)
    names = []
    for _ in trainer.results():
        names.append({name.partition("/")[0] for name in state_of(trainer).tensors} - {"best"})
    assert names == [{"head"}] * 2 + [{"head", "encoder", "moments"}] * 2


@pytest.mark.parametrize("mode", ["lora", "norm_bias", "top_k"])
def test_weights_that_never_train_are_not_written_and_not_needed(make_trainer: Make, tmp_path, mode: str):
    def make():
        return make_trainer(mode, head="linear", epochs=3, learning_rate=1e-2)

    whole = make()
    list(whole.results())
    written = {name for name in state_of(whole).tensors if name.startswith("encoder/")}
    frozen = {name for name, own in whole.model.encoder.named_parameters() if id(own) in whole.model.frozen}
    assert written
    assert frozen
    assert not {name.removeprefix("encoder/") for name in written} & frozen
    assert_same(everything(gone_on(make, 1, tmp_path / "state.safetensors")), everything(whole))


# --- the file ---


@pytest.fixture
def saved(make_trainer: Make, tmp_path) -> Path:
    trainer = make_trainer("fine_tuning", epochs=2)
    list(itertools.islice(trainer.results(), 1))
    path = tmp_path / "state.safetensors"
    write_state(path, state_of(trainer), {"trial": "one"})
    return path


def test_a_state_is_a_safetensors_file_with_json_and_nothing_else(saved: Path):
    size = int.from_bytes(saved.read_bytes()[:8], "little")
    header = json.loads(saved.read_bytes()[8 : 8 + size])
    metadata = header.pop("__metadata__")
    assert json.loads(metadata["state"])["about"] == {"trial": "one"} == read_about(saved)
    assert {entry["dtype"] for entry in header.values()} <= {"F32", "BF16", "F64", "I64", "U8"}
    assert [path.name for path in saved.parent.iterdir()] == [saved.name], "no temporary file stays"


@pytest.mark.parametrize("place", [0.0, 0.3, 0.6, 0.999])
def test_one_flipped_bit_anywhere_is_found(saved: Path, place: float):
    content = bytearray(saved.read_bytes())
    content[int(place * len(content))] ^= 1
    saved.write_bytes(content)
    with pytest.raises(DamagedStateError):
        read_state(saved)


@pytest.mark.parametrize("kept", [0, 4, 1000, -1])
def test_a_file_that_was_cut_off_is_found(saved: Path, kept: int):
    saved.write_bytes(saved.read_bytes()[:kept])
    with pytest.raises(DamagedStateError):
        read_state(saved)


def test_a_write_that_fails_leaves_the_file_before(saved: Path, make_trainer: Make, monkeypatch):
    before = saved.read_bytes()

    def half(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("meltpoint.adapters.training.saved_state.save_file", half)
    with pytest.raises(OSError, match="No space"):
        write_state(saved, read_state(saved), {})
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
