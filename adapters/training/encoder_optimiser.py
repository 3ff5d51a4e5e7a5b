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
    parameter without a gradient is left as it is. Its state has torch's names.

    Args:
        groups: bottom → top.
        weight_decay: of the matrices.
        masters: what is moved in the place of a bf16 parameter, which is then its rounded copy; float32.

    Attributes:
        factor: what gradients are multiplied by as a kernel's next step reads them; without one they are multiplied at
            once.
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
        self.factor = 1.0
        every = [parameter for group in self.param_groups for parameter in group["params"]]
        self._kernel = ops.adamw(every, masters or {})
        assert self._kernel is not None or not masters, "masters are moved by the CPU's kernel"

    def gradients(self) -> list[Tensor]:
        """The gradients that there are."""
        every = (parameter.grad for group in self.param_groups for parameter in group["params"])
        return [gradient for gradient in every if gradient is not None]

    def norm(self) -> Tensor:
        """The norm of all gradients together: a number, float32 on a CPU."""
        if self._kernel is None:
            total: Tensor = nn.utils.get_total_norm(self.gradients())
            return total
        return self._kernel.norm(self.gradients())

    def scale(self, factor: Tensor) -> None:
        """Multiply the gradients, for the step that follows."""
        if self._kernel is None:
            torch._foreach_mul_(self.gradients(), factor)
        else:
            self.factor = float(factor)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        if self._kernel is None:
            super().step(closure)
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._kernel.step(parameter, self.state[parameter], group, self.factor)
        self.factor = 1.0
