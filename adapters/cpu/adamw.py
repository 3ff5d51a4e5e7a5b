"""AdamW of an encoder's parameters by one loop: the gradient's factor, the moments, the weights, their copy in bf16."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from meltpoint.adapters.cpu.kernels import adamw as kernels
from meltpoint.adapters.cpu.kernels.numbers import array
from meltpoint.adapters.cpu.kernels.threads import parallel_for


class _Memory(NamedTuple):
    """A parameter's memory as flat arrays, changed by a step; and the address that they were made for."""

    weights: NDArray[Any]
    first: NDArray[Any]
    second: NDArray[Any]
    rounded: NDArray[Any]
    address: int


class Adamw:
    """AdamW's arithmetic (Loshchilov & Hutter 2019, algorithm 2) for parameters of bf16 or float32 on the CPU.

    Args:
        masters: what is moved in the place of a bf16 parameter, which is then its rounded copy; float32.
    """

    def __init__(self, masters: Mapping[nn.Parameter, Tensor]) -> None:
        self._masters = masters
        self._memory: dict[nn.Parameter, _Memory] = {}

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The norm of all gradients together: a number, float32."""
        read = [array(gradient.contiguous()) for gradient in gradients]
        return torch.tensor(math.sqrt(sum(kernels.squares(gradient) for gradient in read)))

    def step(self, parameter: nn.Parameter, state: dict[str, Any], group: Mapping[str, Any], factor: float) -> None:
        """Move one parameter by its gradient times a factor.

        Args:
            state: the parameter's, with torch's names; filled at the first step.
            group: its parameter group; `corrects_bias` is False for Adam without bias correction.

        Raises:
            TypeError: a bf16 parameter without a master.
        """
        assert parameter.grad is not None, "a parameter without a gradient stays as it is"
        gradient, memory = array(parameter.grad.contiguous()), self._memory_of(parameter, state)
        state["step"] += 1
        rate, (beta_1, beta_2) = float(group["lr"]), group["betas"]
        count = state["step"] if group.get("corrects_bias", True) else math.inf  # then both corrections are 1
        numbers = (
            factor, 1 - rate * group["weight_decay"], 1 - beta_1, beta_2, 1 - beta_2,
            rate / (1 - beta_1**count), math.sqrt(1 - beta_2**count), group["eps"],
        )  # fmt: skip

        def run(begin: int, end: int) -> None:
            kernels.step(memory.weights, gradient, memory.first, memory.second, memory.rounded, *numbers, begin, end)

        parallel_for(gradient.size, run)

    def _memory_of(self, parameter: nn.Parameter, state: dict[str, Any]) -> _Memory:
        known = self._memory.get(parameter)
        if known is not None and known.address == parameter.data_ptr():
            return known
        weights = self._masters.get(parameter, parameter.detach())
        if weights.dtype != torch.float32 or not weights.is_contiguous():
            raise TypeError(f"a {parameter.dtype} parameter needs a float32 master that lies in one piece")
        if not state:
            state["step"] = 0
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weights), torch.zeros_like(weights)
        rounded = parameter if parameter in self._masters else parameter.new_empty(0, dtype=torch.bfloat16)
        self._memory[parameter] = _Memory(
            array(weights), array(state["exp_avg"]), array(state["exp_avg_sq"]), array(rounded), parameter.data_ptr()
        )
        return self._memory[parameter]
