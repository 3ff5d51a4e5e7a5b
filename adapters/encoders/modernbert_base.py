"""ModernBERT-base (Warner et al. 2024): 22 layers of 768, for English and code."""

from __future__ import annotations

from meltpoint.adapters.families import EncoderReference

SUMMARY = "ModernBERT-base, 22 layers of 768, up to 8192 pieces; English and code; from the hub"

REFERENCE = EncoderReference(
    "modernbert-base", "answerdotai/ModernBERT-base", "8949b909ec900327062f0ebf497f51aef5e6f0c8"
)
