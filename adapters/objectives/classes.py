"""A class for each word: the loss and the predictions of tags, which know of no spans."""

from __future__ import annotations

from meltpoint.adapters.objectives.tags import OBJECTIVE as TAGS

OBJECTIVE = TAGS
