"""EuroBERT-210m (Boizard et al. 2025): 12 layers of 768, for 15 languages and code."""

from __future__ import annotations

from meltpoint.adapters.families import EncoderReference

SUMMARY = "EuroBERT-210m, 12 layers of 768, up to 8192 pieces; 15 languages and code; from the hub"

REFERENCE = EncoderReference("eurobert-210m", "EuroBERT/EuroBERT-210m", "39b51e15dd1f1a06f58b5cbf6a8a188cec60bd0e")
