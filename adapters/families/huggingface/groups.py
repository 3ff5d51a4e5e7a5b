"""Layer groups by the forward pass: which layer's output is the first to depend on a parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn


def find_groups(model: nn.Module, states: Sequence[Tensor]) -> dict[str, int]:
    """The name of each parameter, and the number of its layer group, 0 for the embeddings.

    A layer has the parameters, of those in lists of modules, that its output is the first to depend on, whether the
    family keeps them in one list or (XLM, FlauBERT) in one for each part of a layer. Outside lists, those that the
    first layer's output depends on lie below or beside it (also DeBERTa's relative positions, which every layer
    reads), the rest above (ModernBERT's final norm).

    Args:
        model: the encoder.
        states: all layers' states of a text, embeddings first, with their graph.
    """
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    listed = {id(parameter) for module in lists for parameter in module.parameters()}
    named = sorted(model.named_parameters(), key=lambda pair: id(pair[1]) not in listed)
    found = _first_layers(states)
    first = {name: found[id(parameter)] for name, parameter in named if id(parameter) in found}
    below = 1 if len(states) > 2 else 0  # a single layer's output is already past the norm
    top = max(first.get(name, 0) for name, parameter in named if id(parameter) in listed)
    groups = {}
    for name, parameter in named:
        if id(parameter) in listed:
            groups[name] = first[name] if name in first else _first_beside(name, first)
        else:
            number = min(first.get(name, 0), top)
            groups[name] = 0 if number <= below else number
    return groups


def _first_layers(states: Sequence[Tensor]) -> dict[int, int]:
    """The id of each parameter and the number of the first of the states that depend on it, by autograd's graph."""
    first: dict[int, int] = {}
    seen = set()
    for number, state in enumerate(states):
        nodes = [state.grad_fn]
        while nodes:
            node = nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if hasattr(node, "variable"):  # a leaf of the graph
                first[id(node.variable)] = number
            nodes.extend(below for below, _ in node.next_functions)
    return first


def _first_beside(name: str, first: Mapping[str, int]) -> int:
    """The first layer of the parameters nearest to one that nothing depends on (Longformer's global attention)."""
    while name:
        name = name.rpartition(".")[0]
        near = [number for other, number in first.items() if other.startswith(f"{name}.")]
        if near:
            return min(near)
    return 0
