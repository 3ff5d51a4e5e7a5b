"""The advice of other packages kept from the terminal, while they do what was checked before."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_logger(name: str) -> Iterator[None]:
    """Let a package's logger pass nothing below an error, and show no warnings."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
