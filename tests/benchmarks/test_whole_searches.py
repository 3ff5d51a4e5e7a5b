"""Every comparison runs from its command to its JSON output, with a toy encoder."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CASES = [
    (("feature_extraction", "stack_and_finetune"), ()),
    (("fine_tuning",), ("--group-by-length",)),
    (("lora",), ("--learning-rates", "3e-4,6e-4")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("modes", "more"), CASES)
def test_a_comparison_runs_both_sides_over_the_same_settings(modes, more, tiny_encoder):
    pytest.importorskip("accelerate", reason="the Trainer needs it")
    words = [
        sys.executable, "-m", "meltpoint.benchmarks.against_trainer", "--mode", *modes, "--trials", "2",
        "--encoder", tiny_encoder, "--task", "demo_sentiment", "--max-train-examples", "24", "--max-pieces", "32",
        "--repeats", "1", "--json", *more,
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, encoding="utf-8", timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    (ours,), (theirs,) = result["ours"], result["theirs"]
    assert result["ratio"]["median"] == pytest.approx(theirs["seconds"] / ours["seconds"])
    for side in (ours, theirs):
        for mode in modes:
            assert 0 < side["details"][f"{mode}, demo_sentiment: dev, mean over the settings"] <= 1
        assert side["details"]["start-up, s"] > 0
        assert side["details"]["trials, s"] > 0
        assert sum("dev, rate" in name for name in side["details"]) == 2 * len(modes)
