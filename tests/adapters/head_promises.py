"""The promises of a head (`adapters/layers/bundle.py`, `adapters/head.py`): each with its remedy and its check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from meltpoint.adapters.head import Head
from meltpoint.tasks.core.task import Kind
from meltpoint.tests.adapters import head_checks
from meltpoint.tests.adapters.head_cases import Case


class BrokenPromiseError(AssertionError):
    """A promise that a head does not keep; the message says which one, what was found, and what to do."""


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
    Promise("its class says what it is", "set the class attributes that `Head` documents.", head_checks.declarations),
    Promise(
        "every parameter's first dimension is the bundle's members, and nothing else is saved",
        "make it by `bundle.parameter(…)`, or take a layer of `adapters/layers/` in the place of torch.nn's.",
        head_checks.parameters,
    ),
    Promise(
        "a member's first weights are a function of its own seed",
        "in `bundle.parameter(…, fill=…)` draw from the generator that `fill` is given, and from nothing else.",
        head_checks.first_weights,
    ),
    Promise(
        "it reads the hyperparameters that it declares, and no other",
        "list in `hyperparameters` what `compose` asks the bundle for.",
        head_checks.hyperparameters,
    ),
    Promise(
        "it serves every kind of task in `kinds`, pairs as `joint_pairs` and `separate_pairs` say",
        "correct `kinds`, `joint_pairs` or `separate_pairs`, or serve what they say.",
        head_checks.kinds,
    ),
    Promise(
        "scores are (members, rows, outputs) or (members, rows, words, outputs), float32, and the loss is (members,)",
        "end `forward` with `layers.affine.Scores`, which computes in float32, and keep the first dimension.",
        head_checks.shapes,
    ),
    Promise(
        "the states that it is given stay as they are",
        "compute into a new tensor: other trials and epochs read them too.",
        head_checks.states_untouched,
    ),
    Promise(
        "a row's scores depend neither on padding nor on the other rows",
        "mask with `lanes_of(batch.piece_mask, batch.lanes)`, or pool with `layers.affine.pool_rows`; no batch "
        "normalisation.",
        head_checks.rows_and_padding,
    ),
    Promise(
        "`reads` says which states decide the scores",
        'set `reads` to "first" where only [CLS] or each word\'s first piece is read (caches then hold nothing else), '
        'else to "all".',
        head_checks.reads,
    ),
    Promise(
        "with `separate_pairs` it reads both sentences of a pair",
        "tell the sentences apart by `layers.attention.sentences`, or leave `separate_pairs` False.",
        head_checks.second_sentence,
    ),
    Promise(
        "its weights say all: one member's, cut from a bundle, score the same in a head by itself",
        "keep what scores depend on in parameters (`bundle.parameter`) or in agreed sizes (`bundle.size`).",
        head_checks.weights_say_all,
    ),
    Promise(
        "a member's scores do not depend on its neighbours in the bundle",
        "never sum, normalise or index over the first dimension of states and weights.",
        head_checks.neighbours,
    ),
    Promise(
        "a member's scores are to the last bit those that it has alone",
        "products by `Affine` or `torch.bmm`; functions like a tanh through `layers.affine.elementwise`; anything else "
        "a member at a time, by `layers.bundle.shares`.",
        head_checks.last_bits,
    ),
    Promise(
        "dropout is the setting's, and each member's own",
        "take `bundle.dropout()` (`Scores` has its own), never `torch.nn.Dropout`, and call it as often whatever the "
        "members are.",
        head_checks.dropout,
    ),
    Promise(
        "every parameter learns",
        "use it in `forward` or `loss` for this kind of task, or do not make it.",
        head_checks.all_learn,
    ),
    Promise(
        "a member's loss and gradients are to the last bit those that it has alone",
        "let `loss` give each member its own (members,), and write backward passes by hand a member at a time.",
        head_checks.gradients,
    ),
    Promise(
        "the loss is a mean over rows, or over words: parts of a batch, weighted by theirs, add up to it",
        "divide the sum of the rows' (or words') own losses by their number: micro-batches rely on it.",
        head_checks.mean_loss,
    ),
    Promise(
        "members may read batches of their own",
        "read the batch's tensors through `lanes_of(tensor, batch.lanes)`: (lanes, rows, …).",
        head_checks.lanes,
    ),
    Promise(
        "predictions are the member's own",
        "in `decode` use the weights of the `member` that is given.",
        head_checks.predictions,
    ),
    Promise(
        "the bundle can go on with some of its members",
        "keep nothing a member outside of parameters and `bundle.dropout()`; else override `keep`.",
        head_checks.keep,
    ),
)


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
