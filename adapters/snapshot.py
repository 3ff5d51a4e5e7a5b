"""Snapshots of weights: a trial keeps those of its best epoch while it continues to train."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from torch import Tensor, nn

from meltpoint.adapters.layers.compact_embedding import CompactEmbedding

Part = Tensor | Callable[[], Tensor]


class Snapshot(Mapping[str, Tensor]):
    """A mapping of names to weights, as a `state_dict`.

    The full embedding table of a `CompactEmbedding` is assembled when it is read, because most snapshots are replaced
    by better ones without being read, and allocating the 47 MB of all-MiniLM-L6-v2's table takes a tenth of a second.

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
