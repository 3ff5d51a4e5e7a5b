"""`make test-machines`: a failure under one kind of machine is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from meltpoint.tests import machines


def asked(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "tests/machines.py", "--out", str(out), *words]
    return subprocess.run(command, cwd=machines.ROOT, capture_output=True, encoding="utf-8", timeout=120, check=False)


def test_a_failure_under_one_kind_or_a_run_that_counts_nothing_is_in_its_row_and_in_the_exit_status(
    tmp_path: Path,
) -> None:
    test = tmp_path / "test_umask.py"
    test.write_text("import os\n\ndef test_umask():\n    assert os.umask(0) != 0o077\n\ndef test_other():\n    pass\n")
    for kind, path, row in (("umask", test, ["1", "1", "0"]), ("hash-seed", tmp_path / "nowhere.py", ["0", "1", "0"])):
        done = asked(tmp_path, kind, "--tests", str(path))
        assert done.stdout.splitlines()[-1].split()[:4] == [kind, *row], done.stdout + done.stderr
        assert done.returncode == 1
    assert "test_umask" in (tmp_path / "umask.log").read_text(encoding="utf-8")
