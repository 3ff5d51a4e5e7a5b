"""What a trial trains on: the device, its threads, and the precision that it can do."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

import torch

Precision = Literal["bf16", "fp32"]


@dataclass(frozen=True)
class Hardware:
    """What a worker was given.

    Attributes:
        device: "cpu" or "cuda:0" (of those that Ray made visible).
        name: the processor's name, for the ledger.
        threads: CPU threads that one operation may use; part of what fixes the last bit of a result.
        gpu_share: the share of the GPU that Ray gave, 0 on a CPU.
    """

    device: str
    name: str
    threads: int
    gpu_share: float = 0.0


def bf16_is_native(device: str) -> bool:
    """Whether the hardware multiplies bf16 itself; emulation would be slower than fp32."""
    if device.startswith("cuda"):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    # oneDNN's answer alone is yes on every AVX-512 processor, those that emulate bf16 included; but it may be held to
    # fewer instructions than the processor has (DNNL_MAX_CPU_ISA).
    return bool(torch.cpu._is_avx512_bf16_supported() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def resolve_precision(wanted: str, device: str) -> Precision:
    """`auto` becomes bf16 where it is native; the other words stay.

    Raises:
        ValueError: bf16 asked for on a GPU that cannot do it.
    """
    if wanted == "fp32" or (wanted == "auto" and not bf16_is_native(device)):
        return "fp32"
    if device.startswith("cuda") and not bf16_is_native(device):
        raise ValueError("precision is bf16, but this GPU has none; use precision: fp32, or auto.")
    return "bf16"


def claim_device(threads: int, gpu_share: float = 0.0) -> Hardware:
    """Take the device that this process was given, and make its arithmetic repeatable.

    Args:
        threads: CPU threads for torch's operations.
        gpu_share: above 0, train on the first visible GPU.

    Raises:
        ValueError: a GPU was asked for and there is none.
    """
    torch.set_num_threads(max(1, threads))
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is repeatable only with a fixed workspace
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Else torch fills every new tensor with NaN, to catch reads of memory never written: a third of a training step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if gpu_share <= 0:
        return Hardware("cpu", torch.backends.cpu.get_cpu_capability(), torch.get_num_threads())
    if not torch.cuda.is_available():
        raise ValueError("this trial was given a GPU, but torch sees none; run `meltpoint doctor` on that machine.")
    return Hardware("cuda:0", torch.cuda.get_device_name(0), torch.get_num_threads(), gpu_share)
