"""The rungs between ❄ and 🔥, against references: scikit-learn, peft, and the two ends of the ladder."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from meltpoint.adapters import encoders, modes
from meltpoint.adapters.data.batching import collate
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.exported_model import load_folder, save_folder
from meltpoint.adapters.settings import check_mode
from meltpoint.adapters.training.saved_state import restore, state_of
from meltpoint.tasks.core.task import KINDS, Kind

Make = Callable[..., Any]
TUNED = ("norm_bias", "lora", "top_k", "lp_ft")


def weights(trainer: Any) -> dict[str, torch.Tensor]:
    return dict(trainer.trial.best_state)


def trained(trainer: Any) -> Any:
    list(trainer.results())
    return trainer


def same(one: Any, two: Any) -> bool:
    first, second = weights(one), weights(two)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


# --- top_k ---


@pytest.mark.parametrize("kind", ["sentence_classification", "sequence_labelling"])
def test_no_layer_is_feature_extraction_on_the_top_layer_bit_for_bit(make_trainer: Make, kind: Kind):
    setting = {"kind": kind, "head": "linear", "epochs": 3, "dropout": 0.2}
    frozen = trained(make_trainer("feature_extraction", feature_extraction__layers="top", **setting))
    none = trained(make_trainer("top_k", top_k__k=0, **setting))
    assert same(frozen, none)
    assert [r.dev for r in frozen.trial.results] == [r.dev for r in none.trial.results]


@pytest.mark.parametrize("k", [3, 9])
def test_all_layers_are_fine_tuning_bit_for_bit(make_trainer: Make, k: int):
    setting = {"head": "linear", "epochs": 2, "encoder_dropout": 0.1, "learning_rate": 1e-3}
    assert same(trained(make_trainer("fine_tuning", **setting)), trained(make_trainer("top_k", top_k__k=k, **setting)))


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra", "deberta-v2", "modernbert"])
@pytest.mark.parametrize("kind", ["sentence_classification", "sequence_labelling"])
def test_the_cached_states_below_train_as_the_whole_encoder_does(
    make_trainer: Make, load_tiny: Callable[[str], Encoder], kept_states: Any, family: str, kind: Kind
):
    setting = {"kind": kind, "head": "linear", "epochs": 2, "encoder_dropout": 0.0, "top_k__k": 1}
    setting["learning_rate"] = 1e-3
    alone = trained(make_trainer("top_k", encoder=load_tiny(family), **setting))
    cached = trained(make_trainer("top_k", encoder=load_tiny(family), frozen_states=kept_states, **setting))
    # The tiny DeBERTa has a convolution at its first layer, so it cannot start above it; it then runs whole.
    assert (cached.model.starts_at is None) == (family == "deberta-v2")
    assert kept_states.opened == (0 if family == "deberta-v2" else 2)
    for name, weight in weights(alone).items():
        torch.testing.assert_close(weights(cached)[name], weight, rtol=1e-3, atol=1e-5)


def test_a_trial_that_needs_a_lower_layer_leaves_the_cached_states_as_the_pretrained_encoder_has_them(
    make_trainer: Make, kept_states: Any
):
    setting = {"head": "linear", "epochs": 2, "learning_rate": 1e-2, "frozen_states": kept_states}
    before = trained(make_trainer("top_k", top_k__k=1, **setting))
    trained(make_trainer("top_k", top_k__k=2, **setting))  # rewrites the entry, with the layers that it has
    after = trained(make_trainer("top_k", top_k__k=1, **setting))
    assert [r.dev for r in before.trial.results] == [r.dev for r in after.trial.results]
    assert same(before, after)


def test_only_the_top_layer_changes_and_only_it_is_kept(make_trainer: Make, load_tiny: Callable[[str], Encoder]):
    before = {name: own.clone() for name, own in load_tiny("bert").named_parameters()}
    trainer = trained(make_trainer("top_k", head="linear", top_k__k=1, learning_rate=1e-2))
    moved = {name for name, own in trainer.model.encoder.named_parameters() if not torch.equal(own, before[name])}
    top = max(int(name.split(".layer.")[1].split(".")[0]) for name in before if ".layer." in name)
    assert moved
    assert all(f".layer.{top}." in name for name in moved)
    assert {name.removeprefix("encoder.") for name in weights(trainer) if name.startswith("encoder.")} >= moved
    assert all(f".layer.{top}." in name for name in weights(trainer) if name.startswith("encoder."))


def test_frozen_layers_have_no_dropout(make_trainer: Make):
    model = make_trainer("top_k", head="linear", top_k__k=1, encoder_dropout=0.5).model.train()
    at = {name: module.training for name, module in model.encoder.named_modules() if isinstance(module, nn.Dropout)}
    assert {on for name, on in at.items() if ".layer.1." in name} == {True}
    assert {on for name, on in at.items() if ".layer.1." not in name} == {False}


# --- norm_bias ---


def test_exactly_norms_and_biases_train(make_trainer: Make, load_tiny: Callable[[str], Encoder]):
    before = {name: own.clone() for name, own in load_tiny("bert").named_parameters()}
    trainer = trained(make_trainer("norm_bias", head="linear", learning_rate=1e-2))
    expected = {name for name in before if name.endswith(".bias") or "LayerNorm" in name}
    opened = {name for name, own in trainer.model.encoder.named_parameters() if own.requires_grad}
    moved = {name for name, own in trainer.model.encoder.named_parameters() if not torch.equal(own, before[name])}
    assert opened == expected
    # A key's bias adds the same number to all of a query's scores, so it has no gradient.
    assert expected - moved <= {name for name in expected if "key.bias" in name}
    assert moved <= expected


def test_biases_with_longer_names_train_too(elmo: Encoder):
    """ELMo's two directions have biases of their own; DeBERTa's first version has `q_bias` and `v_bias`."""
    adapt = modes.get("norm_bias").adapt
    assert adapt is not None
    adapt(elmo, {})
    opened = {name for name, own in elmo.named_parameters() if own.requires_grad}
    assert opened == {name for name, _ in elmo.named_parameters() if name.endswith("bias")}
    assert sum(name.endswith("forward_bias") for name in opened) == 2


def test_an_encoder_without_norms_and_biases_is_refused():
    class Bare(nn.Module):
        revision = "a folder"

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2, bias=False)

    adapt = modes.get("norm_bias").adapt
    assert adapt is not None
    with pytest.raises(ValueError, match="a folder has no biases and no layer norms, so norm_bias cannot train it"):
        adapt(Bare(), {})  # type: ignore[arg-type]


# --- lora ---


def test_ten_steps_of_lora_have_the_losses_of_a_plain_loop_with_peft(make_trainer: Make, tiny_folder: Any):
    rate, folder = 1e-2, tiny_folder("bert")
    trainer = make_trainer(
        "lora", head="linear", epochs=10, batch_size=16, learning_rate=rate, dropout=0.0, encoder_dropout=0.0,
        weight_decay=0.0, gradient_clip=0.0, lora__rank=4,
    )  # fmt: skip
    plain = transformers.AutoModel.from_pretrained(folder, add_pooling_layer=False, attn_implementation="eager")
    config = peft.LoraConfig(r=4, lora_alpha=32, target_modules="all-linear")
    other = peft.get_peft_model(plain, config)
    mine = dict(trainer.model.encoder.model.named_parameters())
    with torch.no_grad():  # the same initial matrices
        for name, own in other.base_model.model.named_parameters():
            own.copy_(mine[name])
    head = nn.Linear(trainer.model.encoder.dim, trainer.data.task.outputs)
    with torch.no_grad():
        head.weight.copy_(trainer.model.head.scores.linear.weight[0])
        head.bias.copy_(trainer.model.head.scores.linear.bias[0])
    batch = collate(
        trainer.data.train.rows, range(10), trainer.model.encoder.tokenizer.pad_piece, trainer.data.task.kind
    )
    optimiser = torch.optim.AdamW(
        [own for own in (*other.parameters(), *head.parameters()) if own.requires_grad], lr=rate, weight_decay=0.0
    )
    expected = []
    for _ in range(10):
        inputs = {"input_ids": batch.pieces, "attention_mask": batch.piece_mask.long()}
        segments = {} if batch.segments is None else {"token_type_ids": batch.segments}
        loss = nn.functional.cross_entropy(head(other(**inputs, **segments).last_hidden_state[:, 0]), batch.labels)
        expected.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    losses = [result.train_loss for result in trainer.results()]
    np.testing.assert_allclose(losses, expected, atol=1e-5)
    assert expected[-1] < expected[0]


def test_saved_lora_is_merged_and_loads_in_transformers_and_in_peft(
    make_trainer: Make, tiny_folder: Any, tmp_path: Path
):
    trainer = trained(make_trainer("lora", head="linear", learning_rate=1e-2))
    encoder = trainer.model.encoder.eval()
    batch = collate(trainer.data.dev.rows, range(6), encoder.tokenizer.pad_piece, trainer.data.task.kind)
    inputs = {"input_ids": batch.pieces, "attention_mask": batch.piece_mask.long(), "token_type_ids": batch.segments}
    encoder.save(tmp_path / "merged")
    encoder.save_lora(tmp_path / "adapter")
    merged = transformers.AutoModel.from_pretrained(tmp_path / "merged", add_pooling_layer=False)
    base = transformers.AutoModel.from_pretrained(tiny_folder("bert"), add_pooling_layer=False)
    untouched = copy.deepcopy(base).eval()
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "adapter")
    with torch.no_grad():
        expected = encoder.top(batch)[batch.piece_mask]
        for model in (merged.eval(), adapted.eval()):
            torch.testing.assert_close(model(**inputs).last_hidden_state[batch.piece_mask], expected, rtol=0, atol=1e-5)
        assert not torch.allclose(untouched(**inputs).last_hidden_state[batch.piece_mask], expected, atol=1e-3)
    assert not any("lora" in name for name in merged.state_dict())


def test_lora_refuses_an_encoder_outside_transformers_before_the_first_trial(elmo_folder: Path):
    reference = encoders.resolve(f"elmo:{elmo_folder}", "sentence_classification")
    with pytest.raises(ValueError, match=r"Mode 'lora' needs an encoder of transformers, .*--mode .*norm_bias"):
        check_mode(reference, "lora", "linear", "sentence_classification")


# --- probe ---


def states_of(trainer: Any, split: Any, layer: int) -> list[torch.Tensor]:
    """Each row's states of one layer, without padding, from the encoder alone."""
    encoder, task = trainer.model.encoder, trainer.data.task
    found = []
    for row in range(len(split.rows)):
        batch = collate(split.rows, [row], encoder.tokenizer.pad_piece, task.kind)
        with torch.no_grad():
            found.append(encoder.read(batch)[layer][0])
    return found


def by_label(c: float) -> Any:
    return LogisticRegression(C=c, max_iter=1000)


@pytest.mark.parametrize(
    ("kind", "head", "setting", "layer", "vectors", "model"),
    [
        (
            "sentence_classification", "pooling", {"pooling__kind": "mean", "probe__depth": 0.5, "probe__c": 0.3}, 1,
            lambda states, row: states.mean(0)[None], by_label(0.3),
        ),
        (
            "sequence_labelling", "linear", {"probe__c": 0.5}, -1,
            lambda states, row: states[list(row.word_starts)], by_label(0.5),
        ),
        (
            "pair_regression", "pooling", {"pooling__kind": "max", "probe__c": 0.1}, -1,
            lambda states, row: states.amax(0)[None], Ridge(alpha=10.0),
        ),
    ],
    ids=["sentences", "words", "scores"],
)  # fmt: skip
def test_a_probe_is_scikit_learns_on_the_standardised_vectors_of_its_layer(
    make_trainer: Make, kind: Kind, head: str, setting: dict[str, Any], layer: int, vectors: Any, model: Any
):
    trainer = make_trainer("probe", kind=kind, head=head, train=40, dev=12, **setting)
    (result,) = trainer.results()
    assert result.step == trainer.steps_per_epoch
    x, z = (
        torch.cat([vectors(*pair) for pair in zip(states_of(trainer, split, layer), split.rows, strict=True)]).numpy()
        for split in (trainer.data.train, trainer.data.dev)
    )
    gold = [row.label for row in trainer.data.train.rows]
    pipeline = make_pipeline(StandardScaler(), model)
    pipeline.fit(x, [label for labels in gold for label in labels] if kind == "sequence_labelling" else gold)
    (found,) = trainer.evaluate(trainer.data.dev, trainer.data.dev_examples)
    predictions = np.hstack(found.predictions)
    np.testing.assert_allclose(predictions, pipeline.predict(z), atol=1e-3 if kind == "pair_regression" else 0)
    if found.probabilities:
        np.testing.assert_allclose(found.probabilities, pipeline.predict_proba(z), atol=1e-4)


OTHER_KINDS = [kind for kind in KINDS if kind not in ("sentence_classification", "sequence_labelling")]


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_every_kind_of_task_can_be_probed_and_learns_its_training_data(make_trainer: Make, kind: Kind):
    head = modes.get("probe").default_heads.joint[kind].name
    trainer = make_trainer("probe", kind=kind, head=head, train=16, dev=16, probe__c=1e4)
    (result,) = trainer.results()
    assert result.dev[trainer.data.task.metric] > 0.8  # the tiny examples of both splits are the same


def test_a_class_without_examples_is_never_predicted(make_trainer: Make, make_examples: Make):
    examples = [example for example in make_examples("sentence_classification", 20) if example.label != 0]
    trainer = make_trainer("probe", head="pooling", train=examples, dev=6)
    list(trainer.results())
    (found,) = trainer.evaluate(trainer.data.dev, trainer.data.dev_examples)
    assert 0 not in found.predictions


def test_probes_side_by_side_are_the_probes_alone(make_trainer: Make, make_stack: Make):
    settings = [{"probe.c": c, "pooling.kind": "mean"} for c in (0.01, 10.0)]
    stack = make_stack("sentence_classification", "pooling", [(0, one) for one in settings], mode="probe")
    list(stack.epochs())
    for trial, setting in zip(stack.trials, settings, strict=True):
        alone = trained(make_trainer("probe", head="pooling", **{k.replace(".", "__"): v for k, v in setting.items()}))
        assert all(torch.equal(trial.best_state[name], own) for name, own in weights(alone).items())


def test_a_probe_has_no_hyperparameters_of_gradient_steps(make_trainer: Make):
    with pytest.raises(ValueError, match="learning_rate has no place in a setting of probe"):
        make_trainer("probe", head="pooling", learning_rate=1e-3)


def test_a_head_that_is_not_linear_is_refused_with_those_that_are(tiny_folder: Any):
    reference = encoders.resolve(f"hf:{tiny_folder('bert')}", "sentence_classification")
    with pytest.raises(
        ValueError, match=r"Mode 'probe' fits a linear head, which bcn is not; use --head linear or pooling or"
    ):
        check_mode(reference, "probe", "bcn", "sentence_classification")


# --- lp_ft ---


@pytest.mark.parametrize("then", ["fine_tuning", "lora"])
def test_the_first_phase_is_the_probe_and_then_the_encoder_trains(make_trainer: Make, then: str):
    setting = {"head": "pooling", "train": 24, "pooling__kind": "mean"}
    probe = trained(make_trainer("probe", probe__c=0.2, **setting))
    both = make_trainer("lp_ft", lp_ft__c=0.2, lp_ft__then=then, learning_rate=1e-2, **setting)
    first, *others = both.results()
    assert first.phase == "probe"
    assert first.encoder_frozen
    assert first.dev.items() > probe.trial.results[0].dev.items()
    assert [result.phase for result in others] == ["train"] * 2
    assert all(0 <= result.dev["calibration_error"] <= 1 for result in (first, *others))
    assert both.encoder_moved
    assert both.trial.best[1] > 1  # only the last phase is kept


@pytest.mark.parametrize("kind", ["mean", "max"])
def test_a_state_that_hardly_varies_does_not_keep_the_second_phase_from_training(
    make_trainer: Make, load_tiny: Callable[[str], Encoder], kind: str
):
    """MiniLM's top layer norm has weights of 1e-33; standardised, their states had weights of 1e31 in the head."""
    encoder = load_tiny("bert")
    norm = [module for module in encoder.modules() if isinstance(module, nn.LayerNorm)][-1]
    norm.weight.data[:3], norm.bias.data[:3] = 1e-33, 0.0
    setting = {"head": "pooling", "train": 24, "pooling__kind": kind, "dropout": 0.0, "epochs": 8}
    tuned = make_trainer("lp_ft", encoder=encoder, lp_ft__c=1e-3, learning_rate=1e-3, **setting)
    _, second, *others = tuned.results()
    assert all(float(weight.detach().abs().max()) < 100 for weight in tuned.model.own_parameters().values())
    assert others[-1].train_loss < second.train_loss / 2


# --- every rung ---


@pytest.mark.parametrize("mode", TUNED)
def test_a_resumed_rung_has_the_same_bits(make_trainer: Make, mode: str):
    setting = {"mode": mode, "head": "pooling", "epochs": 3, "learning_rate": 1e-2, "dropout": 0.3}
    whole, cut, rest = (make_trainer(**setting) for _ in range(3))
    list(whole.results())
    next(iter(cut.results()))
    state = state_of(cut)
    restore(rest, state)
    list(rest.results())
    assert same(whole, rest)
    assert [r.dev for r in whole.trial.results] == [r.dev for r in rest.trial.results]


@pytest.mark.parametrize("mode", [*TUNED, "probe"])
def test_a_rungs_exported_folder_predicts_as_the_trained_model(make_trainer: Make, mode: str, tmp_path: Path):
    trainer = trained(make_trainer(mode, head="pooling"))
    trainer.model.load_trained([trainer.trial.best_state])
    (expected,) = trainer.evaluate(trainer.data.dev, trainer.data.dev_examples)
    task, setting = trainer.data.task, trainer.setting
    save_folder(tmp_path / "model", trainer.model, task, mode, "pooling", setting, "fp32", {})
    model = load_folder(tmp_path / "model")
    texts = [example.texts[0] for example in trainer.data.dev_examples]
    np.testing.assert_allclose(model.predict_proba(texts), expected.probabilities, atol=1e-5)
    assert model.predict(texts) == [task.labels[int(label)] for label in expected.predictions]


@pytest.mark.parametrize("mode", ["norm_bias", "lora", "top_k"])
def test_a_rung_keeps_only_the_weights_that_it_trained(make_trainer: Make, mode: str):
    trainer = trained(make_trainer(mode, head="linear"))
    kept = sum(weight.numel() for weight in weights(trainer).values())
    groups = trainer.model.layer_groups()
    assert kept == sum(own.numel() for group in groups for own in group.parameters)
    assert kept < 0.8 * sum(own.numel() for own in trainer.model.parameters())
    fresh = make_trainer(mode, head="linear")
    fresh.model.load_trained([trainer.trial.best_state])
    assert fresh.evaluate_dev()[0].metrics[trainer.data.task.metric] == trainer.trial.best[0]
