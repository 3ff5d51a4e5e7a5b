"""An embedding table that trains only the task's subword tokens, and snapshots of weights that assemble it lazily.

The weight decay of the other tokens is exact. AdamW on the whole table trains the same: a token that no training row
has gets a gradient of 0, so its moments stay 0 and each step only multiplies its row by 1 - rate · decay (Loshchilov &
Hutter 2019, algorithm 2). The product of these factors is the same for all such rows; it is kept here and applied when
the rows are read. all-MiniLM-L6-v2 holds half of its weights in a table of 30 522 tokens, of which 1 000 sentences of
SST-2 have 4 800.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from meltpoint.adapters.data.batch import EncodedSplit

_ABSENT = -1


class CompactEmbedding(nn.Module):
    """A replacement for an `nn.Embedding`, with the same `state_dict` layout before and after training.

    In training mode every piece must be in the table (an unknown piece is an IndexError on the CPU); in evaluation mode
    any piece is allowed.

    Args:
        dense: the original table; its tensor is kept, not copied.
        pieces: the rows to train, in ascending order.

    Attributes:
        weight: (trained pieces, dim), the parameter.
        decay: the factor by which the rows outside the table have been multiplied so far; every optimiser step that
            trains the table multiplies it by `EncoderAdamW.decay_of`.
    """

    rest: Tensor
    row_of: Tensor
    pieces: Tensor
    factor: Tensor

    def __init__(self, dense: nn.Embedding, pieces: Tensor) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = dense.num_embeddings, dense.embedding_dim
        self.padding_idx = dense.padding_idx
        pieces = pieces.to(dense.weight.device)
        row_of = torch.full((dense.num_embeddings,), _ABSENT, dtype=torch.int64, device=pieces.device)
        row_of[pieces] = torch.arange(len(pieces), device=pieces.device)
        self.weight = nn.Parameter(dense.weight.detach()[pieces], requires_grad=dense.weight.requires_grad)
        self.register_buffer("rest", dense.weight.detach(), persistent=False)
        self.register_buffer("row_of", row_of, persistent=False)
        self.register_buffer("pieces", pieces, persistent=False)
        self.register_buffer("factor", torch.ones((), device=pieces.device), persistent=False)
        padding = _ABSENT if dense.padding_idx is None else int(row_of[dense.padding_idx])
        self._padding_row = None if padding == _ABSENT else padding
        self.decay = 1.0

    def forward(self, pieces: Tensor) -> Tensor:
        """(batch, pieces) int64 → (batch, pieces, dim)."""
        row = self.row_of[pieces]
        if self.training:
            return functional.embedding(row, self.weight, self._padding_row)
        trained = functional.embedding(row.clamp_min(0), self.weight, self._padding_row)
        return torch.where(row[..., None] >= 0, trained, functional.embedding(pieces, self.rest) * self.factor)

    def dense(self) -> Tensor:
        """The whole table, as if all of it had been trained: a new tensor, (all pieces, dim)."""
        return self.later(copied=False)()

    def later(self, copied: bool) -> Callable[[], Tensor]:
        """A function that assembles `dense` from the current table.

        Args:
            copied: whether training may continue before the function is called.
        """
        rest, decay, pieces, trained = self.rest, self.decay, self.pieces, self.weight.detach()
        trained = trained.clone() if copied else trained

        def dense() -> Tensor:
            table = rest * decay
            table[pieces] = trained
            return table

        return dense

    def train(self, mode: bool = True) -> CompactEmbedding:
        """Set the mode; for evaluation, put the decay where a CUDA graph reads it."""
        if not mode:
            self.factor.fill_(self.decay)
        return super().train(mode)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        destination[prefix + "weight"] = self.dense()

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        self.rest, self.decay = state_dict[prefix + "weight"].detach().to(self.rest, copy=True), 1.0
        self.factor.fill_(self.decay)
        with torch.no_grad():
            self.weight.copy_(self.rest[self.pieces])


def pieces_of(split: EncodedSplit, pad_piece: int) -> list[int]:
    """Every piece that a batch of a split can have, including padding, ascending."""
    return sorted({pad_piece}.union(*(sequence for row in split.rows for sequence in row.inputs)))


def compact(model: Any, pieces: Iterable[int]) -> CompactEmbedding | None:
    """Replace a transformers model's table of pieces with a `CompactEmbedding`.

    Call it before creating the optimiser, because it replaces the parameter.

    Args:
        model: a model with transformers' `get_input_embeddings` and `set_input_embeddings`.
        pieces: every piece that training will read.

    Returns:
        the new table; None if the model stays unchanged, because its table is not a plain table of its own (tied to
        another module, rescaled at each read, or with sparse gradients) or because every piece is trained.
    """
    dense = model.get_input_embeddings()
    trained = torch.tensor(sorted(set(pieces)))
    if not _is_plain(dense) or _owners(model, dense.weight) > 1 or len(trained) >= dense.num_embeddings:
        return None
    table = CompactEmbedding(dense, trained).train(dense.training)
    model.set_input_embeddings(table)
    return table


def _is_plain(table: nn.Module) -> bool:
    unusual = ("max_norm", "scale_grad_by_freq", "sparse")
    return type(table) is nn.Embedding and not any(getattr(table, name) for name in unusual)


def _owners(model: nn.Module, weight: Tensor) -> int:
    return sum(any(own is weight for own in module.parameters(recurse=False)) for module in model.modules())


Part = Tensor | Callable[[], Tensor]


class Snapshot(Mapping[str, Tensor]):
    """A mapping of names to weights, like a `state_dict`.

    The full embedding table of a `CompactEmbedding` is assembled only when read, because most snapshots are replaced by
    better ones without being read, and allocating the 47 MB of all-MiniLM-L6-v2's table takes a tenth of a second.

    Args:
        parts: name → weight, or a function that returns it.
    """

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self._parts = dict(parts)

    def __getitem__(self, name: str) -> Tensor:
        part = self._parts[name]
        return part if isinstance(part, Tensor) else part()

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __or__(self, other: Snapshot) -> Snapshot:
        """The union; `other` takes precedence."""
        return Snapshot({**self._parts, **other._parts})


def snapshot(module: nn.Module, prefix: str, copied: bool) -> Snapshot:
    """A snapshot of a module's `state_dict`, with compact embedding tables not yet assembled.

    Args:
        module: the module.
        prefix: prepended to every name.
        copied: whether weights are copied, so that further training does not change the snapshot.
    """
    parts: dict[str, Part] = {}
    for path, submodule in module.named_modules(remove_duplicate=False):
        path_prefix = f"{prefix}{path}." if path else prefix
        if isinstance(submodule, CompactEmbedding):
            parts[f"{path_prefix}weight"] = submodule.later(copied)
            continue
        tensors: dict[str, Tensor] = {}
        submodule._save_to_state_dict(tensors, path_prefix, keep_vars=False)
        parts |= {name: tensor.clone() if copied else tensor for name, tensor in tensors.items()}
    return Snapshot(parts)
