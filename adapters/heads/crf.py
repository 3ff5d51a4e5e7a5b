"""Each word's first piece → dropout → linear → CRF over the sentence's labels (Lafferty et al. 2001)."""

from __future__ import annotations

from meltpoint.adapters.heads._paths import PathHead
from meltpoint.adapters.heads.linear import Linear


class Crf(PathHead, Linear):
    """A linear head whose labels are scored as a path; serves sequence labelling only."""

    summary = "each word's first piece → linear → conditional random field"


HEAD = Crf
