"""E5-base-v2 (Wang et al. 2022): 12 layers of 768, uncased English.

Its files name no prompts. Its model card says: "query: " and "passage: " for retrieval, "query: " for other tasks.
"""

from __future__ import annotations

from meltpoint.adapters.data.input_format import Prompts, SentencePooling
from meltpoint.adapters.families import EncoderReference

SUMMARY = "E5-base-v2, 12 layers of 768, uncased English, for sentence vectors; from the hub"

REFERENCE = EncoderReference(
    "e5-base-v2", "intfloat/e5-base-v2", "cf5b12e53f015942f82e2bc0c3ff70c3826dc087",
    pooling=SentencePooling("mean", normalise=True, longest=512),
    prompts=Prompts((("query", "query: "), ("passage", "passage: "))),
)  # fmt: skip
