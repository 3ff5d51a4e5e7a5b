"""DeBERTa-v3-small (He et al. 2023): 6 layers of 768, cased English.

The main branch holds pickled weights only, so this is the hub's own conversion of them (an open pull request).
"""

from __future__ import annotations

from meltpoint.adapters.families import EncoderReference

SUMMARY = "DeBERTa-v3-small, 6 layers of 768, cased English; from the hub"

REFERENCE = EncoderReference(
    "deberta-v3-small", "microsoft/deberta-v3-small", "a59be8aa63396e73dbb45a1487e4cde4be98bfa4"
)
