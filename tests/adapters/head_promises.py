"""The promises of a head (`adapters/layers/bundle.py`, `adapters/head.py`) as checks that say what is broken."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.head import Head, HeadShape
from meltpoint.adapters.hyperparameters import COMMON, Setting, Value
from meltpoint.adapters.layers.affine import first_states
from meltpoint.adapters.layers.dropout import MemberRng
from meltpoint.adapters.training.stacked_adamw import StackedAdamW
from meltpoint.tasks.core.task import KINDS, Kind

DIM, OUTPUTS = 12, 4
LENGTHS = [7, 4, 9]
PARTS = torch.tensor([[0, 1, 1, 0, 2, 2, 0] + [0] * 5, [0, 1, 2, 0] + [0] * 8, [0, 1, 1, 1, 1, 0, 2, 2, 0] + [0] * 3])
"""Which sentence of its pair each piece belongs to, special tokens and padding to none; (rows, 12)."""
CUTS = torch.tensor([4, 2, 6])
"""Where the second sentence's own input begins, for pairs that are encoded separately; (rows,)."""
STARTS = [[1, 2, 4], [1], [1, 3, 4, 5, 7]]
DROPOUTS, SEEDS = (0.0, 0.3, 0.5), (5, 6, 5)
STEP = 7


class BrokenPromiseError(AssertionError):
    """A promise that a head does not keep; the message says which one, what was found, and what to do."""


@dataclass(frozen=True)
class Case:
    """A head, one kind of task that it declares, and whether pairs are encoded separately."""

    head: type[Head]
    kind: Kind
    separate: bool = False

    def build(self, members: Sequence[int] = (0, 1, 2), settings: Sequence[Setting] | None = None) -> Head:
        """The head for some of three members, in evaluation mode, its weights where training would have them."""
        regression = self.kind == "pair_regression"
        shape = HeadShape(self.kind, DIM, 1 if regression else OUTPUTS, (0.0, 5.0) if regression else None)
        own = settings or [small_setting(self.head, dropout=DROPOUTS[member]) for member in members]
        return self.head(shape, own, MemberRng([SEEDS[member] for member in members])).eval()

    def aligned(self, members: Sequence[int] = (0, 1, 2)) -> Head:
        """The same, its weights in the optimiser's buffer as in training: where they begin decides the last bits."""
        head = self.build(members)
        StackedAdamW(list(head.parameters()), torch.zeros(len(members)))
        return head

    def batch(self, rows: Sequence[int] = (0, 1, 2), width: int = 0, seed: int = 1) -> tuple[Tensor, Batch]:
        """Hidden states and a batch of one lane; see `make_batch`."""
        return make_batch(self.kind, rows, width, self.separate, seed)


def small_setting(head: type[Head], **changed: Value) -> dict[str, Value]:
    """A setting with a head's own defaults, its sizes made small: 8 in the place of any larger whole number."""
    own = {parameter.name: parameter.default for parameter in head.hyperparameters}
    small = {name: 8 for name, default in own.items() if type(default) is int and default > 8}
    return own | small | {"dropout": 0.0} | changed


def make_batch(
    kind: Kind, rows: Sequence[int] = (0, 1, 2), width: int = 0, separate: bool = True, seed: int = 1
) -> tuple[Tensor, Batch]:
    """Random states, (1, rows, width, dim), of three rows of different lengths (or some of them), with labels.

    Args:
        width: positions, the longest row's where it is 0.
        separate: whether pairs are encoded separately.
    """
    rows = list(rows)
    everything = torch.randn(3, 12, DIM, generator=torch.Generator().manual_seed(seed))
    width = width or max(LENGTHS[row] for row in rows)
    mask = torch.arange(width) < torch.tensor([LENGTHS[row] for row in rows])[:, None]
    states, pieces = everything[None, rows, :width], torch.ones(len(rows), width, dtype=torch.int64)
    if kind != "sequence_labelling":
        labels = torch.tensor([0.5, 4.0, 2.5] if kind == "pair_regression" else [1, 3, 0])[rows]
        pair = kind.startswith("pair")
        parts, cuts = PARTS[rows, :width] if pair else None, CUTS[rows] if pair and separate else None
        return states, Batch(tuple(rows), pieces, mask, None, labels=labels, parts=parts, cuts=cuts)
    most = max(len(STARTS[row]) for row in rows)
    starts = torch.tensor([STARTS[row] + [0] * (most - len(STARTS[row])) for row in rows])
    words = torch.tensor([[i < len(STARTS[row]) for i in range(most)] for row in rows])
    return states, Batch(tuple(rows), pieces, mask, None, starts, words, (starts + 1) % 4 * words)


def make_lanes(case: Case) -> tuple[list[tuple[Tensor, Batch]], tuple[Tensor, Batch]]:
    """A batch for each of three members, its rows in another order in each; and all of them as one batch."""
    own = [case.batch(rows, seed=lane) for lane, rows in enumerate(((0, 1, 2), (1, 2, 0), (2, 0, 1)))]
    batches = [batch for _, batch in own]
    tensors: dict[str, Tensor] = {}
    for field in dataclasses.fields(Batch):
        if isinstance(getattr(batches[0], field.name), Tensor):
            tensors[field.name] = torch.cat([getattr(batch, field.name) for batch in batches])
    rows = tuple(row for batch in batches for row in batch.rows)
    joined = dataclasses.replace(batches[0], rows=rows, lanes=3, **tensors)
    return own, (torch.cat([states for states, _ in own]), joined)


def gradients(head: Head, states: Tensor, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Losses, (T,), and each parameter's gradient, of a training step; zeros where there is none."""
    head.train().rng.begin(STEP)
    losses = head.loss(head(states, batch).float(), batch)
    losses.sum().backward()
    return losses, {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in head.named_parameters()}


# --- the checks: None where the promise is kept, else what was found ---


def _declarations(case: Case) -> str | None:
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


def _hyperparameters(case: Case) -> str | None:
    setting = _Watched(small_setting(case.head))
    setting.read = set()
    case.build([0], [setting])
    declared, common = {own.name for own in case.head.hyperparameters}, {own.name for own in COMMON}
    if undeclared := setting.read - declared - common:
        return f"{_words(undeclared)} is read, but is not in `hyperparameters`"
    unread = declared - setting.read
    return f"{_words(unread)} is in `hyperparameters`, but is never read" if unread else None


def _parameters(case: Case) -> str | None:
    head = case.build()
    for name, parameter in head.named_parameters():
        if parameter.ndim == 0 or len(parameter) != 3:
            return f"`{name}` has the shape {tuple(parameter.shape)} in a bundle of 3"
    others = set(head.state_dict()) - {name for name, _ in head.named_parameters()}
    return f"{_words(others)} is a buffer, which is neither kept nor saved by members" if others else None


def _first_weights(case: Case) -> str | None:
    bundle = dict(case.build().named_parameters())
    for member in range(3):
        for name, own in case.build([member]).named_parameters():
            if name not in bundle or not torch.equal(bundle[name][member], own[0]):
                return f"`{name}` of member {member} begins with other numbers than alone"
    return None


def _kinds(case: Case) -> str | None:
    states, batch = case.batch()
    head = case.build([0])
    scores = head(states, batch)
    head.loss(scores.float(), batch)
    predictions = head.decode(scores[0], batch, 0)
    return None if len(predictions) == 3 else f"{len(predictions)} predictions for 3 rows"


def _shapes(case: Case) -> str | None:
    states, batch = case.batch()
    head = case.build()
    wanted = (3, 3, 5, OUTPUTS) if case.kind == "sequence_labelling" else (3, 3, head.shape.outputs)
    for autocast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            scores = head(states.bfloat16() if autocast else states, batch)
        if tuple(scores.shape) != wanted or scores.dtype != torch.float32:
            under = " under autocast" if autocast else ""
            return f"scores of {tuple(scores.shape)}, {scores.dtype}{under}, where {wanted} float32 are wanted"
    losses = head.loss(head(states, batch), batch)
    return None if losses.shape == (3,) else f"a loss of {tuple(losses.shape)}, where (3,) is wanted"


def _states_untouched(case: Case) -> str | None:
    states, batch = case.batch()
    before = states.clone()
    case.build()(states, batch)
    return None if torch.equal(states, before) else "the states changed"


def _rows_and_padding(case: Case) -> str | None:
    head = case.build()
    together = head(*case.batch(width=12))
    for row in range(3):
        alone = head(*case.batch([row]))[:, 0]
        difference = _apart(together[:, row, : alone.shape[1]] if alone.ndim == 3 else together[:, row], alone)
        if difference > 1e-5:
            return f"row {row} scores otherwise by itself than beside two others and padded ({difference:.1g})"
    return None


def _reads(case: Case) -> str | None:
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


def _second_sentence(case: Case) -> str | None:
    if not case.separate:
        return None
    head, (states, batch) = case.build(), case.batch()
    assert batch.parts is not None
    second = batch.parts == 2
    second[torch.arange(3), CUTS] = True
    changed = torch.where(second[None, :, :, None], -states, states)
    same = torch.equal(head(changed, batch), head(states, batch))
    return "the second sentence's states do not change the scores" if same else None


def _weights_say_all(case: Case) -> str | None:
    one, two = case.build([1]), case.build([0], [small_setting(case.head, dropout=DROPOUTS[1])])
    bundle = dict(case.build().named_parameters())
    if bundle.keys() != dict(two.named_parameters()).keys():
        return "a bundle of three and a bundle of one have parameters of other names"
    two.load_state_dict({name: parameter.detach()[1:2] for name, parameter in bundle.items()})
    difference = _apart(one(*case.batch()), two(*case.batch()))
    return None if difference < 1e-6 else f"with member 1's weights, another head scores otherwise ({difference:.1g})"


def _neighbours(case: Case) -> str | None:
    together = case.aligned()(*case.batch())
    for member in range(3):
        difference = _apart(together[member], case.aligned([member])(*case.batch())[0])
        if difference > 1e-4:
            return f"member {member} scores otherwise alone than in a bundle of three ({difference:.1g})"
    return None


def _last_bits(case: Case) -> str | None:
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


def _dropout(case: Case) -> str | None:
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


def _gradients(case: Case) -> str | None:
    states, batch = case.batch()
    losses, found = gradients(case.aligned(), states, batch)
    for member in range(3):
        loss, alone = gradients(case.aligned([member]), states, batch)
        if losses[member] != loss[0]:
            return f"member {member}'s loss is another one alone"
        for name, own in alone.items():
            if not torch.equal(found[name][member], own[0]):
                return f"member {member}'s gradient of `{name}` is another one alone"
    return None


def _all_learn(case: Case) -> str | None:
    head, (states, batch) = case.build().train(), case.batch()
    head.loss(head(states, batch), batch).sum().backward()
    idle = {name for name, parameter in head.named_parameters() if parameter.grad is None}
    return f"{_words(idle)} has no gradient" if idle else None


def _lanes(case: Case) -> str | None:
    own, (states, batch) = make_lanes(case)
    scores = case.build()(states, batch)
    losses = case.build().loss(scores, batch)
    for member, (alone, one) in enumerate(own):
        head = case.build([member])
        expected = head(alone, one)
        if max(_apart(scores[member], expected[0]), _apart(losses[member], head.loss(expected, one)[0])) > 1e-4:
            return f"member {member} scores its batch otherwise beside two members with batches of their own"
    return None


def _predictions(case: Case) -> str | None:
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


def _keep(case: Case) -> str | None:
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


@dataclass(frozen=True)
class Promise:
    """One promise: what is claimed, what its breaker has to do, and the check."""

    claim: str
    remedy: str
    check: Callable[[Case], str | None]

    def verify(self, case: Case) -> None:
        """Check it.

        Raises:
            BrokenPromiseError: it is broken, or the head raised an error.
        """
        try:
            found = self.check(case)
        except Exception as error:  # noqa: BLE001 - whatever a new head raises is what its author has to read
            found = f"it raised {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        if found is not None:
            layout = ", encoded separately" if case.separate else ""
            name = f"{case.head.__name__} for {case.kind.replace('_', ' ')}{layout}"
            raise BrokenPromiseError(f"{name} breaks a promise: {self.claim}.\nFound: {found}.\nTo do: {self.remedy}")


PROMISES = (
    Promise("its class says what it is", "set the class attributes that `Head` documents.", _declarations),
    Promise(
        "every parameter's first dimension is the bundle's members, and nothing else is saved",
        "make it by `bundle.parameter(…)`, or take a layer of `adapters/layers/` in the place of torch.nn's.",
        _parameters,
    ),
    Promise(
        "a member's first weights are a function of its own seed",
        "in `bundle.parameter(…, fill=…)` draw from the generator that `fill` is given, and from nothing else.",
        _first_weights,
    ),
    Promise(
        "it reads the hyperparameters that it declares, and no other",
        "list in `hyperparameters` what `compose` asks the bundle for.", _hyperparameters,
    ),
    Promise(
        "it serves every kind of task in `kinds`, pairs as `joint_pairs` and `separate_pairs` say",
        "correct `kinds`, `joint_pairs` or `separate_pairs`, or serve what they say.", _kinds,
    ),
    Promise(
        "scores are (members, rows, outputs) or (members, rows, words, outputs), float32, and the loss is (members,)",
        "end `forward` with `layers.affine.Scores`, which computes in float32, and keep the first dimension.", _shapes,
    ),
    Promise(
        "the states that it is given stay as they are",
        "compute into a new tensor: other trials and epochs read them too.",
        _states_untouched,
    ),
    Promise(
        "a row's scores depend neither on padding nor on the other rows",
        "mask with `lanes_of(batch.piece_mask, batch.lanes)`, or pool with `layers.pooling.pool_rows`; no batch "
        "normalisation.", _rows_and_padding,
    ),
    Promise(
        "`reads` says which states decide the scores",
        "set `reads` to \"first\" where only [CLS] or each word's first piece is read (caches then hold nothing else), "
        'else to "all".', _reads,
    ),
    Promise(
        "with `separate_pairs` it reads both sentences of a pair",
        "tell the sentences apart by `layers.sentence_pair.sentences`, or leave `separate_pairs` False.",
        _second_sentence,
    ),
    Promise(
        "its weights say all: one member's, cut from a bundle, score the same in a head by itself",
        "keep what scores depend on in parameters (`bundle.parameter`) or in agreed sizes (`bundle.size`).",
        _weights_say_all,
    ),
    Promise(
        "a member's scores do not depend on its neighbours in the bundle",
        "never sum, normalise or index over the first dimension of states and weights.", _neighbours,
    ),
    Promise(
        "a member's scores are to the last bit those that it has alone",
        "products by `Affine` or `torch.bmm`; functions like a tanh through `layers.affine.elementwise`; anything else "
        "a member at a time, by `layers.bundle.shares`.", _last_bits,
    ),
    Promise(
        "dropout is the setting's, and each member's own",
        "take `bundle.dropout()` (`Scores` has its own), never `torch.nn.Dropout`, and call it as often whatever the "
        "members are.", _dropout,
    ),
    Promise(
        "every parameter learns", "use it in `forward` or `loss` for this kind of task, or do not make it.", _all_learn,
    ),
    Promise(
        "a member's loss and gradients are to the last bit those that it has alone",
        "let `loss` give each member its own (members,), and write backward passes by hand a member at a time.",
        _gradients,
    ),
    Promise(
        "members may read batches of their own",
        "read the batch's tensors through `lanes_of(tensor, batch.lanes)`: (lanes, rows, …).", _lanes,
    ),
    Promise(
        "predictions are the member's own", "in `decode` use the weights of the `member` that is given.", _predictions
    ),
    Promise(
        "the bundle can go on with some of its members",
        "keep nothing a member outside of parameters and `bundle.dropout()`; else override `keep`.", _keep,
    ),
)  # fmt: skip


def cases(head: type[Head], kind: Kind) -> Iterator[Case]:
    """A head with each layout of pairs that it declares."""
    if kind.startswith("pair") and head.separate_pairs:
        yield Case(head, kind, separate=True)
    if head.joint_pairs or not kind.startswith("pair"):
        yield Case(head, kind)


def verify(head: type[Head], kind: Kind) -> None:
    """Check every promise of a head for one kind, causes before their consequences.

    Raises:
        BrokenPromiseError: the first one that is broken.
    """
    for case in cases(head, kind):
        for promise in PROMISES:
            promise.verify(case)
