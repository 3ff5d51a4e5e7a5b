"""GTE-ModernBERT-base (Zhang et al. 2024): ModernBERT trained for sentence vectors, 22 layers of 768, English."""

from __future__ import annotations

from meltpoint.adapters.data.input_format import SentencePooling
from meltpoint.adapters.families import EncoderReference

SUMMARY = "GTE-ModernBERT-base, 22 layers of 768, up to 8192 pieces, English, for sentence vectors; from the hub"

REFERENCE = EncoderReference(
    "gte-modernbert-base", "Alibaba-NLP/gte-modernbert-base", "7ca8b4ca700621b67618669f5378fe5f5820b8e4",
    pooling=SentencePooling("cls"),
)  # fmt: skip
