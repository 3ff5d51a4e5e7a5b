"""The operations of the kernels for CPUs, as `ops` imports them; without numba this import fails."""

from __future__ import annotations

from meltpoint.adapters.cpu.adamw import Adamw
from meltpoint.adapters.cpu.attention import attend
from meltpoint.adapters.cpu.dropout import drop
from meltpoint.adapters.cpu.fused_qkv import self_attend
from meltpoint.adapters.cpu.gelu import gelu
from meltpoint.adapters.cpu.kernels import warming
from meltpoint.adapters.cpu.member_dropout import drop_members
from meltpoint.adapters.cpu.mixing import mix
from meltpoint.adapters.cpu.residual_norm import residual_norm
from meltpoint.adapters.cpu.unpadded_attention import attend_first, attend_unpadded

__all__ = [
    "Adamw", "attend", "attend_first", "attend_unpadded", "drop", "drop_members", "gelu", "mix", "residual_norm",
    "self_attend", "warming",
]  # fmt: skip
