"""What a run of the suite says of the tests that it skipped: one line a reason."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_one(shared, number):
    pass

def test_two(shared):
    pass

@pytest.mark.skipif(True, reason="no such machine")
def test_three():
    pass

def test_four():
    raise AssertionError
"""


def test_a_reason_to_skip_is_one_line_however_many_tests_have_it_and_failures_are_still_listed(
    checkout: Path, tmp_path: Path
) -> None:
    lonely = tmp_path / "meltpoint"  # with no folder `shared` beside it
    (lonely / "tests").mkdir(parents=True)
    for name in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(checkout / name, lonely / name)
    (lonely / "tests" / "test_four.py").write_text(TESTS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=lonely, capture_output=True, encoding="utf-8", timeout=120, check=False)
    reason = "there is no folder ../shared beside the checkout (real data, not part of the project)"
    said = [line for line in done.stdout.splitlines() if "skipped: " in line]
    assert said == [f"4 skipped: {reason}", "1 skipped: no such machine"], done.stdout + done.stderr
    assert "\nFAILED tests/test_four.py::test_four" in done.stdout
    assert (done.stdout.count(reason), done.returncode) == (1, 1)
