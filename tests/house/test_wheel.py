"""The checkout is the package: the built wheel's only top level is meltpoint/."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOT_SHIPPED = {"benchmarks", "tests", "docs", "deploy", "build", "dist", "runs"}


def packages() -> list[Path]:
    """Every package of the tree, relative to the checkout."""
    return [
        path.parent.relative_to(ROOT)
        for path in sorted(ROOT.glob("*/**/__init__.py"))
        if not path.relative_to(ROOT).parts[0].startswith(".") and path.relative_to(ROOT).parts[0] not in NOT_SHIPPED
    ]


def tracked_copy(destination: Path) -> Path:
    """The package's files as they are now, copied so that the build leaves nothing in the checkout."""
    destination.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "__init__.py", "launch.py"):
        shutil.copy(ROOT / name, destination / name)
    for room in {package.parts[0] for package in packages()}:
        shutil.copytree(ROOT / room, destination / room, ignore=shutil.ignore_patterns("__pycache__"))
    for outside in ("tests", "benchmarks"):
        shutil.copytree(ROOT / outside, destination / outside, ignore=shutil.ignore_patterns("__pycache__"))
    return destination


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names of the files inside the built wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    source = tracked_copy(folder / "source")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=240, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (built,) = folder.glob("*.whl")
    return zipfile.ZipFile(built).namelist()


def test_the_only_top_level_is_meltpoint_and_no_tests_or_benchmarks_are_in_it(wheel: list[str]) -> None:
    tops = {PurePosixPath(name).parts[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"meltpoint"}
    assert [name for name in wheel if "tests/" in name or "conftest" in name or "benchmarks/" in name] == []


def test_the_wheel_holds_every_module_every_other_file_and_the_licences(wheel: list[str]) -> None:
    modules = [path for package in packages() for path in (ROOT / package).glob("*.py")]
    every = [path for package in packages() for path in (ROOT / package).rglob("*")]
    data = [path for path in every if path.suffix in {".yaml", ".json", ".typed"}]
    page = [path for path in (ROOT / "reports" / "html").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    files = [ROOT / "launch.py", *modules, *data, *page]
    assert {f"meltpoint/{path.relative_to(ROOT).as_posix()}" for path in files} - set(wheel) == set()
    licences = {PurePosixPath(name).name for name in wheel if "/licenses/" in name}
    assert {"LICENSE", "LICENSE-echarts.txt", "LICENSE-zrender.txt", "LICENSE-d3.txt", "NOTICE-echarts.txt"} <= licences
