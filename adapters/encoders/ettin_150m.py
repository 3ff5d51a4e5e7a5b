"""Ettin's encoder of 150M weights (Weller et al. 2025): ModernBERT's architecture, 22 layers of 768, for English.

The main branch held pickled weights only when this was written, and no conversion was known to pin. So this is the
newest commit, and a revision with safetensors is named as `ettin-150m@REVISION`.
"""

from __future__ import annotations

from meltpoint.adapters.families import EncoderReference

SUMMARY = (
    "Ettin encoder 150M, 22 layers of 768, English; from the hub, newest commit; ettin-150m@REVISION for safetensors"
)

REFERENCE = EncoderReference("ettin-150m", "jhu-clsp/ettin-encoder-150m")
