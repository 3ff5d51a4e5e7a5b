"""Multilingual E5-base (Wang et al. 2024): XLM-R's architecture, 12 layers of 768, for 94 languages.

Pooling and prompts are those of E5-base-v2, as its model card says.
"""

from __future__ import annotations

from meltpoint.adapters.encoders import e5_base_v2
from meltpoint.adapters.families import EncoderReference

SUMMARY = "multilingual E5-base, 12 layers of 768, 94 languages, for sentence vectors; from the hub"

REFERENCE = EncoderReference(
    "multilingual-e5-base", "intfloat/multilingual-e5-base", "d13f1b27baf31030b7fd040960d60d909913633f",
    pooling=e5_base_v2.REFERENCE.pooling, prompts=e5_base_v2.REFERENCE.prompts,
)  # fmt: skip
