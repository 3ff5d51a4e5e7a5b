"""The hardware of a trial: its device, its number of threads, and the precision that it supports."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal

import torch

Precision = Literal["bf16", "fp32"]

DETERMINISM = "MELTPOINT_DETERMINISTIC"
"""The environment variable; 0, off, false or no allows a GPU to use operations without a deterministic form."""

GRAPHS = "MELTPOINT_CUDA_GRAPHS"
"""The environment variable; 0, off, false or no starts each kernel by itself in place of CUDA graphs
(`training.graphs`)."""

_LIBRARY_ALLOCATION = re.compile(
    r"\bCU(BLAS|DNN|SOLVER|SPARSE)_STATUS_\w*ALLOC\w*_FAILED\b|CUBLAS_STATUS_NOT_INITIALIZED.*cublasCreate"
)


def unsupported(index: int) -> str:
    """A GPU's architecture, if this torch has no code for it (a V100 with wheels for CUDA 13); otherwise ""."""
    major, minor = torch.cuda.get_device_capability(index)
    own = [one.partition("_") for one in torch.cuda.get_arch_list()]
    known = [(kind, int(digits[:-1]), int(digits[-1])) for kind, _, digits in own if digits.isdecimal()]
    fits = any(
        (kind == "sm" and high == major and low <= minor) or (kind == "compute" and (high, low) <= (major, minor))
        for kind, high, low in known
    )
    return "" if fits or not known else f"sm_{major}{minor}"


@dataclass(frozen=True)
class Hardware:
    """The device and the threads that a worker was assigned.

    Attributes:
        device: "cpu" or "cuda:0" (of the GPUs that Ray made visible).
        name: the GPU's name or the CPU's instruction set, for the ledger.
        threads: CPU threads that one operation may use; results depend on it in their last bits.
        gpu_share: the fraction of the GPU that Ray assigned, 0 on a CPU.
    """

    device: str
    name: str
    threads: int
    gpu_share: float = 0.0


def is_gpu_out_of_memory(error: BaseException) -> bool:
    """True if a GPU's memory was too small: for torch's own tensors, or for a workspace of NVIDIA's libraries.

    The libraries allocate outside torch, which reports their status as a RuntimeError. On an H100 with 1.8 GiB left,
    `cublasCreate` failed once the tensors had taken the rest (docs/internals/log.md). CUDA itself reports a lack for a
    context or a graph as an AcceleratorError.
    """
    is_library = isinstance(error, RuntimeError) and _LIBRARY_ALLOCATION.search(str(error)) is not None
    is_cudas_own = isinstance(error, torch.AcceleratorError) and "out of memory" in str(error)
    return is_library or is_cudas_own or isinstance(error, torch.OutOfMemoryError)


def bf16_is_native(device: str) -> bool:
    """True if the hardware multiplies bf16 natively; emulation would be slower than fp32."""
    if device.startswith("cuda"):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    # Both checks are needed: oneDNN's is true on every AVX-512 processor, including those that emulate bf16, and the
    # processor's check ignores that DNNL_MAX_CPU_ISA may restrict oneDNN to fewer instructions.
    return bool(torch.cpu._is_avx512_bf16_supported() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def resolve_precision(wanted: str, device: str) -> Precision:
    """Resolve `auto` to bf16 if it is native, otherwise to fp32; other values are returned unchanged.

    Raises:
        ValueError: bf16 on a GPU that does not support it.
    """
    if wanted == "fp32" or (wanted == "auto" and not bf16_is_native(device)):
        return "fp32"
    if device.startswith("cuda") and not bf16_is_native(device):
        raise ValueError("precision is bf16, but this GPU does not support it; use precision: fp32, or auto.")
    return "bf16"


def is_on(variable: str) -> bool:
    """True unless the environment turns off `DETERMINISM` or `GRAPHS`."""
    return os.environ.get(variable, "").lower() not in ("0", "off", "false", "no")


def claim_device(threads: int, gpu_share: float = 0.0) -> Hardware:
    """Configure torch for the device that this process was assigned, with deterministic algorithms.

    On a GPU, an operation without a deterministic algorithm raises (`DETERMINISM` allows it). If torch only warned, its
    attention kernels would also use their other form, and the same trial would give other numbers.

    Args:
        threads: CPU threads for torch's operations.
        gpu_share: above 0, train on the first visible GPU.

    Raises:
        ValueError: a GPU was assigned, but torch finds none.
    """
    torch.set_num_threads(max(1, threads))
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with a fixed workspace
    is_strict = gpu_share > 0 and is_on(DETERMINISM)
    torch.use_deterministic_algorithms(True, warn_only=not is_strict)
    # Otherwise torch fills every new tensor with NaN to detect uninitialised reads, a third of a training step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if gpu_share <= 0:
        return Hardware("cpu", torch.backends.cpu.get_cpu_capability(), torch.get_num_threads())
    if not torch.cuda.is_available():
        raise ValueError("this trial was given a GPU, but torch sees none; run `meltpoint doctor` on that machine.")
    torch.backends.cudnn.allow_tf32 = False  # for LSTMs and convolutions; products are float32 by default
    # cuDNN's attention makes a plan for each new shape, and batches grouped by length have dozens of shapes.
    torch.backends.cuda.enable_cudnn_sdp(False)
    return Hardware("cuda:0", torch.cuda.get_device_name(0), torch.get_num_threads(), gpu_share)
