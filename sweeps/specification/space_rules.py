"""Rules by which an encoder, a task and its data complete a search space.

They determine the word tokenizer, the pooling, the epochs for small data, and the longest input.

Three epochs are BERT's recipe for thousands of examples (Devlin et al. 2018, A.3). Small data sets need more steps than
three epochs give: Mosbach et al. 2021 (section 6) train for 20 epochs; Zhang et al. 2021 (section 6) find that the
standard number of steps is too small for a thousand examples. A frozen encoder's head trains until dev has not improved
for some epochs: five epochs of ten steps each are over before it has started to learn.

The default `max_pieces` is the 99.5th percentile of the lengths of the training examples, in subword tokens of the
encoder's own tokenizer, or more if that would cut an input of up to 128 tokens. If sentences are read in document
context, it is the encoder's longest input. It depends on nothing else, so that all modes and heads of a task and
encoder read the same text. Only an encoder's own pooling is limited to its authors' length (`SentencePooling.longest`).
No torch is imported until lengths are counted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from meltpoint.adapters import encoders, heads, modes
from meltpoint.adapters.data.input_format import (
    CONTEXT,
    OWN_POOLING,
    POOLING_KIND,
    PREFIX,
    WORD_TOKENIZER,
    InputFormat,
    Prefix,
    Tokenizer,
    WordTokenizer,
    default_word_tokenizer,
    input_format_of,
)
from meltpoint.adapters.encoders import EncoderReference
from meltpoint.adapters.hyperparameters import COMMON, MAX_PIECES, Parameter, Value
from meltpoint.adapters.multiplier_table import DefaultHead
from meltpoint.search_spaces.ranges import Choice, Fixed, Range
from meltpoint.search_spaces.space import Space
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.task import Kind, Task, TrainingData
from meltpoint.tasks.core.wording import counted, some

if TYPE_CHECKING:
    from meltpoint.adapters.data.batch import EncodedSplit


TOKENIZER_SOURCE = "the rules of ELMo's training text (Chelba et al. 2013), for a task whose texts are not tokenised"


def with_word_tokenizer(space: Space, reference: EncoderReference, task: Task) -> Space:
    """A cell's space in which each setting names its word tokenizer, unless that is the parameter's default.

    The identity, MLflow and an exported setting thus contain the rule, even if the task changes later.

    Args:
        space: the cell's space, with overrides. It is returned unchanged if it names a word tokenizer, or comes from an
            exported setting, which leaves out a word tokenizer only if none was used.
        reference: the encoder.
        task: the task, which declares whether its texts are tokenised.
    """
    name = WORD_TOKENIZER.name
    chosen = default_word_tokenizer(reference.reads_words, task.tokenised)
    is_settled = name in space.parameters or name not in space.allowed or bool(space.provenance)
    if is_settled or chosen == WORD_TOKENIZER.default:
        return space
    return replace(
        space, parameters={**space.parameters, name: Fixed(chosen, source=TOKENIZER_SOURCE)},
        sources={**space.sources, name: "the task"},
    )  # fmt: skip


POOLER, PRETRAINED, NO_POOLER = "native.pooler", "pretrained", "none"


def pooler_notes(reference: EncoderReference, head: str, kind: Kind, space: Space) -> tuple[str, ...]:
    """Notes for tables on the pooler of a cell with its encoder's own head; this reads the encoder's files.

    Raises:
        ValueError: the space leaves out a pooler that the head does not have.
    """
    native = encoders.native_head(reference) if heads.get(head).is_native else None
    if native is None or (native.names_pooler() and not _may_be(space, NO_POOLER)):
        return ()
    if not native.has_pooler(kind):
        if _may_be(space, NO_POOLER):
            where = "for labels of words" if kinds.get(kind).labels_words else f"of {reference.word}"
            raise ValueError(f"{POOLER} is none, but the head {where} has no pooler to leave out; set pretrained.")
        return ()
    if native.ships_pooler(kind) or not _may_be(space, PRETRAINED):
        return ()
    return (f"{reference.public_word} ships no pooler weights; {POOLER} = {PRETRAINED} starts with a new pooler",)


def _may_be(space: Space, value: str) -> bool:
    """True if a setting of the space can have a value for `native.pooler`, by name or by default."""
    parameter = space.parameters.get(POOLER)
    return value == PRETRAINED if parameter is None else parameter.match(value) is not None


POOLING_SOURCE = "the encoder's own, since its pooling is why the cell has this head"


def with_own_pooling(space: Space, mode: str, head: DefaultHead) -> Space:
    """A cell's space in which each setting names the encoder's own pooling, if the head was chosen for that pooling.

    Args:
        space: the cell's space, with overrides. It is returned unchanged if it names `pooling.kind`, as the shipped
            spaces do, or comes from an exported setting.
        mode: the cell's mode.
        head: the cell's head, with the source of the choice.
    """
    if head != modes.get(mode).default_heads.pooled or POOLING_KIND in space.parameters or space.provenance:
        return space
    return replace(
        space, parameters={**space.parameters, POOLING_KIND: Fixed(OWN_POOLING, source=POOLING_SOURCE)},
        sources={**space.sources, POOLING_KIND: "the encoder"},
    )  # fmt: skip


EPOCHS, PATIENCE, BATCH = "epochs", "patience", "batch_size"
FITTED = "since an epoch is"
"""The words of a note on ranges that were fitted to a task's size."""

ENOUGH_STEPS = 200
MOST_EPOCHS = 20
"""The limit for the first setting, from Mosbach et al. 2021, section 6."""
SMALLEST_BATCH = 8
BATCH_SOURCE = "few training examples: halved towards 200 steps, down to 8; more steps for the same cost (ours)"
EPOCHS_SOURCE = (
    "few training examples: scaled towards 200 steps, at most 20 epochs (Mosbach et al. 2021; Zhang et al. 2021)"
)
PATIENCE_SOURCE = "few training examples: scaled until dev may stay for 200 steps (as the epochs of fine-tuning)"


def with_enough_steps(space: Space, mode: str, train_examples: int) -> tuple[Space, str | None]:
    """A cell's space fitted to its number of examples, and a note for tables; None if nothing changed.

    An encoder that trains gets smaller batches first, since they cost nothing, and then more epochs. For a frozen one,
    which trains until dev stops improving, the patience is scaled, and its limit of epochs with it. Only ranges from a
    shipped space for a mode, or for a mode and an encoder, are fitted: a value from the user, a specification or a task
    stays.
    """
    batch = int(space.first().get(BATCH, 32))
    steps = -(-train_examples // batch)
    if not modes.get(mode).trains_encoder:
        return _with_enough_patience(space, mode, steps)
    epochs, batches = space.parameters.get(EPOCHS), space.parameters.get(BATCH)
    if not isinstance(epochs, Choice) or not _is_general(space, mode, EPOCHS):
        return space, None
    fitted: dict[str, Range] = {}
    if isinstance(batches, Choice) and _is_general(space, mode, BATCH):
        smaller = batch
        while smaller > SMALLEST_BATCH and -(-train_examples // smaller) * int(epochs.start) < ENOUGH_STEPS:
            smaller //= 2
        fitted[BATCH] = _scaled(batches, smaller / batch, SMALLEST_BATCH, BATCH_SOURCE)
        batch = smaller
    wanted = min(MOST_EPOCHS, -(-ENOUGH_STEPS // -(-train_examples // batch)))
    fitted[EPOCHS] = _scaled(epochs, max(1.0, wanted / int(epochs.start)), 1, EPOCHS_SOURCE)
    before = space.parameters
    changed = {name: now for name, now in fitted.items() if now.points() != before[name].points()}
    if not changed:
        return space, None
    texts = [
        f"{name} {_listed(now.points())} instead of {_listed(before[name].points())}" for name, now in changed.items()
    ]
    note = f"{'; '.join(texts)}, {FITTED} {some(steps, 'step')} (Mosbach et al. 2021)"
    sources = {**space.sources, **{name: now.source for name, now in changed.items()}}
    return replace(space, parameters={**before, **changed}, sources=sources), note


def _with_enough_patience(space: Space, mode: str, steps: int) -> tuple[Space, str | None]:
    """A frozen encoder's space, with a patience of at least 200 steps.

    Args:
        steps: the steps per epoch.
    """
    patience, most = space.parameters.get(PATIENCE), space.parameters.get(EPOCHS)
    is_ours = _is_general(space, mode, EPOCHS) and _is_general(space, mode, PATIENCE)
    if not isinstance(patience, Fixed) or not isinstance(most, Fixed) or not is_ours or not patience.value:
        return space, None
    shipped, cap = int(patience.value), int(most.value)
    limits = {parameter.name: int(parameter.maximum) for parameter in COMMON if parameter.name in (EPOCHS, PATIENCE)}
    wanted = min(limits[PATIENCE], -(-ENOUGH_STEPS // steps))
    if wanted <= shipped:
        return space, None
    longest = min(limits[EPOCHS], round(cap * wanted / shipped))
    ranges = {**space.parameters, PATIENCE: _fixed(patience, wanted), EPOCHS: _fixed(most, longest)}
    note = (
        f"patience {wanted} and at most {longest} epochs instead of {shipped} and {cap}, {FITTED} {some(steps, 'step')}"
    )
    sources = {**space.sources, PATIENCE: PATIENCE_SOURCE, EPOCHS: PATIENCE_SOURCE}
    return replace(space, parameters=ranges, sources=sources), note


def _fixed(before: Fixed, value: int) -> Fixed:
    return replace(before, value=value, source=PATIENCE_SOURCE)


def _is_general(space: Space, mode: str, name: str) -> bool:
    """True if a parameter comes from a shipped space that names no task: `MODE.yaml` or `MODE.ENCODER.yaml`."""
    parts = space.sources.get(name, "").removesuffix(".yaml").split(".")
    return parts[0] in (mode, modes.get(mode).space) and len(parts) <= 2 and "demo" not in parts


def _scaled(choice: Choice, factor: float, least: int, source: str) -> Range:
    """A choice of whole numbers times a factor, none below `least`."""
    first, *values = (max(least, round(float(value) * factor)) for value in (choice.start, *choice.values))
    left = tuple(dict.fromkeys(values))
    if len(left) == 1:
        return Fixed(first, source=source, when=choice.when)
    return Choice(left, first, source=source, when=choice.when)


def _listed(values: object) -> str:
    return ", ".join(map(str, values)) if isinstance(values, tuple) else str(values)


NAME = MAX_PIECES.name


@dataclass(frozen=True)
class CellLength:
    """The longest input of a cell's trials, and the share of the training examples that it cuts.

    Attributes:
        max_pieces: the setting's value; the smallest if it is searched.
        largest: the largest value if it is searched; otherwise the same.
        source: the source of the value.
        examples: the number of training examples that were counted.
        examples_cut: the share of them that lose text; in sequence labelling, the share of sentences that are split
            into windows or lack a part of their document.
        pieces_cut: the share of their subword tokens that is lost.
        keeps_all: the length that would avoid all cuts; it may exceed the encoder's limit.
        mean: the mean number of subword tokens that the encoder reads per example.
        notes: the cuts and their remedies, one line each.
    """

    max_pieces: int
    largest: int
    source: str
    examples: int
    examples_cut: float
    pieces_cut: float
    keeps_all: int
    mean: float
    notes: tuple[str, ...]

    def lines(self) -> tuple[str, ...]:
        """The length, its source and its cuts."""
        length = f"{NAME} = {self.max_pieces}" + (f" to {self.largest}" if self.largest > self.max_pieces else "")
        counted_on = some(self.examples, "training example")
        cut = self.notes or (f"none of {counted_on} is cut, the longest has {some(self.keeps_all, 'piece')}",)
        return tuple(f"{length} ({self.source}): {line}" for line in cut)


class InputLengths:
    """The lengths of a sweep's training examples, counted once for each encoder, task and input format."""

    def __init__(self) -> None:
        self._tokenizers: dict[str, Tokenizer] = {}
        self._splits: dict[tuple[str, str, InputFormat, int], EncodedSplit] = {}

    def settle(
        self, space: Space, encoder: str, reference: EncoderReference, head: str, data: TrainingData
    ) -> tuple[Space, CellLength]:
        """A cell's space in which every setting names `max_pieces`, and the cuts of that length.

        Args:
            space: the cell's space, with overrides; a length that it names is kept.
            encoder: the encoder's name, as given by the user.
            reference: the encoder.
            head: the head's name.
            data: the task's data.

        Raises:
            ValueError: the length exceeds the encoder's limit, or some settings have none.
        """
        longest = self._tokenizer(reference).max_pieces
        if NAME in space.parameters:
            check_length(space, encoder, longest)
        else:
            pieces, source = self._default(space, reference, data)
            ranges = {**space.parameters, NAME: Fixed(pieces, source=source)}
            space = replace(space, parameters=ranges, sources={**space.sources, NAME: source})
        return space, self._use(space, reference, head, data)

    def _default(self, space: Space, reference: EncoderReference, data: TrainingData) -> tuple[int, str]:
        """The default length of a cell, and its source."""
        from meltpoint.adapters.data.lengths import default_length, rounded, settable

        longest = self._tokenizer(reference).max_pieces
        most = settable(longest)
        if "document" in possible_values(space, CONTEXT):
            return most, "document context: the encoder's longest input"
        splits = (self._encoded(reference, data, own, longest) for own in _formats(space))
        found, source = max(default_length(split.whole) for split in splits)
        kind, own_end = space.parameters.get(POOLING_KIND), reference.pooling.longest if reference.pooling else None
        if own_end and own_end < min(found, most) and kind is not None and kind.match(OWN_POOLING) is not None:
            return max(int(MAX_PIECES.minimum), own_end), "the end of a text in the encoder's own pooling"
        if found > most:
            return most, f"the encoder's longest input, less than {counted(found)}: {source}"
        return max(int(MAX_PIECES.minimum), rounded(found, most)), source

    def _use(self, space: Space, reference: EncoderReference, head: str, data: TrainingData) -> CellLength:
        """The (smallest) length of a space, with its cuts in the input format of the first setting."""
        from meltpoint.adapters.data.lengths import cut_notes, longest_whole

        lengths = [int(value) for value in space.parameters[NAME].points() or ()]
        smallest, longest = min(lengths), self._tokenizer(reference).max_pieces
        split = self._encoded(reference, data, _first_format(space, head), smallest)
        touched = split.truncated + split.windowed + split.narrowed
        return CellLength(
            max_pieces=smallest, largest=max(lengths), source=space.sources.get(NAME, "named"), examples=split.examples,
            examples_cut=min(1.0, touched / max(1, split.examples)),
            pieces_cut=split.pieces_cut / max(1, split.pieces + split.pieces_cut), keeps_all=longest_whole(split),
            mean=split.pieces / max(1, split.examples), notes=tuple(cut_notes(split, smallest, longest)),
        )  # fmt: skip

    def _encoded(
        self, reference: EncoderReference, data: TrainingData, own: InputFormat, max_pieces: int
    ) -> EncodedSplit:
        """The sample of a task's training examples, tokenised once for each encoder, input format and length."""
        from meltpoint.adapters.data.lengths import sample_of
        from meltpoint.adapters.data.tokenising import encode_split

        key = (reference.word, data.fingerprint, own, max_pieces)  # of a task in several sizes, one for each
        if key not in self._splits:
            examples = sample_of(data.train, own.context == "document")
            self._splits[key] = encode_split(
                data.task.kind, examples, self._tokenizer(reference), max_pieces, own, data.whole_train
            )
        return self._splits[key]

    def _tokenizer(self, reference: EncoderReference) -> Tokenizer:
        if reference.word not in self._tokenizers:
            self._tokenizers[reference.word] = encoders.load_tokenizer(reference)
        return self._tokenizers[reference.word]


def check_length(space: Space, encoder: str, longest: int) -> None:
    """Check that every setting has a `max_pieces` within the encoder's limit.

    Raises:
        ValueError: the message names the encoder's longest input.
    """
    parameter, where = space.parameters[NAME], space.sources.get(NAME, "space")
    if parameter.when:
        raise ValueError(f"{where}: {NAME} has conditions (when), but every setting needs it; remove them.")
    asked = max(map(int, parameter.points() or ()))
    if asked > longest:
        value = f"{NAME} is {asked}" if parameter.count == 1 else f"{NAME} is up to {asked}"
        raise ValueError(
            f"{where}: {value}, but the longest input of {encoder} is {some(longest, 'piece')}; set {longest} or less."
        )


def possible_values(space: Space, parameter: Parameter) -> tuple[Value, ...]:
    """The values of a hyperparameter in the settings of a space."""
    found = space.parameters.get(parameter.name)
    if found is None:
        return (parameter.default,)
    points = tuple(found.points() or ())
    return (*points, parameter.default) if found.when else points


def _formats(space: Space) -> Iterator[InputFormat]:
    """The input formats that the settings of a space may use; pairs are read jointly where possible."""
    for words, prefix in itertools.product(possible_values(space, WORD_TOKENIZER), possible_values(space, PREFIX)):
        yield InputFormat(word_tokenizer=cast(WordTokenizer, words), prefix=cast(Prefix, prefix))


def _first_format(space: Space, head: str) -> InputFormat:
    """The input format of a space's first setting."""
    return input_format_of(space.first(), heads.get(head).joint_pairs)
