"""A bundle: trials of one cell that agree on every size, and train as one batched module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from meltpoint.adapters.hyperparameters import COMMON, Parameter, Setting, Value
from meltpoint.adapters.layers.dropout import Dropout, MemberRng

_DROPOUT = next(parameter for parameter in COMMON if parameter.name == "dropout")


@dataclass(frozen=True)
class Bundle:
    """What the parts of a head are built from.

    Attributes:
        settings: one a member; they agree on what shapes the computation.
        rng: the members' random numbers.
        generators: one a member, for its first weights: each part draws on from where the last one stopped.
    """

    settings: Sequence[Setting]
    rng: MemberRng
    generators: Sequence[torch.Generator] = field(init=False)

    def __post_init__(self) -> None:
        assert len(self.settings) == len(self.rng.seeds), "one seed a setting"
        object.__setattr__(self, "generators", [self.rng.initial(member) for member in range(len(self))])

    def __len__(self) -> int:
        return len(self.settings)

    def size(self, parameter: Parameter) -> int:
        """The one value, a whole number, that all members have of a parameter that shapes the computation."""
        return int(self._agreed(parameter))

    def word(self, parameter: Parameter) -> str:
        """The one value, a word, that all members have of a parameter that shapes the computation."""
        return str(self._agreed(parameter))

    def _agreed(self, parameter: Parameter) -> Value:
        assert parameter.shapes, f"{parameter.name} does not shape the computation"
        found = {value(setting, parameter) for setting in self.settings}
        assert len(found) == 1, f"members of a bundle agree on {parameter.name}; these differ: {found}"
        return found.pop()

    def dropout(self, share: float = 1.0) -> Dropout:
        """The head's dropout, each member at its own ratio.

        Args:
            share: what the ratio is multiplied by, for a head whose places of dropout have different ratios; no place
                gets more than the largest ratio that a setting may name.
        """
        ratios = [share * float(value(setting, _DROPOUT)) for setting in self.settings]
        return Dropout([min(ratio, _DROPOUT.maximum) for ratio in ratios], self.rng)

    def parameter(self, *shape: int, fill: Callable[[Tensor, torch.Generator], object]) -> nn.Parameter:
        """A parameter of (T, *shape); `fill(tensor, generator)` sets each member's share in place."""
        tensor = torch.zeros(len(self), *shape)
        for own, generator in zip(tensor, self.generators, strict=True):
            fill(own, generator)
        return nn.Parameter(tensor)


def value(setting: Setting, parameter: Parameter) -> Value:
    """A setting's value of a parameter, in its own type; the default where the setting does not name it."""
    return parameter.check(setting.get(parameter.name, parameter.default))


@torch.no_grad()
def keep_members(module: nn.Module, members: Sequence[int]) -> None:
    """Cut a stacked module down to some of its members, in this order.

    The parameters stay the same objects, so that layer groups and the optimiser still hold them; their gradients go.
    """
    for parameter in module.parameters():
        kept = parameter.data[torch.tensor(members, device=parameter.device)]
        parameter.grad = None
        # By way of another type: only then does autograd forget the old shape where an old loss is still around.
        parameter.data = kept.to(torch.float16)
        parameter.data = kept
    for part in module.modules():
        if isinstance(part, Dropout):
            part.keep(members)


def lanes_of(tensor: Tensor, lanes: int) -> Tensor:
    """(lanes * batch, …) → (lanes, batch, …)."""
    return tensor.view(lanes, -1, *tensor.shape[1:])


def shares(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Tensors of (T, …) as they are best computed with: on a CPU a member at a time, on a GPU all at once.

    On a CPU what one member needs stays in the cache, where a whole stack's would not, and its products and sums have
    the shapes that they have where it is alone, hence the same last bits.

    Yields:
        Each tensor's share, (1, …) or (T, …).
    """
    size = len(tensors[0]) if tensors[0].is_cuda else 1
    yield from zip(*(torch.split(tensor, size) for tensor in tensors), strict=True)
