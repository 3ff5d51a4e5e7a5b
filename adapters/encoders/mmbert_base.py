"""mmBERT-base (Marone et al. 2025): ModernBERT's architecture, 22 layers of 768, for over 1800 languages.

The main branch holds pickled weights only, so this is the hub's own conversion of them (pull request 3), checked by
its sha256.
"""

from __future__ import annotations

from meltpoint.adapters.families import EncoderReference

SUMMARY = "mmBERT-base, 22 layers of 768, up to 8192 pieces; over 1800 languages; from the hub"

REFERENCE = EncoderReference(
    "mmbert-base", "jhu-clsp/mmBERT-base", "refs/pr/3",
    "8c165a383f10fe64007327c5a9f78f23c53f7eac406d2f84501d24e3a39024d2",
)  # fmt: skip
