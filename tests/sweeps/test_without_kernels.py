"""Without the CPU kernels: nothing that compiles them can be imported, by no process, and every command works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from meltpoint.adapters import ops
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tests.sweeps.whole_sweeps import PATIENCE_SECONDS, command, records

ABSENT = """
import sys

class Absent:
    \"\"\"Finds nothing where the kernels, or what compiles them, would be found.\"\"\"

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numba", "llvmlite") or f"{name}.".startswith("meltpoint.adapters.cpu."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""
MODES = ("feature_extraction", "fine_tuning", "stack_and_finetune")


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment whose Python processes, Ray's too, cannot import the kernels, numba and llvmlite."""
    folder = tmp_path_factory.mktemp("absent")
    (folder / "sitecustomize.py").write_text(ABSENT, encoding="utf-8")
    known = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{known}" if known else str(folder), ops.SWITCH: "1"}


def run(words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, capture_output=True, encoding="utf-8", timeout=PATIENCE_SECONDS, env=environment, check=False
    )


def meltpoint(environment: dict[str, str], *words: str) -> str:
    done = run([sys.executable, "-m", "meltpoint.launch", *words], environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("module", ["numba", "llvmlite", "meltpoint.adapters.cpu", "meltpoint.adapters.cpu.kernels"])
def test_the_environment_lacks_them(without: dict[str, str], module: str):
    done = run([sys.executable, "-c", f"import {module}"], without)
    assert f"No module named '{module.partition('.kernels')[0]}'" in done.stderr


def test_they_are_not_installed_and_nothing_is_compiled_ahead(without: dict[str, str]):
    code = (
        "from meltpoint.adapters import ops; print(ops.status(), [ops.version()]); ops.compile_ahead()(); ops.warm_up()"
    )
    assert run([sys.executable, "-c", code], without).stdout == "not installed ['']\n"
    done = run([sys.executable, "-m", "meltpoint.adapters.ops"], without)
    assert (done.returncode, done.stdout) == (0, "The CPU kernels are not installed: nothing to compile.\n")


@pytest.fixture(scope="module")
def swept(
    tmp_path_factory: pytest.TempPathFactory, tiny_encoder: str, tiny_task: Path, quick_space: Path,
    without: dict[str, str],
) -> Path:  # fmt: skip
    """The storage of a sweep of each mode in that environment."""
    spec = SweepSpec(
        name="tiny", encoders=(tiny_encoder,), modes=MODES, tasks=(str(tiny_task),), head="linear", trials=2, seeds=1,
        space=str(quick_space),
    )  # fmt: skip
    storage = tmp_path_factory.mktemp("without")
    done = run(command(spec, storage), without)
    assert done.returncode == 0, done.stderr
    return storage


@pytest.mark.slow
def test_a_sweep_of_each_mode_ends_and_its_records_say_that_no_kernel_served(swept: Path):
    found = records(swept)
    assert {(record["mode"], record["status"]) for record in found} == {(mode, "finished") for mode in MODES}
    assert len(found) == len(MODES) * 3
    assert {record["hardware"]["cpu_kernels"] for record in found} == {False}


@pytest.mark.slow
def test_each_cell_is_exported_and_trains_again_to_the_same_score(swept: Path, without: dict[str, str], tmp_path: Path):
    words = ("export", "tiny", "--model", "--out", str(tmp_path), "--storage", str(swept))
    exported = meltpoint(without, *words).split()
    settings = [path for path in exported if path.endswith(".yaml")]
    assert len(exported) == 2 * len(settings) == 2 * len(MODES)
    for path in settings:
        meltpoint(without, "train", path)  # status 1 if it gave another dev score


@pytest.mark.slow
def test_features_are_written_as_with_kernels(tiny_encoder: str, without: dict[str, str], tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("the film was warm\nthe plot was dull and slow\n", encoding="utf-8")
    states = []
    for name, environment in (("plain", without), ("kernels", {**os.environ, ops.SWITCH: "1"})):
        out = tmp_path / f"{name}.npz"
        meltpoint(environment, "features", "--encoder", tiny_encoder, "--input", str(text), "--out", str(out))
        states.append(np.load(out))
    for number in ("0", "1"):
        np.testing.assert_allclose(states[0][number], states[1][number], atol=1e-5, rtol=1e-4)
