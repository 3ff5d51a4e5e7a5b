"""Hardware: the threads that were given, and bf16 exactly where the processor has it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from meltpoint.adapters import hardware
from meltpoint.adapters.hardware import (
    bf16_is_native,
    claim_device,
    is_gpu_out_of_memory,
    resolve_precision,
    unsupported,
)

CPU_FACTS = Path("/proc/cpuinfo")


@pytest.fixture(autouse=True)
def _torch_as_it_was() -> Iterator[None]:
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(strict)


@pytest.mark.parametrize(("asked", "given"), [(1, 1), (2, 2), (0, 1)])
def test_the_process_uses_as_many_threads_as_it_was_given_and_at_least_one(asked: int, given: int):
    found = claim_device(asked)
    assert (found.device, found.threads, found.gpu_share) == ("cpu", given, 0.0)
    assert torch.get_num_threads() == given


def test_a_gpu_where_there_is_none_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="given a GPU, but torch sees none; run `meltpoint doctor`"):
        claim_device(1, gpu_share=0.5)


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize(
    ("wanted", "native", "precision"),
    [("auto", True, "bf16"), ("auto", False, "fp32"), ("fp32", True, "fp32"), ("bf16", True, "bf16")],
)
def test_auto_is_bf16_exactly_where_it_is_native_and_other_words_stay(
    monkeypatch: pytest.MonkeyPatch, device: str, wanted: str, native: bool, precision: str
):
    monkeypatch.setattr(hardware, "bf16_is_native", lambda device: native)
    assert resolve_precision(wanted, device) == precision


@pytest.mark.skipif(not CPU_FACTS.exists(), reason="only Linux lists the processor's instructions in /proc/cpuinfo")
def test_native_bf16_is_what_the_processor_says_of_itself():
    flags = next(
        (line.split() for line in CPU_FACTS.read_text(encoding="utf-8").splitlines() if line.startswith("flags")), []
    )
    assert bf16_is_native("cpu") == ("avx512_bf16" in flags and "DNNL_MAX_CPU_ISA" not in os.environ)


def test_where_onednn_is_held_to_avx2_auto_is_fp32_and_bf16_is_still_computed():
    code = """
import torch
from meltpoint.adapters.hardware import resolve_precision
layer, states = torch.nn.Linear(8, 4), torch.randn(5, 8)
with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
    print(resolve_precision("auto", "cpu"), layer(states).dtype)
"""
    held = {**os.environ, "DNNL_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=held, capture_output=True, encoding="utf-8", timeout=60, check=False
    )
    assert done.stdout.split() == ["fp32", "torch.bfloat16"], done.stderr


def test_bf16_is_emulated_on_a_processor_and_refused_on_a_gpu_that_has_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hardware, "bf16_is_native", lambda device: False)
    assert resolve_precision("bf16", "cpu") == "bf16"
    with pytest.raises(ValueError, match="this GPU does not support it; use precision: fp32, or auto"):
        resolve_precision("bf16", "cuda:0")


@pytest.fixture
def pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A GPU that torch seems to see; torch's switches are put back."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "a GPU")
    tf32, cudnn = torch.backends.cudnn.allow_tf32, torch.backends.cuda.cudnn_sdp_enabled()
    yield
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cuda.enable_cudnn_sdp(cudnn)


@pytest.mark.parametrize(("switch", "strict"), [(None, True), ("1", True), ("0", False), ("off", False)])
def test_on_a_gpu_an_operation_without_a_deterministic_form_raises_unless_it_is_allowed(
    pretended_gpu: None, monkeypatch: pytest.MonkeyPatch, switch: str | None, strict: bool
):
    """With a warning alone, torch's attention would take its other form in the backward pass."""
    if switch is None:
        monkeypatch.delenv(hardware.DETERMINISM, raising=False)
    else:
        monkeypatch.setenv(hardware.DETERMINISM, switch)
    assert claim_device(1, 0.5) == hardware.Hardware("cuda:0", "a GPU", 1, 0.5)
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled() is not strict
    claim_device(1)
    assert torch.is_deterministic_algorithms_warn_only_enabled(), "a CPU's operations warn"


@pytest.mark.parametrize(
    ("capability", "built", "lacking"),
    [
        ((9, 0), ["sm_75", "sm_80", "sm_90"], ""),
        ((8, 9), ["sm_75", "sm_80", "sm_90"], ""),  # code of the same major version runs
        ((7, 0), ["sm_75", "sm_80", "sm_90"], "sm_70"),
        ((12, 0), ["sm_90", "compute_90"], ""),  # PTX is compiled on the machine
        ((12, 0), ["sm_90"], "sm_120"),
    ],
)
def test_a_gpu_that_torch_has_no_code_for_is_known(monkeypatch, capability, built, lacking):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: built)
    assert unsupported(0) == lacking


def test_on_a_gpu_fp32_is_fp32_and_attention_makes_no_plan_for_each_shape(pretended_gpu: None):
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.enable_cudnn_sdp(True)
    claim_device(1, 1.0)
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"), True),
        (torch.AcceleratorError("CUDA error: out of memory"), True),
        (torch.AcceleratorError("CUDA error: device-side assert triggered"), False),
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`"), False),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), False),
        (ValueError("CUBLAS_STATUS_ALLOC_FAILED"), False),
        (MemoryError(), False),
    ],
)
def test_a_workspace_that_a_library_could_not_allocate_is_out_of_gpu_memory(error: Exception, is_memory: bool):
    assert is_gpu_out_of_memory(error) == is_memory
