"""What tiny trials train on: a CPU, or with MELTPOINT_TEST_DEVICE=cuda the first GPU; and what holds on a CPU alone."""

from __future__ import annotations

import os

import pytest

from meltpoint.adapters.hardware import Hardware, claim_device

CPU = Hardware("cpu", "the tests' processor", 1)
ON_GPU = os.environ.get("MELTPOINT_TEST_DEVICE") == "cuda"
HARDWARE = claim_device(1, 1.0) if ON_GPU else CPU

cpu_bits = pytest.mark.skipif(ON_GPU, reason="a GPU rounds a product by how many rows or members it has")
cpu_tensors = pytest.mark.skipif(ON_GPU, reason="hands the model tensors of the CPU")
cpu_draws = pytest.mark.skipif(ON_GPU, reason="counts epochs that depend on the CPU's random numbers")
