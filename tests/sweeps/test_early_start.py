"""The first words of `sweep`: said before torch is imported and Ray has started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
import sys
from meltpoint.sweeps.on_ray.cluster import Cluster
def begin(self):
    print("heavy:", sorted({"torch", "ray", "mlflow", "transformers"} & set(sys.modules)), file=sys.stderr)
    sys.exit(3)
Cluster.begin = begin
from meltpoint.launch import main
main()
"""


def said(*words: str) -> subprocess.CompletedProcess[str]:
    """A sweep of two cells that ends where Ray would begin."""
    words = (
        "sweep", "--name", "first", "--encoder", "minilm", "--mode", "feature_extraction,fine_tuning", "--task",
        "demo_sentiment", *words,
    )  # fmt: skip
    return subprocess.run([sys.executable, "-c", CODE, *words], capture_output=True, encoding="utf-8", check=False)


def test_a_sweep_says_what_it_does_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    done = said("--storage", str(tmp_path))
    first, second = done.stderr.splitlines()
    assert first.startswith("first: opening 2 cells; ")
    assert second == "heavy: []"


def test_bad_input_is_one_line_still(tmp_path: Path) -> None:
    done = said("--storage", str(tmp_path), "--set", "learning_rat=1")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("meltpoint: ")
