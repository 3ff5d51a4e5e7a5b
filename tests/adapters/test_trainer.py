"""The one training loop: repeatable to the last bit, true to the table, and frozen means untouched."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from meltpoint.adapters.data.batching import training_batches
from meltpoint.adapters.training import trainer as loop
from meltpoint.adapters.training.epochs import EpochResult
from meltpoint.adapters.training.evaluation import Evaluation
from meltpoint.adapters.training.trainer import Trainer
from meltpoint.adapters.training.trial_state import NotFiniteError
from meltpoint.tasks.core.task import KINDS, Kind

Make = Callable[..., Any]
GRADUAL = {"gradual_unfreezing": True}  # one group thaws each epoch: head, layer_2, layer_1, embeddings


def train(trainer: Trainer) -> list[EpochResult]:
    return list(trainer.results())


def timeless(results: list[EpochResult]) -> list[EpochResult]:
    return [result.model_copy(update={"train_seconds": 0.0, "dev_seconds": 0.0}) for result in results]


def group_weights(trainer: Trainer) -> list[list[Tensor]]:
    return [[parameter.detach().clone() for parameter in group.parameters] for group in trainer.groups]


def equal(one: list[Tensor], two: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def watch_steps(trainer: Trainer, look: Callable[[], None]) -> None:
    """Call `look` after every backward pass, right before the optimiser's step."""
    step = trainer.head_optimiser.step

    def watched() -> None:
        look()
        step()

    trainer.head_optimiser.step = watched  # type: ignore[method-assign]


def gradients_of(trainer: Trainer) -> list[Tensor]:
    """Every gradient, the head's first."""
    encoder = [p.grad for p in trainer.model.encoder.parameters() if p.grad is not None]
    return [trainer.head_optimiser.gathered(), *encoder]


def norm_of(trainer: Trainer) -> float:
    """Of every gradient as the optimisers will read it."""
    head, *encoder = gradients_of(trainer)
    return float(torch.nn.utils.get_total_norm([head, *encoder]))


def score_epochs(monkeypatch: pytest.MonkeyPatch, scores: list[float]) -> None:
    """Let the epochs' dev scores be these."""
    given: Iterator[float] = iter(scores)
    monkeypatch.setattr(loop, "evaluate", lambda *args: [Evaluation([], [], {"accuracy": next(given)})])


# --- the same again ---


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("mode", ["feature_extraction", "fine_tuning", "stack_and_finetune"])
def test_the_same_seed_gives_the_same_epochs_and_weights_to_the_last_bit(make_trainer: Make, mode: str, precision: str):
    trial = {"mode": mode, "precision": precision, "seed": 3, "dropout": 0.3, "schedule": "linear_warmup_decay"}
    first = make_trainer(**trial)
    results = train(first)
    second = make_trainer(**trial)
    assert timeless(train(second)) == timeless(results)
    assert first.trial.best == second.trial.best
    assert first.trial.best_state.keys() == second.trial.best_state.keys()
    assert all(
        torch.equal(first.trial.best_state[name], second.trial.best_state[name]) for name in first.trial.best_state
    )


# --- frozen means untouched ---


def test_the_order_of_the_data_depends_on_the_seed_and_the_epoch(make_trainer: Make):
    def orders(seed: int) -> list[tuple[int, ...]]:
        trainer = make_trainer(seed=seed, train=16, epochs=2)
        seen: list[tuple[int, ...]] = []
        trainer.model.register_forward_pre_hook(
            lambda model, inputs: seen.append(inputs[0].rows) if model.training else None
        )
        train(trainer)
        return seen

    first = orders(0)
    assert first == orders(0)
    assert first != orders(1)
    assert sorted(itertools.chain(*first[:4])) == list(range(16))
    assert first[:4] != first[4:]


def test_gradual_unfreezing_changes_one_more_group_each_epoch_and_leaves_the_others_bit_for_bit(make_trainer: Make):
    trainer = make_trainer(epochs=4, weight_decay=0.5, **GRADUAL)
    before, changed = group_weights(trainer), []
    for _ in trainer.results():
        after = group_weights(trainer)
        changed.append([not equal(one, two) for one, two in zip(before, after, strict=True)])
        before = after
    assert changed == [
        [False, False, False, True],
        [False, False, True, True],
        [False, True, True, True],
        [True, True, True, True],
    ]


def test_the_encoder_stays_bit_for_bit_in_the_first_phase_of_stack_and_finetune_and_moves_in_the_second(
    make_trainer: Make,
):
    trainer = make_trainer("stack_and_finetune", epochs=1, stack_and_finetune__stack_epochs=2)
    before, moved = group_weights(trainer), []
    for result in trainer.results():
        after = group_weights(trainer)
        moved.append((result.phase, [not equal(one, two) for one, two in zip(before, after, strict=True)]))
        before = after
    frozen, opened = [False, False, False, True], [True] * 4
    assert moved == [("stack", frozen), ("stack", frozen), ("finetune", opened)]


def test_no_gradient_is_computed_below_the_lowest_thawed_group(make_trainer: Make):
    trainer = make_trainer(epochs=4, **GRADUAL)
    seen = []
    watch_steps(
        trainer, lambda: seen.append([all(p.grad is None for p in group.parameters) for group in trainer.groups])
    )
    below = []
    embeddings = trainer.model.encoder.model.embeddings
    embeddings.register_forward_hook(lambda module, inputs, output: below.append(output.requires_grad))
    train(trainer)
    steps = trainer.trial.table.plan.steps_per_epoch
    without = [[True, True, True, False], [True, True, False, False], [True, False, False, False], [False] * 4]
    assert seen == [row for row in without for _ in range(steps)]
    assert sum(below) == steps, "only in the last epoch does a graph begin at the embeddings"


def test_adams_moments_survive_a_thaw(make_trainer: Make):
    trainer = make_trainer(epochs=3, **GRADUAL)
    optimiser, top = trainer.encoder_optimiser, trainer.groups[2].parameters[0]
    steps = trainer.trial.table.plan.steps_per_epoch
    counts, moments = [], []
    for _ in itertools.islice(trainer.results(), 1, None):
        state = optimiser.state[top]
        counts.append(int(state["step"]))
        moments.append(state["exp_avg"].clone())
    assert trainer.encoder_optimiser is optimiser
    assert counts == [steps, 2 * steps]
    assert not torch.equal(moments[0], moments[1])
    assert trainer.groups[0].parameters[0] not in optimiser.state


# --- the optimisers ---


def test_biases_and_layer_norms_do_not_decay_and_matrices_do(make_trainer: Make):
    trainer = make_trainer("fine_tuning", weight_decay=0.1)
    decay = {id(p): group["weight_decay"] for group in trainer.encoder_optimiser.param_groups for p in group["params"]}
    names = {name: decay[id(parameter)] for name, parameter in trainer.model.encoder.named_parameters()}
    kept = [name for name in names if "bias" in name or "LayerNorm" in name]
    assert {names.pop(name) for name in kept} == {0.0}
    assert set(names.values()) == {0.1}
    assert "model.embeddings.word_embeddings.weight" in names


@pytest.mark.parametrize(("name", "times"), [("adamw", 1.0), ("bert_adam", 10**0.5)])  # 0.1 / √0.001
def test_head_and_encoder_take_their_first_step_by_the_settings_optimiser(make_trainer: Make, name: str, times: float):
    trainer = make_trainer(epochs=1, train=4, weight_decay=0.0, learning_rate=1e-3, gradient_clip=0.0, optimiser=name)
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    watch_steps(trainer, lambda: [gradient.fill_(1.0) for gradient in gradients_of(trainer)])
    train(trainer)
    for parameter, start in zip(trainer.model.parameters(), before, strict=True):
        moved = (start - parameter.detach()).abs()
        torch.testing.assert_close(moved, torch.full_like(moved, 1e-3 * times), rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize(("clip", "bounded"), [(0.01, True), (0.0, False)])
def test_clipping_bounds_the_norm_of_the_whole_gradient_and_0_is_no_clipping(
    make_trainer: Make, clip: float, bounded: bool
):
    trainer = make_trainer(gradient_clip=clip)
    norms: list[float] = []
    watch_steps(trainer, lambda: norms.append(norm_of(trainer)))
    train(trainer)
    assert len(norms) == trainer.trial.table.plan.total_steps
    if bounded:
        assert norms == pytest.approx([0.01] * len(norms), rel=1e-3)
    else:
        assert max(norms) > 0.1


def test_each_step_uses_the_tables_learning_rates(make_trainer: Make):
    trainer = make_trainer(
        "stack_and_finetune", epochs=4, learning_rate=1e-4, schedule="slanted_triangular", discriminative_rates=True,
        **GRADUAL,
    )  # fmt: skip
    used: list[list[float]] = []
    begin = trainer.head_optimiser.begin

    def look(rates: Tensor) -> None:
        encoder = {group["layer_group"]: float(group["lr"]) for group in trainer.encoder_optimiser.param_groups}
        used.append([*(encoder[index] for index in range(3)), *rates.tolist()])
        begin(rates)

    trainer.head_optimiser.begin = look
    results = train(trainer)
    table = trainer.trial.table
    wanted = [[table.learning_rate(group, step) for group in range(4)] for step in range(table.plan.total_steps)]
    for one, two in zip(used, wanted, strict=True):
        assert one == pytest.approx(two, rel=1e-6)  # the head's rates are single precision
    assert len({rate for rates in used for rate in rates}) > table.plan.total_steps, "the rates move and differ"
    assert [result.learning_rate for result in results] == [wanted[result.step - 1][-1] for result in results]


# --- dropout ---


def test_encoder_dropout_rests_while_the_encoder_is_frozen(make_trainer: Make):
    trainer = make_trainer("stack_and_finetune", epochs=1, stack_and_finetune__stack_epochs=1, encoder_dropout=0.5)
    dropout = next(m for m in trainer.model.encoder.modules() if isinstance(m, torch.nn.Dropout))
    unchanged: list[bool] = []
    dropout.register_forward_hook(
        lambda module, inputs, output: (
            unchanged.append(torch.equal(inputs[0], output)) if trainer.model.training else None
        )
    )
    train(trainer)
    steps = trainer.trial.table.plan.steps_per_epoch
    assert unchanged == [True] * steps + [False] * steps


# --- the best epoch ---


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ([0.1, 0.4, 0.3], (0.4, 2)),
        ([0.5, 0.5, 0.2], (0.5, 1)),
        ([0.1, 0.3, 0.3], (0.3, 2)),
        ([0.0, -0.2, -0.1], (0.0, 1)),
    ],
)
def test_the_best_epoch_has_the_highest_dev_score_and_is_the_earliest_where_equal(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch, scores: list[float], best: tuple[float, int]
):
    trainer = make_trainer(epochs=3)
    score_epochs(monkeypatch, scores)
    states = []
    for result in trainer.results():
        states.append(trainer.model.own_weights(0) | trainer.model.encoder_weights())
        assert result.dev == {"accuracy": scores[result.epoch - 1]}
    assert trainer.trial.best == best
    kept = states[best[1] - 1]
    assert all(torch.equal(tensor, kept[name]) for name, tensor in trainer.trial.best_state.items())
    assert any(not torch.equal(tensor, states[best[1] % 3][name]) for name, tensor in trainer.trial.best_state.items())


# --- what goes wrong ---


@pytest.mark.parametrize(
    ("value", "mode", "setting", "message"),
    [
        (math.nan, "fine_tuning", {"learning_rate": 0.03}, r"\(train\).* lower learning rate than 0\.03 or a"),
        (math.inf, "fine_tuning", {"learning_rate": 0.03}, r"\(train\).* lower learning rate than 0\.03 or a"),
        (
            math.nan, "stack_and_finetune", {"stack_and_finetune__stack_learning_rate": 0.7},
            r"\(stack\).* lower learning rate than 0\.7",
        ),
    ],
)  # fmt: skip
def test_a_loss_that_is_not_finite_ends_the_trial_with_a_remedy_for_its_phase(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch, value: float, mode: str, setting: Any, message: str
):
    trainer = make_trainer(mode, **setting)
    loss = trainer.model.head.loss
    monkeypatch.setattr(trainer.model.head, "loss", lambda scores, batch: loss(scores, batch) * value)
    with pytest.raises(NotFiniteError, match=rf"not finite in epoch 1 {message}"):
        train(trainer)


def test_weights_that_the_last_step_broke_are_never_scored(make_trainer: Make):
    trainer = make_trainer(epochs=1, gradient_clip=0.0)

    def look() -> None:
        if trainer.step == trainer.trial.table.plan.total_steps - 1:
            gradients_of(trainer)[0].fill_(math.nan)

    watch_steps(trainer, look)
    with pytest.raises(NotFiniteError, match="in epoch 1"):
        train(trainer)
    assert trainer.trial.best == (-math.inf, 0)


# --- every kind learns, in both precisions ---


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["feature_extraction", "fine_tuning"])
def test_the_loss_falls_for_every_kind_in_both_precisions(make_trainer: Make, mode: str, kind: Kind, precision: str):
    trainer = make_trainer(mode, kind, epochs=6, train=16, precision=precision, dropout=0.0, learning_rate=3e-3)
    assert trainer.precision == precision
    results = train(trainer)
    assert results[-1].train_loss < 0.95 * results[0].train_loss
    assert [result.epoch for result in results] == [1, 2, 3, 4, 5, 6]
    assert [result.step for result in results] == [4, 8, 12, 16, 20, 24]
    weights = [tensor for tensor in trainer.trial.best_state.values() if tensor.is_floating_point()]
    assert all(tensor.dtype == torch.float32 for tensor in weights)


@pytest.mark.parametrize(
    ("mode", "padding_free", "by_length"),
    [
        ("feature_extraction", True, [True]),
        ("fine_tuning", True, [False]),
        ("fine_tuning", False, [True]),
        ("stack_and_finetune", True, [True, True, False]),
    ],
)
def test_batches_are_random_only_where_an_encoder_trains_that_computes_no_padding(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch, mode: str, padding_free: bool, by_length: list[bool]
):
    drawn = []

    def spy(*args: Any) -> Any:
        drawn.append(args[6])
        return training_batches(*args)

    monkeypatch.setattr(loop, "training_batches", spy)
    trainer = make_trainer(mode, head="linear", epochs=1)
    trainer.model.encoder.padding_free = padding_free
    list(trainer.epochs())
    assert drawn == by_length


def test_pieces_that_no_training_row_has_decay_by_the_settings_weight_decay(make_trainer: Make):
    trainer = make_trainer("fine_tuning", epochs=2, learning_rate=1e-2, weight_decay=0.3, dropout=0.0)
    assert trainer.table is not None
    rates = [trainer.trial.table.learning_rate(0, step) for step in range(2 * trainer.steps_per_epoch)]
    train(trainer)
    assert trainer.table.decay == pytest.approx(math.prod(1 - rate * 0.3 for rate in rates), rel=1e-12)
    assert trainer.table.decay < 1
