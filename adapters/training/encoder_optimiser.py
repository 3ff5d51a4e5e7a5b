"""Adam with decoupled decay for an encoder: a rate a layer group, norm, clipping; by a kernel where `ops` has one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from meltpoint.adapters import ops
from meltpoint.adapters.encoder import LayerGroup
from meltpoint.adapters.training.adam_rules import ADAMW, BETA_1, BETA_2, UNCORRECTED_STEP, AdamRule


class EncoderAdamW(torch.optim.AdamW):
    """AdamW (Loshchilov & Hutter 2019, algorithm 2) with two parameter groups a layer group: vectors do not decay.

    Vectors are biases and layer norms. Made once a trial: a new optimiser at each thaw would lose Adam's moments. A
    parameter without a gradient is left as it is. Its state has torch's names. It must not have a `step` that calls
    torch's: torch runs an optimiser's hooks in each of them, so that they would run twice a step.

    Args:
        groups: bottom → top.
        weight_decay: of the matrices.
        rule: the update rule; this class itself computes AdamW's.
    """

    def __init__(self, groups: Sequence[LayerGroup], weight_decay: float, rule: AdamRule = ADAMW) -> None:
        parameter_groups = []
        for index, group in enumerate(groups):
            matrices = [p for p in group.parameters if p.ndim > 1]
            vectors = [p for p in group.parameters if p.ndim <= 1]
            for parameters, decay in ((matrices, weight_decay), (vectors, 0.0)):
                if parameters:
                    parameter_groups.append({"params": parameters, "weight_decay": decay, "layer_group": index})
        super().__init__(parameter_groups, lr=0.0, betas=(BETA_1, BETA_2), eps=rule.epsilon, fused=True)

    def gradients(self) -> list[Tensor]:
        """The gradients that there are."""
        return [parameter.grad for parameter in self._every() if parameter.grad is not None]

    def norm(self) -> Tensor:
        """The norm of all gradients together: a number, float32 on a CPU."""
        total: Tensor = nn.utils.get_total_norm(self.gradients())
        return total

    def scale(self, factor: Tensor) -> None:
        """Multiply the gradients, for the step that follows."""
        torch._foreach_mul_(self.gradients(), factor)

    def moments(self) -> dict[str, Tensor]:
        """The state of every parameter that was moved: `NUMBER/step`, `NUMBER/exp_avg`, …; not copied."""
        found: dict[str, Tensor] = {}
        for number, parameter in enumerate(self._every()):
            for name, own in self.state.get(parameter, {}).items():
                found[f"{number}/{name}"] = own if isinstance(own, Tensor) else torch.tensor(float(own))
        return found

    def load_moments(self, moments: Mapping[str, Tensor]) -> None:
        """Continue from such a state; call it before the first step."""
        for number, parameter in enumerate(self._every()):
            prefix = f"{number}/"
            own = {name.removeprefix(prefix): t for name, t in moments.items() if name.startswith(prefix)}
            if own:
                self.state[parameter] = {name: t.to(parameter.device, copy=True) for name, t in own.items()}

    def _every(self) -> list[nn.Parameter]:
        return [parameter for group in self.param_groups for parameter in group["params"]]


class UncorrectedAdam(EncoderAdamW):
    """Adam without bias correction, by the kernel that torch's AdamW calls; its state is AdamW's."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        for group in self.param_groups:
            moved = [parameter for parameter in group["params"] if parameter.grad is not None]
            if moved:
                self._move(moved, group)

    def _move(self, parameters: list[nn.Parameter], group: Mapping[str, Any]) -> None:
        states = [self._state_of(parameter) for parameter in parameters]
        for state in states:
            state["step"] += 1
        uncorrected = torch.full((), UNCORRECTED_STEP, device=parameters[0].device)
        torch._fused_adamw_(
            list[Tensor](parameters), [parameter.grad for parameter in parameters if parameter.grad is not None],
            [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states], [],
            [uncorrected] * len(parameters), lr=group["lr"], beta1=group["betas"][0], beta2=group["betas"][1],
            weight_decay=group["weight_decay"], eps=group["eps"], amsgrad=False, maximize=False,
        )  # fmt: skip

    def _state_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """A parameter's state, made at its first step."""
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state


class KernelAdamW(EncoderAdamW):
    """Either rule by a kernel, which moves float32 masters in the place of bf16 parameters.

    Attributes:
        factor: what gradients are multiplied by as the next step reads them.
    """

    def __init__(
        self, groups: Sequence[LayerGroup], weight_decay: float, kernel: ops.AdamwKernel, rule: AdamRule = ADAMW
    ) -> None:
        super().__init__(groups, weight_decay, rule)
        self.factor, self._kernel = 1.0, kernel
        for group in self.param_groups:
            group["corrects_bias"] = rule.corrects_bias

    def norm(self) -> Tensor:
        """The norm of all gradients together: a number, float32."""
        return self._kernel.norm(self.gradients())

    def scale(self, factor: Tensor) -> None:
        """Multiply the gradients, in the step that follows."""
        self.factor = float(factor)

    def load_moments(self, moments: Mapping[str, Tensor]) -> None:
        """Continue from such a state; call it before the first step."""
        super().load_moments(moments)
        for state in self.state.values():
            state["step"] = int(state["step"])

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._kernel.step(parameter, self.state[parameter], group, self.factor)
        self.factor = 1.0


def encoder_adamw(
    groups: Sequence[LayerGroup], weight_decay: float, masters: Mapping[nn.Parameter, Tensor] | None = None,
    rule: AdamRule = ADAMW,
) -> EncoderAdamW:  # fmt: skip
    """The optimiser of an encoder, by a kernel where there is one for all its parameters.

    Args:
        masters: what is moved in the place of a bf16 parameter, which is then its rounded copy; float32.
    """
    kernel = ops.adamw([parameter for group in groups for parameter in group.parameters], masters or {})
    assert kernel is not None or not masters, "masters are moved by the CPU's kernel"
    if kernel is not None:
        return KernelAdamW(groups, weight_decay, kernel, rule)
    return (EncoderAdamW if rule.corrects_bias else UncorrectedAdam)(groups, weight_decay, rule)
