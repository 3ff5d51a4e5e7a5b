"""What a run of the suite says of the tests that it skipped: one line a reason."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.fixture
def lonely(checkout: Path, tmp_path: Path) -> Path:
    """A checkout with no folder `shared` beside it, and four tests."""
    copy = tmp_path / "meltpoint"
    (copy / "tests").mkdir(parents=True)
    for name in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(checkout / name, copy / name)
    (copy / "tests" / "test_four.py").write_text(TESTS, encoding="utf-8")
    return copy


def test_a_reason_to_skip_is_one_line_however_many_tests_have_it_and_failures_are_still_listed(lonely: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=lonely, capture_output=True, encoding="utf-8", timeout=120, check=False)
    reason = "there is no folder ../shared beside the checkout (real data, not part of the project)"
    said = [line for line in done.stdout.splitlines() if "skipped: " in line]
    assert said == [f"4 skipped: {reason}", "1 skipped: no such machine"], done.stdout + done.stderr
    assert "\nFAILED tests/test_four.py::test_four" in done.stdout
    assert done.stdout.count(reason) == 1
    assert done.returncode == 1
