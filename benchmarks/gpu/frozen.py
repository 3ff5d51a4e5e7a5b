"""Trials on a frozen encoder."""

from __future__ import annotations

from meltpoint.benchmarks.gpu.fine_tuning import loop_seconds
from meltpoint.benchmarks.gpu.sizes import Size

HEAD = "bilstm"


def one_trial_seconds(size: Size, encoder: str, device: str) -> float:
    """Training seconds of one frozen trial under the `bilstm` head, its first epoch included."""
    return sum(loop_seconds(size, encoder, device, "feature_extraction", HEAD))
