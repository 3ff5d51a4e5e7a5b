"""The pooling of a cell whose default head is that of sentence encoders: the encoder's own, unless the space says."""

from __future__ import annotations

from dataclasses import replace

from meltpoint.adapters import modes
from meltpoint.adapters.data.pairing import OWN_POOLING, POOLING_KIND
from meltpoint.adapters.default_head import DefaultHead
from meltpoint.search_spaces.ranges import Fixed
from meltpoint.search_spaces.space import Space

SOURCE = "the encoder's own, since its pooling is why the cell has this head"


def with_own_pooling(space: Space, mode: str, head: DefaultHead) -> Space:
    """A cell's space in which each setting names the encoder's own pooling, where the head was chosen for it.

    Args:
        space: the cell's, with overrides; one that names `pooling.kind`, as the shipped ones do, stays as it is, and so
            does an exported setting.
        mode: the cell's mode.
        head: the cell's head, with the source of the choice.
    """
    if head != modes.get(mode).default_heads.pooled or POOLING_KIND in space.parameters or space.provenance:
        return space
    return replace(
        space, parameters={**space.parameters, POOLING_KIND: Fixed(OWN_POOLING, source=SOURCE)},
        sources={**space.sources, POOLING_KIND: "the encoder"},
    )  # fmt: skip
