"""Multilingual E5-base (Wang et al. 2024): XLM-R's architecture, 12 layers of 768, for 94 languages.

Its files name no prompts. Its model card says: "query: " and "passage: " for retrieval, "query: " for other tasks.
"""

from __future__ import annotations

from meltpoint.adapters.data.input_format import Prompts, SentencePooling
from meltpoint.adapters.families.reference import EncoderReference

SUMMARY = "multilingual E5-base, 12 layers of 768, 94 languages, for sentence vectors; from the hub"

REFERENCE = EncoderReference(
    "multilingual-e5-base", "intfloat/multilingual-e5-base", "d13f1b27baf31030b7fd040960d60d909913633f",
    pooling=SentencePooling("mean", normalise=True, longest=512),
    prompts=Prompts((("query", "query: "), ("passage", "passage: "))),
)  # fmt: skip
