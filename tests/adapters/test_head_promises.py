"""Every head keeps a head's promises; one that does not is told in plain words which it breaks, and what to do.

The heads are the files in `adapters/heads/`: a new one is tested as soon as its file is there (`-k NAME`).
"""

from __future__ import annotations

import pytest

from meltpoint.adapters import heads
from meltpoint.tasks.core.task import Kind
from meltpoint.tests.adapters.head_promises import BrokenPromiseError, verify

SERVED = [(word, kind) for word in heads.names() for kind in heads.get(word).kinds]


@pytest.mark.parametrize(("word", "kind"), SERVED)
def test_a_head_keeps_its_promises(word: str, kind: Kind):
    broken = ""
    try:
        verify(heads.get(word), kind)
    except BrokenPromiseError as error:
        broken = str(error)
    if broken:  # outside of the handler: the message alone, without tracebacks
        pytest.fail(f"adapters/heads/{word}.py: {broken}", pytrace=False)
