"""DeBERTa-v3-base (He et al. 2023): 12 layers of 768, cased English.

The main branch holds pickled weights only, so this is the hub's own conversion of them (pull request 4).
"""

from __future__ import annotations

from meltpoint.adapters.families import EncoderReference

SUMMARY = "DeBERTa-v3-base, 12 layers of 768, cased English; from the hub"

REFERENCE = EncoderReference("deberta-v3-base", "microsoft/deberta-v3-base", "82d8d18a7b88346261ba15d8b1044900a452cf90")
