"""Adam with decoupled weight decay: update rules, and the optimisers of an encoder and of a bundle's heads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from meltpoint.adapters.encoder import LayerGroup

BETA_1, BETA_2 = 0.9, 0.999
"""Decay rates of the two moments: torch.optim.AdamW's defaults, and BERT's (Devlin et al. 2018, A.2)."""

UNCORRECTED_STEP = math.inf
"""The step count at which torch's fused kernels correct nothing: 1 - beta**inf is 1, exactly."""


@dataclass(frozen=True)
class AdamRule:
    """The part of an update that differs between the rules.

    With moments m and v of the gradient, a rate and a decay, both rules are
    w ← w · (1 - rate · decay) - rate · m / (√v + epsilon).

    Attributes:
        corrects_bias: whether m and v are divided by 1 - beta**t at step t, since both begin at 0.
        epsilon: the number that is added to √v.
        moments: the type in which m and v of an encoder's weights are kept between steps.
    """

    corrects_bias: bool
    epsilon: float
    moments: torch.dtype = torch.float32


ADAMW = AdamRule(corrects_bias=True, epsilon=1e-8)
"""torch.optim.AdamW (Loshchilov & Hutter 2019, algorithm 2; epsilon of Kingma & Ba 2015)."""

BERT_ADAM = AdamRule(corrects_bias=False, epsilon=1e-6)
"""`AdamWeightDecayOptimizer` of BERT's released code (google-research/bert, optimization.py)."""

ADAMW_BF16 = replace(ADAMW, moments=torch.bfloat16)
"""AdamW with an encoder's moments in bf16: 4 bytes a weight less. On MRPC and SST-2 it trains as well
(docs/internals/log.md)."""

ADAM_RULES: Mapping[str, AdamRule] = {"adamw": ADAMW, "bert_adam": BERT_ADAM, "adamw_bf16": ADAMW_BF16}
"""Value of `optimiser` → rule."""

MOMENTS = ("exp_avg", "exp_avg_sq")  # torch's names

ALIGNED = 16
"""The number of float32 values in a cache line. Every parameter of every member starts at a cache line, because BLAS
kernels round differently for other alignments, so a member's last bits would depend on its index in the bundle."""

FUSED_FROM = 8192
"""Weights per member from which a fused call per member beats ten vectorised operations over all (measured, 8 members:
770 weights 0.16 against 0.06 ms, 5 000 0.18 against 0.16, 20 000 0.23 against 0.56, 1.9 million 9.5 against 131)."""


class EncoderAdamW(torch.optim.AdamW):
    """torch's fused AdamW with two parameter groups per layer group: vectors (biases and layer norms) do not decay.

    It is created once per trial, because a new optimiser at each unfreezing would lose Adam's moments. A parameter
    without a gradient stays unchanged.

    Args:
        groups: the encoder's layer groups, bottom → top.
        weight_decay: the matrices' weight decay.
        rule: the update rule.
    """

    def __init__(self, groups: Sequence[LayerGroup], weight_decay: float, rule: AdamRule = ADAMW) -> None:
        parameter_groups = []
        for index, group in enumerate(groups):
            matrices = [p for p in group.parameters if p.ndim > 1]
            vectors = [p for p in group.parameters if p.ndim <= 1]
            for parameters, decay in ((matrices, weight_decay), (vectors, 0.0)):
                if parameters:
                    parameter_groups.append({"params": parameters, "weight_decay": decay, "layer_group": index})
        device = next(p.device for group in groups for p in group.parameters)
        # On a GPU, the rates are read from the device, so that a CUDA graph of a step need not be recorded again.
        self._sent = torch.zeros(len(parameter_groups), device=device) if device.type == "cuda" else None
        super().__init__(
            parameter_groups, lr=0.0, betas=(BETA_1, BETA_2), eps=rule.epsilon, fused=True,
            capturable=self._sent is not None,
        )  # fmt: skip
        self.set_rates([0.0] * len(groups))
        self._moments = rule.moments
        if not rule.corrects_bias:
            for parameter in self._parameters():  # like torch's initial state, except that the count stays infinite
                step = torch.full((), UNCORRECTED_STEP, device=parameter.device)
                moments = {name: torch.zeros_like(parameter) for name in MOMENTS}
                self.state[parameter] = {"step": step, **moments}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every weight that has a gradient."""
        if self._moments == torch.float32:
            super().step(closure)
            return
        # torch's kernel needs moments of the weights' type. They are copied back in place, where a CUDA graph reads.
        kept = {(p, name): own for p, state in self.state.items() for name, own in state.items() if name in MOMENTS}
        for (parameter, name), own in kept.items():
            self.state[parameter][name] = own.float()
        super().step(closure)
        for parameter, state in self.state.items():
            for name in MOMENTS:
                narrow = kept.get((parameter, name))
                state[name] = state[name].to(self._moments) if narrow is None else narrow.copy_(state[name])

    def set_rates(self, rates: Sequence[float]) -> None:
        """Set the next steps' learning rates, one per layer group."""
        own = [float(rates[group["layer_group"]]) for group in self.param_groups]
        self.rates: list[float] = own
        if self._sent is not None:
            self._sent.copy_(sent(torch.tensor(own), self._sent.device))
        for number, group in enumerate(self.param_groups):
            group["lr"] = own[number] if self._sent is None else self._sent[number]

    def decay_of(self, parameter: nn.Parameter) -> float:
        """The factor by which the weight decay of a step multiplies a parameter: 1 - rate · decay."""
        for rate, group in zip(self.rates, self.param_groups, strict=True):
            if any(own is parameter for own in group["params"]):
                decay: float = group["weight_decay"]
                return 1.0 - rate * decay
        raise ValueError("the optimiser does not have this parameter")

    def gradients(self) -> list[Tensor]:
        """The gradients of the parameters that have one."""
        return [parameter.grad for parameter in self._parameters() if parameter.grad is not None]

    def scale(self, factor: Tensor) -> None:
        """Multiply the gradients."""
        if factor.device.type == "cpu" and float(factor) == 1.0:
            return  # most steps clip nothing; on a GPU the check would make the host wait
        torch._foreach_mul_(self.gradients(), factor)

    def moments(self) -> dict[str, Tensor]:
        """The state of every parameter that has one: `NUMBER/step`, `NUMBER/exp_avg`, …; not copied."""
        return {
            f"{number}/{name}": own
            for number, parameter in enumerate(self._parameters())
            for name, own in self.state.get(parameter, {}).items()
        }

    def load_moments(self, moments: Mapping[str, Tensor]) -> None:
        """Continue from such a state; call it before the first step."""
        parameters = self._parameters()
        for path, own in moments.items():
            number, name = path.split("/")
            parameter = parameters[int(number)]
            self.state[parameter][name] = own.to(parameter.device, copy=True)

    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.param_groups for parameter in group["params"]]


class StackedAdamW:
    """torch.optim.AdamW, or another rule, with a rate and a decay per member.

    The parameters become views into one (T, N) buffer, matrices first, so they must already be on their device. Their
    gradients are gathered into another buffer once per step, when first needed: autograd returns each as a new tensor,
    and adding it to a zeroed buffer would read and write memory three times instead of once.

    Args:
        parameters: each with a leading dimension T. Vectors (a member's share has at most one dimension: biases,
            norms, a mix's scalars) do not decay.
        decays: (T,) decoupled weight decay.
        rule: the members' update rule.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], decays: Tensor, rule: AdamRule = ADAMW) -> None:
        self._rule = rule
        # Matrices first, so that the decaying weights are one slice of the buffers.
        self._parameters = sorted(parameters, key=lambda parameter: parameter.ndim <= 2)
        self._sizes = [-(-p[0].numel() // ALIGNED) * ALIGNED for p in self._parameters]
        self._matrix_size = sum(size for p, size in zip(self._parameters, self._sizes, strict=True) if p.ndim > 2)
        self.decays = decays.to("cpu", torch.float64)
        shape = (len(self._parameters[0]), sum(self._sizes))
        self.weights = torch.zeros(shape, device=self._parameters[0].device, dtype=self._parameters[0].dtype)
        self._fill(self.weights, [parameter.detach() for parameter in self._parameters])
        self.gradients = torch.zeros_like(self.weights)
        self.first, self.second = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        self.steps = torch.zeros(len(self.weights), dtype=torch.float64)  # on the host, which counts them
        self._gathered = False
        self._bind()

    def _bind(self) -> None:
        """Make the parameters views into the buffer."""
        for parameter, own in zip(self._parameters, self._parts(self.weights), strict=True):
            parameter.data = own
        self._factors = self.weights.new_zeros(3, len(self.weights))

    def _parts(self, buffer: Tensor) -> list[Tensor]:
        """Each parameter's part of a buffer, in its shape."""
        parts = zip(self._parameters, torch.split(buffer, self._sizes, 1), strict=True)
        return [own[:, : p[0].numel()].view(len(buffer), *p.shape[1:]) for p, own in parts]

    def _fill(self, buffer: Tensor, values: Sequence[Tensor | None]) -> None:
        """Write one value per parameter into a buffer; None is 0."""
        for part, value in zip(self._parts(buffer), values, strict=True):
            part.zero_() if value is None else part.copy_(value)

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter in self._parameters:
            parameter.grad = None
        self._gathered = False

    @torch.no_grad()
    def gathered(self) -> Tensor:
        """Every member's gradients from the last `backward`, scaled by `scale`: (T, N)."""
        if not self._gathered:
            self._fill(self.gradients, [parameter.grad for parameter in self._parameters])
            self._gathered = True
        return self.gradients

    def norms(self) -> Tensor:
        """Each member's norm of all its gradients, (T,)."""
        norms: Tensor = torch.linalg.vector_norm(self.gathered(), dim=1)
        return norms

    def scale(self, factors: Tensor) -> None:
        """Multiply each member's gradients by its factor, (T,)."""
        if factors.device.type == "cpu" and bool((factors == 1).all()):
            return  # most steps of most trials clip nothing; on a GPU the check would make the host wait
        self.gathered().mul_(factors[:, None].to(self.gradients))

    def begin(self, rates: Tensor) -> None:
        """Begin a step: drop the gradients, count it, and send its factors to the device.

        Args:
            rates: (T,) float32, the step's learning rates, on the host.
        """
        self.zero_grad()
        self.steps += 1
        self._rates = rates.double()
        if not self._is_fused:
            self._factors.copy_(sent(self._numbers(), self._factors.device))

    @torch.no_grad()
    def step(self) -> None:
        """Update every member's weights; on a GPU, only from what is on the device."""
        self.gathered()
        (self._step_fused if self._is_fused else self._step_vectorised)()

    @property
    def _is_fused(self) -> bool:
        # Depends only on the size, never on the number of members, because the two variants round differently.
        return self.weights.device.type == "cpu" and self.weights.shape[1] > FUSED_FROM

    def _step_fused(self) -> None:
        """torch's fused kernel, once over a member's matrices and once over its vectors: one pass over memory."""
        split, total = self._matrix_size, self.weights.shape[1]
        counts = self.steps if self._rule.corrects_bias else torch.full_like(self.steps, UNCORRECTED_STEP)
        plans = list(zip(self._rates.tolist(), self.decays.tolist(), counts.float(), strict=True))
        for member, (rate, decay, step) in enumerate(plans):
            for begin, end, own in ((0, split, decay), (split, total, 0.0)):
                if begin < end:
                    rows = [b[member, begin:end] for b in (self.weights, self.gradients, self.first, self.second)]
                    torch._fused_adamw_(
                        [rows[0]], [rows[1]], [rows[2]], [rows[3]], [], [step], lr=rate, beta1=BETA_1, beta2=BETA_2,
                        weight_decay=own, eps=self._rule.epsilon, amsgrad=False, maximize=False,
                    )  # fmt: skip

    def _numbers(self) -> Tensor:
        """Each member's factors of the step, (3, T): of the decay, of its size, and of the second moment's root.

        In double precision first, since 1 - 0.999 loses three digits in single precision. Powers one number at a time,
        since the rounding of a tensor's powers depends on its size.
        """
        counts = self.steps.tolist() if self._rule.corrects_bias else [UNCORRECTED_STEP] * len(self.steps)
        first = torch.tensor([1 - BETA_1**count for count in counts], dtype=torch.float64)
        second = torch.tensor([math.sqrt(1 - BETA_2**count) for count in counts], dtype=torch.float64)
        return torch.stack([1 - self._rates * self.decays, self._rates / first, second]).to(self.weights.dtype)

    def _step_vectorised(self) -> None:
        """The same over all members at once: few kernels, and no waiting of the host."""
        kept, size, root = self._factors[:, :, None]
        self.weights[:, : self._matrix_size].mul_(kept)
        self.first.lerp_(self.gradients, 1 - BETA_1)
        self.second.mul_(BETA_2).addcmul_(self.gradients, self.gradients, value=1 - BETA_2)
        self.weights.sub_(self.first / (self.second.sqrt().div_(root).add_(self._rule.epsilon)) * size)

    @torch.no_grad()
    def keep(self, members: Sequence[int]) -> None:
        """Continue with some members, in this order; call it after the modules' own `keep`."""
        chosen = torch.tensor(members, device=self.weights.device)
        assert all(len(p) == len(chosen) for p in self._parameters), "the modules keep their members first"
        self.decays = self.decays[chosen.cpu()]
        self.gradients = torch.zeros_like(self.weights[chosen])
        self.zero_grad()
        self.load({name: tensor[chosen.to(tensor.device)] for name, tensor in self.state().items()})

    def state(self) -> dict[str, Tensor]:
        """Weights and moments, (T, N), and step counts, (T,); the buffers, not copies."""
        return {"weights": self.weights, "first": self.first, "second": self.second, "steps": self.steps}

    @torch.no_grad()
    def load(self, state: dict[str, Tensor]) -> None:
        """Continue from a copy of a state with as many members; `tensor[members]` picks or repeats members."""
        device = self.weights.device
        self.weights, self.first = state["weights"].to(device, copy=True), state["first"].to(device, copy=True)
        self.second, self.steps = state["second"].to(device, copy=True), state["steps"].to("cpu", copy=True)
        self._bind()


def sent(values: Tensor, device: torch.device) -> Tensor:
    """A small tensor of the host on a device; from pinned memory, so that the host need not wait."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values
