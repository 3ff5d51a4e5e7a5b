"""AdamW for an encoder: one rate a layer group, norm and clipping of the gradient; by a kernel where `ops` has one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from meltpoint.adapters import ops
from meltpoint.adapters.encoder import LayerGroup


class EncoderAdamW(torch.optim.AdamW):
    """AdamW (Loshchilov & Hutter 2019, algorithm 2) with two parameter groups a layer group: vectors do not decay.

    Vectors are biases and layer norms. Made once a trial: a new optimiser at each thaw would lose Adam's moments. A
    parameter without a gradient is left as it is. Its state has torch's names. It must not have a `step` that calls
    torch's: torch runs an optimiser's hooks in each of them, so that they would run twice a step.

    Args:
        groups: bottom → top.
        weight_decay: of the matrices.
    """

    def __init__(self, groups: Sequence[LayerGroup], weight_decay: float) -> None:
        parameter_groups = []
        for index, group in enumerate(groups):
            matrices = [p for p in group.parameters if p.ndim > 1]
            vectors = [p for p in group.parameters if p.ndim <= 1]
            for parameters, decay in ((matrices, weight_decay), (vectors, 0.0)):
                if parameters:
                    parameter_groups.append({"params": parameters, "weight_decay": decay, "layer_group": index})
        super().__init__(parameter_groups, lr=0.0, fused=True)

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


class KernelAdamW(EncoderAdamW):
    """The same by a kernel, which moves float32 masters in the place of bf16 parameters.

    Attributes:
        factor: what gradients are multiplied by as the next step reads them.
    """

    def __init__(self, groups: Sequence[LayerGroup], weight_decay: float, kernel: ops.AdamwKernel) -> None:
        super().__init__(groups, weight_decay)
        self.factor, self._kernel = 1.0, kernel

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
    groups: Sequence[LayerGroup], weight_decay: float, masters: Mapping[nn.Parameter, Tensor] | None = None
) -> EncoderAdamW:
    """The optimiser of an encoder, by a kernel where there is one for all its parameters.

    Args:
        masters: what is moved in the place of a bf16 parameter, which is then its rounded copy; float32.
    """
    kernel = ops.adamw([parameter for group in groups for parameter in group.parameters], masters or {})
    assert kernel is not None or not masters, "masters are moved by the CPU's kernel"
    return EncoderAdamW(groups, weight_decay) if kernel is None else KernelAdamW(groups, weight_decay, kernel)
