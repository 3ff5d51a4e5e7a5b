"""ELMo as an encoder: the word's own vector twice, then each LSTM layer's forward and backward state."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.encoder import Encoder, LayerGroup
from meltpoint.adapters.families.elmo import files, options, weights
from meltpoint.adapters.families.elmo.character_cnn import CharacterCNN
from meltpoint.adapters.families.elmo.characters import AFTER, BEFORE, spelling_of
from meltpoint.adapters.families.elmo.language_model import LanguageModel
from meltpoint.adapters.families.elmo.options import Options
from meltpoint.adapters.families.elmo.recurrence import Picked, Start
from meltpoint.adapters.families.elmo.tokenizer import WordTokenizer


class ElmoEncoder(Encoder):
    """Peters et al. 2018, section 3: the bidirectional language model, `<S>` and `</S>` read and not given out.

    Args:
        options: its sizes.
        fingerprint: sha256 (hex, 16 characters) of its files.
        revision: its folder.
        carry_state: begin each row of a batch with what the row of the same number ended with in the batch before, as
            AllenNLP's ELMo always does. What a text is given then depends on all that was read before it, so it is
            off wherever states are cached or compared.
    """

    family = "elmo"
    tokenizer: WordTokenizer

    def __init__(self, options: Options, fingerprint: str, revision: str, carry_state: bool = False) -> None:
        super().__init__()
        self.options = options
        self.fingerprint, self.revision = fingerprint, revision
        self.carry_state = carry_state
        self.tokenizer = WordTokenizer()
        self.max_pieces = self.tokenizer.max_pieces
        self.dim = 2 * options.lstm.projection_dim
        self.words = CharacterCNN(options.char_cnn, options.lstm.projection_dim)
        self.language_model = LanguageModel(options.lstm)
        self._carried: list[Start] | None = None
        self.eval()

    def forward(self, batch: Batch) -> tuple[Tensor, ...]:
        """Every layer's states, the words' own vectors first: a tuple of (batch, pieces, dim) in float32.

        Under autocast the character CNN runs in bf16; the recurrence, and what it keeps, stays in float32.
        """
        pieces, place = torch.unique(batch.pieces[batch.piece_mask], return_inverse=True)
        spellings = [BEFORE, AFTER, *map(spelling_of, pieces.tolist())]
        vectors = self.words(spellings).to(self.words.characters.dtype)
        order = _Order(batch.piece_mask)
        with torch.autocast(vectors.device.type, enabled=False):
            lowest = functional.embedding(order.words(place), vectors)
            inputs = functional.embedding(order.steps(place), vectors)
            layers, ends = self.language_model(inputs, order.lengths, self._starts(order))
            if self.carry_state:
                self._carry(ends, order)
            return torch.cat([lowest, lowest], -1), *(order.states(layer) for layer in layers)

    @property
    def layers(self) -> int:
        """How many layers `forward` gives, the words' own vectors counted."""
        return 1 + len(self.language_model.layers)

    def layer_groups(self) -> list[LayerGroup]:
        """The character CNN, then each LSTM layer, both directions together."""
        modules = [self.words, *self.language_model.layers]
        names = ["embeddings", *(f"layer_{number}" for number in range(1, self.layers))]
        return [LayerGroup(name, tuple(own.parameters())) for name, own in zip(names, modules, strict=True)]

    def set_dropout(self, ratio: float) -> None:
        """Set the dropout on each LSTM layer's input; it acts in training mode only."""
        self.language_model.dropout.p = ratio

    def save(self, folder: Path) -> None:
        """Write `options.json` and `weights.hdf5`, so that `elmo:FOLDER` reads them back."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / options.FILE).write_text(self.options.model_dump_json(indent=1) + "\n", encoding="utf-8")
        weights.write(folder / files.WEIGHTS, self.words, self.language_model)

    def _starts(self, order: _Order) -> list[Start] | None:
        """What each layer begins with, in the order's rows; rows that no batch had before begin with zeros."""
        if not self.carry_state or self._carried is None:
            return None
        missing = max(0, len(order.rows) - self._carried[0].output.shape[1])
        padded = [Start(*(functional.pad(part, (0, 0, 0, missing)) for part in start)) for start in self._carried]
        return [Start(*(part[:, order.rows] for part in start)) for start in padded]

    def _carry(self, ends: list[Start], order: _Order) -> None:
        """Keep what each row ended with; rows beyond this batch keep what they had."""
        back = order.rows.argsort()
        found = [Start(*(part.detach()[:, back] for part in end)) for end in ends]
        if self._carried is not None:
            rest = [Start(*(part[:, len(back) :] for part in old)) for old in self._carried]
            found = [
                Start(*(torch.cat(parts, 1) for parts in zip(new, old, strict=True)))
                for new, old in zip(found, rest, strict=True)
            ]
        self._carried = found


@dataclass(frozen=True, eq=False)
class _Order:
    """How a batch's rows are read: between `<S>` and `</S>`, the longest first, in both directions.

    Attributes:
        mask: (batch, pieces) bool, True on words.
    """

    mask: Tensor

    @cached_property
    def counts(self) -> Tensor:
        """Words of each row: (batch,)."""
        return self.mask.sum(1)

    @cached_property
    def rows(self) -> Tensor:
        """The batch's rows, the longest first: (batch,)."""
        return self.counts.argsort(descending=True, stable=True)

    @cached_property
    def lengths(self) -> list[int]:
        """What each row has to read, in `rows`' order."""
        lengths: list[int] = (self.counts[self.rows] + 2).tolist()
        return lengths

    def words(self, place: Tensor) -> Tensor:
        """Which of the vectors (`<S>`, `</S>`, then the distinct words) each piece has: (batch, pieces).

        Args:
            place: of each real piece, row after row, among the distinct words.
        """
        return torch.zeros_like(self.mask, dtype=torch.int64).masked_scatter(self.mask, place + 2)

    def steps(self, place: Tensor) -> Tensor:
        """Which of the vectors each direction reads at each step: (2, steps, batch), rows in `rows`' order."""
        read = functional.pad(self.words(place), (1, 1))
        read.scatter_(1, self.counts[:, None] + 1, 1)
        read = read[self.rows].T
        return torch.stack([read, read.gather(0, self._backwards[:, self.rows])])

    @cached_property
    def _backwards(self) -> Tensor:
        """Where each position goes when its row is reversed, boundaries too; padding stays: (steps, batch)."""
        position = torch.arange(self.mask.shape[1] + 2, device=self.mask.device)[:, None]
        last = self.counts + 1
        return torch.where(position <= last, last - position, position)

    def states(self, layer: Tensor) -> Tensor:
        """(2, steps, batch, size) in reading order → (batch, pieces, 2 * size), in the batch's."""
        _, steps, rows, size = layer.shape
        onward = torch.arange(steps, device=layer.device)[:, None].expand(steps, rows)
        step = torch.stack([onward, self._backwards])[:, 1:-1].permute(2, 1, 0)  # (batch, pieces, 2)
        direction = torch.arange(2, device=layer.device)
        place = (direction * steps + step) * rows + self.rows.argsort()[:, None, None]
        picked: Tensor = Picked.apply(layer.reshape(-1, size), place.flatten())  # type: ignore[no-untyped-call]
        return picked.view(*self.mask.shape, 2 * size)


def load(folder: Path, fingerprint: str) -> ElmoEncoder:
    """Load an ELMo from its folder, in float32, on the CPU.

    Raises:
        ValueError: a file is missing or broken, or a weight is missing or of a wrong shape; one line with the remedy.
    """
    read = options.read(folder / options.FILE)
    with torch.device("meta"):  # first weights would only be overwritten, and move the generator on
        encoder = ElmoEncoder(read, fingerprint, str(folder))
    encoder.to_empty(device="cpu")
    weights.read(files.weights_file(folder), encoder.words, encoder.language_model)
    return encoder
