"""AdamW for an encoder: one rate a layer group, the gradient's norm and clipping; on a CPU by one compiled loop."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from meltpoint.adapters.cpu.kernels import adamw as kernels
from meltpoint.adapters.cpu.kernels.numbers import TYPES, array
from meltpoint.adapters.cpu.kernels.threads import parallel_for
from meltpoint.adapters.encoder import LayerGroup


class _Memory(NamedTuple):
    """Flat views of a parameter and its moments, which a step changes."""

    weights: NDArray[Any]
    first: NDArray[Any]
    second: NDArray[Any]
    rounded: NDArray[Any]
    address: int


class EncoderAdamW(torch.optim.AdamW):
    """AdamW (Loshchilov & Hutter 2019, algorithm 2) with two parameter groups a layer group: vectors do not decay.

    Vectors are biases and layer norms. Made once a trial: a new optimiser at each thaw would lose Adam's moments. A
    parameter without a gradient is left as it is. Its state has torch's names.

    Args:
        groups: bottom → top.
        weight_decay: of the matrices.
        masters: what is moved in the place of a bf16 parameter, which is then its rounded copy; float32.

    Attributes:
        factor: what gradients are multiplied by as the next step reads them; on a GPU they are multiplied at once.
    """

    def __init__(
        self, groups: Sequence[LayerGroup], weight_decay: float, masters: Mapping[nn.Parameter, Tensor] | None = None
    ) -> None:
        parameter_groups = []
        for index, group in enumerate(groups):
            matrices = [p for p in group.parameters if p.ndim > 1]
            vectors = [p for p in group.parameters if p.ndim <= 1]
            for parameters, decay in ((matrices, weight_decay), (vectors, 0.0)):
                if parameters:
                    parameter_groups.append({"params": parameters, "weight_decay": decay, "layer_group": index})
        super().__init__(parameter_groups, lr=0.0, fused=True)
        self._masters = masters or {}
        self._memory: dict[nn.Parameter, _Memory] = {}
        self.factor = 1.0
        every = [parameter for group in self.param_groups for parameter in group["params"]]
        self._by_kernel = all(p.device.type == "cpu" and p.dtype in TYPES for p in every)
        assert self._by_kernel or not self._masters, "masters are moved on a CPU"

    def gradients(self) -> list[Tensor]:
        """Those that there are."""
        every = (parameter.grad for group in self.param_groups for parameter in group["params"])
        return [gradient for gradient in every if gradient is not None]

    def norm(self) -> Tensor:
        """Of all gradients together: a number, float32 on a CPU."""
        if not self._by_kernel:
            total: Tensor = nn.utils.get_total_norm(self.gradients())
            return total
        read = [array(gradient.contiguous()) for gradient in self.gradients()]
        return torch.tensor(math.sqrt(sum(kernels.squares(gradient) for gradient in read)))

    def scale(self, factor: Tensor) -> None:
        """Multiply the gradients, for the step that follows."""
        if self._by_kernel:
            self.factor = float(factor)
        else:
            torch._foreach_mul_(self.gradients(), factor)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        if not self._by_kernel:
            super().step(closure)
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, array(parameter.grad.contiguous()), group)
        self.factor = 1.0

    def _move(self, parameter: nn.Parameter, gradient: NDArray[Any], group: dict[str, Any]) -> None:
        memory, state = self._memory_of(parameter), self.state[parameter]
        state["step"] += 1
        rate, (beta_1, beta_2) = float(group["lr"]), group["betas"]
        numbers = (
            self.factor, 1 - rate * group["weight_decay"], 1 - beta_1, beta_2, 1 - beta_2,
            rate / (1 - beta_1 ** state["step"]), math.sqrt(1 - beta_2 ** state["step"]), group["eps"],
        )  # fmt: skip

        def run(begin: int, end: int) -> None:
            kernels.step(memory.weights, gradient, memory.first, memory.second, memory.rounded, *numbers, begin, end)

        parallel_for(gradient.size, run)

    def _memory_of(self, parameter: nn.Parameter) -> _Memory:
        known = self._memory.get(parameter)
        if known is not None and known.address == parameter.data_ptr():
            return known
        weights = self._masters.get(parameter, parameter.detach())
        if weights.dtype != torch.float32 or not weights.is_contiguous():
            raise TypeError(f"a {parameter.dtype} parameter needs a float32 master that lies in one piece")
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weights), torch.zeros_like(weights)
        rounded = parameter if parameter in self._masters else parameter.new_empty(0, dtype=torch.bfloat16)
        self._memory[parameter] = _Memory(
            array(weights), array(state["exp_avg"]), array(state["exp_avg_sq"]), array(rounded), parameter.data_ptr()
        )
        return self._memory[parameter]
