"""Memory of workers for mapped files, as counted by the kernel."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

import pytest

from meltpoint.benchmarks.shared_features import mapped_bytes, measure
from meltpoint.tasks.core.task import DataSpec

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts shared pages by process")
PAGE = mmap.PAGESIZE


def test_pages_that_were_read_count_and_those_of_other_files_do_not(tmp_path: Path):
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "states.bin").write_bytes(os.urandom(32 * PAGE))
    files = [(tmp_path / name / "states.bin").open("rb") for name in ("ours", "theirs")]
    ours, _ = (mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) for file in files)
    assert ours[:] == (tmp_path / "ours" / "states.bin").read_bytes()
    assert mapped_bytes(os.getpid(), tmp_path / "ours") == 32 * PAGE
    assert mapped_bytes(os.getpid(), tmp_path / "nobody") == 0
    assert mapped_bytes(os.getpid(), tmp_path / "our") == 0, "a folder whose name only begins so"


@pytest.mark.slow
def test_two_workers_hold_one_copy(toy_encoder: str):
    result = measure(toy_encoder, DataSpec("demo_sentiment", None, 200), workers=2)
    assert result.feature_bytes > 20 * PAGE
    assert result.one_bytes == pytest.approx(result.feature_bytes, rel=0.1)
    assert result.ratio == pytest.approx(1.0, rel=0.1)
