"""A module of plain torch that was made for one trial, applied for every member of a bundle with weights of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from meltpoint.adapters.layers.bundle import Bundle
from meltpoint.adapters.layers.dropout import Dropout


class ByMember(nn.Module):
    """One module that holds all members' weights, called a member at a time.

    A member's call is the module's own with the member's weights, so it rounds as it does alone. Each plain dropout of
    the module becomes the bundle's, with the setting's ratio. The module may have no buffers.

    Args:
        modules: one a member, alike but for their weights; the first one is taken over.
        bundle: the members.
    """

    __call__: Callable[..., Tensor]

    def __init__(self, modules: Sequence[nn.Module], bundle: Bundle) -> None:
        super().__init__()
        assert not list(modules[0].buffers()), "a bundle keeps parameters only"
        own = [dict(module.named_parameters()) for module in modules]
        self.module = modules[0]
        for name in own[0]:
            _replace_parameter(self.module, name, _stacked([parameters[name] for parameters in own], bundle))
        self.dropouts = nn.ModuleList(_replace_dropouts(self.module, bundle))

    def forward(self, states: Tensor, *shared: Tensor) -> Tensor:
        """Call the module for each member.

        Args:
            states: (T or 1, …), the module's first argument; 1 where all members read the same.
            shared: further arguments, (1 or T, …) each.

        Returns:
            (T, …), what the module returned for each member.
        """
        parameters = {name: own.unbind(0) for name, own in self.module.named_parameters()}
        members = len(next(iter(parameters.values())))
        found = []
        for member in range(members):
            for dropout in self.dropouts:
                dropout.member = member  # type: ignore[assignment]
            own = {name: every[member] for name, every in parameters.items()}
            # Copies, because the last bits of a product may depend on where its factors begin in memory.
            given = [tensor[member if len(tensor) > 1 else 0].clone() for tensor in (states, *shared)]
            found.append(functional_call(self.module, own, tuple(given)))
        return torch.stack(found)


class MemberDropout(nn.Module):
    """A place of dropout in a module that is called a member at a time.

    Args:
        dropout: the bundle's.

    Attributes:
        member: the member whose call it is; they come in order.
    """

    def __init__(self, dropout: Dropout) -> None:
        super().__init__()
        self.dropout = dropout
        self.member = 0
        self._kept: Tensor | None = None

    def forward(self, states: Tensor) -> Tensor:
        """States of one member → the same, dropped by its own ratio and mask."""
        if self.member == 0:  # drawn for all members at once: they count the same calls as one alone
            ones = torch.ones_like(states)[None]
            kept = self.dropout(ones)
            self._kept = None if kept is ones else kept
        return states if self._kept is None else states * self._kept[self.member]


def _stacked(tensors: Sequence[Tensor], bundle: Bundle) -> nn.Parameter:
    """The members' first weights as one parameter of the bundle."""
    own = iter(tensors)
    return bundle.parameter(*tensors[0].shape, fill=lambda tensor, _: tensor.copy_(next(own).detach()))


def _replace_parameter(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    path, _, last = name.rpartition(".")
    setattr(module.get_submodule(path), last, parameter)


def _replace_dropouts(module: nn.Module, bundle: Bundle) -> list[MemberDropout]:
    """Put the bundle's dropout where a plain `nn.Dropout` is."""
    found = []
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Dropout):
                found.append(MemberDropout(bundle.dropout()))
                setattr(parent, name, found[-1])
    return found
