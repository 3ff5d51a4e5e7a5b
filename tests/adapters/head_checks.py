"""Checks of a head, one a promise: None where it is kept, else what was found instead."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.data.input_format import CONTEXT, PAIRING
from meltpoint.adapters.head import Head
from meltpoint.adapters.hyperparameters import CLASS_WEIGHTS, COMMON, FOCAL_GAMMA, THRESHOLD, Value
from meltpoint.adapters.layers.affine import first_states
from meltpoint.tasks.core import kinds as task_kinds
from meltpoint.tasks.core.task import KINDS
from meltpoint.tests.adapters.head_cases import CUTS, DROPOUTS, OUTPUTS, Case, make_lanes, small_setting

STEP = 7


def declarations(case: Case) -> str | None:
    head, pairs = case.head, any(kind.startswith("pair") for kind in case.head.kinds)
    found = {
        "`kinds` is empty or names no kind of task": not head.kinds or not set(head.kinds) <= set(KINDS),
        "`summary` is empty": not head.summary,
        f"`reads` is {head.reads!r}": head.reads not in ("first", "all"),
        "a name in `hyperparameters` has no dot": any("." not in own.name for own in head.hyperparameters),
        "neither `joint_pairs` nor `separate_pairs` is true, so no pair can be encoded for it": pairs
        and not (head.joint_pairs or head.separate_pairs),
        "`separate_pairs` is true, but `kinds` has no pairs": head.separate_pairs and not pairs,
    }
    return next((fault for fault, is_there in found.items() if is_there), None)


class _Watched(dict[str, Value]):
    """A setting that remembers which names were read."""

    read: set[str]

    def get(self, name: str, default: Value | None = None) -> Value | None:  # type: ignore[override]
        self.read.add(name)
        return super().get(name, default)


def hyperparameters(case: Case) -> str | None:
    setting = _Watched(small_setting(case.head))
    setting.read = set()
    case.build([0], [setting])
    declared, common = (
        {own.name for own in case.head.hyperparameters},
        {own.name for own in (*COMMON, PAIRING, CONTEXT, CLASS_WEIGHTS, FOCAL_GAMMA, THRESHOLD)},
    )
    if undeclared := setting.read - declared - common:
        return f"{_words(undeclared)} is read, but is not in `hyperparameters`"
    unread = declared - setting.read
    return f"{_words(unread)} is in `hyperparameters`, but is never read" if unread else None


def parameters(case: Case) -> str | None:
    head = case.build()
    for name, parameter in head.named_parameters():
        if parameter.ndim == 0 or len(parameter) != 3:
            return f"`{name}` has the shape {tuple(parameter.shape)} in a bundle of 3"
    others = set(head.state_dict()) - {name for name, _ in head.named_parameters()}
    return f"{_words(others)} is a buffer, which is neither kept nor saved by members" if others else None


def first_weights(case: Case) -> str | None:
    bundle = dict(case.build().named_parameters())
    for member in range(3):
        for name, own in case.build([member]).named_parameters():
            if name not in bundle or not torch.equal(bundle[name][member], own[0]):
                return f"`{name}` of member {member} begins with other numbers than alone"
    return None


def kinds(case: Case) -> str | None:
    states, batch = case.batch()
    head = case.build([0])
    scores = head(states, batch)
    head.loss(scores.float(), batch)
    predictions = head.decode(scores[0], batch, 0)
    return None if len(predictions) == 3 else f"{len(predictions)} predictions for 3 rows"


def shapes(case: Case) -> str | None:
    states, batch = case.batch()
    head = case.build()
    wanted = (3, 3, 5, OUTPUTS) if task_kinds.get(case.kind).labels_words else (3, 3, head.outputs)
    for autocast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            scores = head(states.bfloat16() if autocast else states, batch)
        if tuple(scores.shape) != wanted or scores.dtype != torch.float32:
            under = " under autocast" if autocast else ""
            return f"scores of {tuple(scores.shape)}, {scores.dtype}{under}, where {wanted} float32 are wanted"
    losses = head.loss(head(states, batch), batch)
    return None if losses.shape == (3,) else f"a loss of {tuple(losses.shape)}, where (3,) is wanted"


def states_untouched(case: Case) -> str | None:
    states, batch = case.batch()
    before = states.clone()
    case.build()(states, batch)
    return None if torch.equal(states, before) else "the states changed"


def rows_and_padding(case: Case) -> str | None:
    head = case.build()
    together = head(*case.batch(width=12))
    for row in range(3):
        alone = head(*case.batch([row]))[:, 0]
        difference = _apart(together[:, row, : alone.shape[1]] if alone.ndim == 3 else together[:, row], alone)
        if difference > 1e-5:
            return f"row {row} scores otherwise by itself than beside two others and padded ({difference:.1g})"
    return None


def reads(case: Case) -> str | None:
    head, (states, batch) = case.build(), case.batch()
    if case.head.reads == "first":
        difference = _apart(_scored_words(head, *_first_only(states, batch)), _scored_words(head, states, batch))
        return None if difference < 1e-5 else "`reads` is 'first', but other states change the scores"
    first = torch.zeros(states.shape[1:3], dtype=torch.bool)
    first[:, 0] = True
    for places in (batch.word_starts, batch.cuts[:, None] if batch.cuts is not None else None):
        if places is not None:
            first.scatter_(1, places, True)
    changed = torch.where(first[None, :, :, None], states, -states)
    same = torch.equal(_scored_words(head, changed, batch), _scored_words(head, states, batch))
    return "`reads` is 'all', but the first states alone decide the scores" if same else None


def _first_only(states: Tensor, batch: Batch) -> tuple[Tensor, Batch]:
    """The batch that a head gets that reads first pieces only."""
    first, rows = first_states(states, batch), len(batch.rows)
    if batch.word_starts is not None:
        starts = torch.arange(first.shape[2]).expand(rows, -1)
        return first, dataclasses.replace(batch, pieces=starts, piece_mask=batch.word_mask, word_starts=starts)
    if batch.cuts is None:
        mask = torch.ones(rows, 1, dtype=torch.bool)
        parts = None if batch.parts is None else batch.parts[:, :1]
        return first[:, :, None], dataclasses.replace(batch, pieces=mask.long(), piece_mask=mask, parts=parts)
    both = torch.stack([first, states[:, torch.arange(rows), batch.cuts]], 2)
    mask, ones = torch.ones(rows, 2, dtype=torch.bool), torch.ones(rows, dtype=torch.int64)
    parts = torch.tensor([[1, 2]]).expand(rows, -1)
    return both, dataclasses.replace(batch, pieces=mask.long(), piece_mask=mask, parts=parts, cuts=ones)


def _scored_words(head: Head, states: Tensor, batch: Batch) -> Tensor:
    """Scores, 0 where there is no word."""
    scores: Tensor = head(states, batch)
    return scores if batch.word_mask is None else scores * batch.word_mask[None, :, :, None]


def second_sentence(case: Case) -> str | None:
    if not case.separate:
        return None
    head, (states, batch) = case.build(), case.batch()
    assert batch.parts is not None
    second = batch.parts == 2
    second[torch.arange(3), CUTS] = True
    changed = torch.where(second[None, :, :, None], -states, states)
    same = torch.equal(head(changed, batch), head(states, batch))
    return "the second sentence's states do not change the scores" if same else None


def weights_say_all(case: Case) -> str | None:
    one, two = case.build([1]), case.build([0], [small_setting(case.head, dropout=DROPOUTS[1])])
    bundle = dict(case.build().named_parameters())
    if bundle.keys() != dict(two.named_parameters()).keys():
        return "a bundle of three and a bundle of one have parameters of other names"
    two.load_state_dict({name: parameter.detach()[1:2] for name, parameter in bundle.items()})
    difference = _apart(one(*case.batch()), two(*case.batch()))
    return None if difference < 1e-6 else f"with member 1's weights, another head scores otherwise ({difference:.1g})"


def neighbours(case: Case) -> str | None:
    together = case.aligned()(*case.batch())
    for member in range(3):
        difference = _apart(together[member], case.aligned([member])(*case.batch())[0])
        if difference > 1e-4:
            return f"member {member} scores otherwise alone than in a bundle of three ({difference:.1g})"
    return None


def last_bits(case: Case) -> str | None:
    states, batch = case.batch()
    for autocast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            together = case.aligned()(states, batch)
            for member in range(3):
                difference = _apart(together[member], case.aligned([member])(states, batch)[0])
                if difference > 0:
                    under = " under autocast" if autocast else ""
                    return f"member {member} rounds otherwise alone than in a bundle of three{under} ({difference:.1g})"
    return None


def dropout(case: Case) -> str | None:
    states, batch = case.batch()
    head = case.aligned()
    resting = head(states, batch)
    drawn = []
    for step in (STEP, STEP, STEP + 1):
        head.train().rng.begin(step)
        drawn.append(head(states, batch))
    if torch.equal(drawn[0][2], resting[2]):
        return "the setting's dropout changes nothing in training"
    if not torch.equal(drawn[0], drawn[1]):
        return "the same step of the same seed drops other numbers the second time"
    if torch.equal(drawn[0], drawn[2]):
        return "two steps drop the same numbers"
    for member in range(3):
        alone = case.aligned([member]).train()
        alone.rng.begin(STEP)
        if not torch.equal(drawn[0][member], alone(states, batch)[0]):
            return f"member {member}, whose dropout is {DROPOUTS[member]}, drops other numbers alone than in a bundle"
    return None


def gradients(case: Case) -> str | None:
    states, batch = case.batch()
    losses, found = training_step(case.aligned(), states, batch)
    for member in range(3):
        loss, alone = training_step(case.aligned([member]), states, batch)
        if losses[member] != loss[0]:
            return f"member {member}'s loss is another one alone"
        for name, own in alone.items():
            if not torch.equal(found[name][member], own[0]):
                return f"member {member}'s gradient of `{name}` is another one alone"
    return None


def mean_loss(case: Case) -> str | None:
    head, (states, batch) = case.build(), case.batch()
    whole, total, terms = head.loss(head(states, batch), batch), torch.zeros(3), 0
    for row in range(3):
        states, alone = case.batch([row])
        own = 1 if alone.word_mask is None else int(alone.word_mask.sum())
        total, terms = total + own * head.loss(head(states, alone), alone), terms + own
    difference = _apart(whole, total / terms)
    return None if difference < 1e-5 else f"the rows' losses make another one ({difference:.1g}) than the batch has"


def all_learn(case: Case) -> str | None:
    head, (states, batch) = case.build().train(), case.batch()
    head.loss(head(states, batch), batch).sum().backward()
    idle = {name for name, parameter in head.named_parameters() if parameter.grad is None}
    return f"{_words(idle)} has no gradient" if idle else None


def lanes(case: Case) -> str | None:
    own, (states, batch) = make_lanes(case)
    scores = case.build()(states, batch)
    losses = case.build().loss(scores, batch)
    for member, (alone, one) in enumerate(own):
        head = case.build([member])
        expected = head(alone, one)
        if max(_apart(scores[member], expected[0]), _apart(losses[member], head.loss(expected, one)[0])) > 1e-4:
            return f"member {member} scores its batch otherwise beside two members with batches of their own"
    return None


def predictions(case: Case) -> str | None:
    states, batch = case.batch()
    bundle = case.aligned()
    scores = bundle(states, batch)
    for member in range(3):
        alone = case.aligned([member])
        if bundle.decode(scores[member], batch, member) != alone.decode(scores[member], batch, 0):
            return f"member {member} predicts otherwise alone from the same scores"
        if bundle.probabilities(scores[member], batch) != alone.probabilities(scores[member], batch):
            return f"member {member} gives other probabilities alone from the same scores"
    return None


def keep(case: Case) -> str | None:
    states, batch = case.batch()
    head = case.aligned()
    loss = head.loss(head(states, batch), batch)  # alive: its graph still knows the old shapes
    head.keep([2, 0])
    del loss
    head.train().rng.begin(STEP)
    scores = head(states, batch)
    for place, member in enumerate((2, 0)):
        alone = case.aligned([member]).train()
        alone.rng.begin(STEP)
        if _apart(scores[place], alone(states, batch)[0]) > 1e-5:
            return f"after `keep([2, 0])` member {member} scores otherwise than alone"
    return None


def _apart(one: Tensor, two: Tensor) -> float:
    """The largest difference; infinite where shapes differ or a number is none."""
    if one.shape != two.shape:
        return float("inf")
    difference = float((one.detach().double() - two.detach().double()).abs().max())
    return difference if difference == difference else float("inf")


def _words(names: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def training_step(head: Head, states: Tensor, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Losses, (T,), and each parameter's gradient, of a training step; zeros where there is none."""
    head.train().rng.begin(STEP)
    losses = head.loss(head(states, batch).float(), batch)
    losses.sum().backward()
    return losses, {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in head.named_parameters()}
