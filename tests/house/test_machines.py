"""`make test-machines`: a process under each kind really sees another machine, and a failure under one is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meltpoint.tests import machines

# Each would fail on a machine as it is, unless that is of the kind itself.
CLAIMS = {
    "haswell": "os.environ['OPENBLAS_CORETYPE'] == 'Haswell'",
    "sandybridge": "os.environ['OPENBLAS_CORETYPE'] == 'Sandybridge'",
    "avx2": "__import__('torch').backends.cpu.get_cpu_capability() == 'AVX2'",
    "one-core": "len(os.sched_getaffinity(0)) == 1",
    "hash-seed": "os.environ['PYTHONHASHSEED'] == '1'",
    "ascii-locale": "not sys.flags.utf8_mode and locale.getencoding() != 'UTF-8'",
    "time-zone": "time.tzname[0] == '+1245'",
    "umask": "os.umask(0o077) == 0o077",
    "path": "__import__('meltpoint').__path__ == [os.getcwd()] and ' ' in os.getcwd() and not os.getcwd().isascii()",
}
CLAIMS["path+umask+time-zone"] = " and ".join(CLAIMS[kind] for kind in ("path", "umask", "time-zone"))


@pytest.mark.parametrize("kind", CLAIMS)
def test_a_process_under_a_kind_sees_that_machine(kind: str, tmp_path: Path) -> None:
    try:
        with machines.prepared(kind, tmp_path) as run:
            code = f"import locale, os, sys, time\nassert {CLAIMS[kind]}"
            done = subprocess.run(
                [*run.prefix, run.python, "-c", code], cwd=run.checkout, env={**os.environ, **run.environment},
                umask=run.umask, capture_output=True, encoding="utf-8", timeout=60, check=False,
            )  # fmt: skip
    except machines.NotHereError as reason:
        pytest.skip(str(reason))
    assert done.returncode == 0, done.stderr
    assert run.checkout == machines.ROOT or not run.checkout.exists(), "a copy is removed"


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
