"""Metrics, one file each, which exports `METRIC`; the file's name is `metric:` in a task file."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, cast

from meltpoint.tasks.core import registry

if TYPE_CHECKING:
    from meltpoint.tasks.core.metric import Metric


@cache
def names() -> tuple[str, ...]:
    """The names of the metrics, in alphabetical order."""
    return tuple(registry.names(sys.modules[__name__]))


@cache
def get(name: str) -> Metric:
    """The metric with a name.

    Raises:
        ValueError: the name is unknown; close matches are listed.
    """
    return cast("Metric", registry.load(sys.modules[__name__], name, "metric").METRIC)
