"""A module's behaviour changed in place: its class becomes a subclass of its own class."""

from __future__ import annotations

from typing import Any

from torch import nn


def specialise(module: nn.Module, mixin: type[nn.Module]) -> None:
    """Let a mixin's methods come before those of the module's own class.

    The module stays the same object, so its weights, their names in a `state_dict`, its hooks and whoever holds it are
    as before; a wrapper would add its own name to every weight's. `torch.nn.utils.parametrize` changes the class of a
    module in the same way, for the same reason.
    """
    module.__class__ = _subclass(mixin, type(module))


def restore(module: nn.Module) -> None:
    """Undo the last `specialise` of a module."""
    assert isinstance(module, _Specialised), f"{type(module).__name__} was not specialised"
    module.__class__ = type(module).own_class


class _Specialised:
    """A mark of the classes made here.

    Attributes:
        own_class: the class before.
    """

    own_class: Any


_made: dict[tuple[type, type], Any] = {}


def _subclass(mixin: type[nn.Module], own: type[nn.Module]) -> Any:
    """The mixin first in the method resolution order; one class for all modules of one class."""
    if (mixin, own) not in _made:
        _made[mixin, own] = type(f"{mixin.__name__}{own.__name__}", (mixin, own, _Specialised), {"own_class": own})
    return _made[mixin, own]
