"""BGE-base-en-v1.5 (Xiao et al. 2023): 12 layers of 768, uncased English; it has a prefix for retrieval only."""

from __future__ import annotations

from meltpoint.adapters.data.input_format import SentencePooling
from meltpoint.adapters.families import EncoderReference

SUMMARY = "BGE-base-en-v1.5, 12 layers of 768, uncased English, for sentence vectors; from the hub"

REFERENCE = EncoderReference(
    "bge-base", "BAAI/bge-base-en-v1.5", "a5beb1e3e68b9ab74eb54cfd186867f64f240e1a",
    pooling=SentencePooling("cls", normalise=True, longest=512),
)  # fmt: skip
