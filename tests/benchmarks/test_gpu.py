"""The GPU benchmark on a CPU: every part runs, and the document has what it promises."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from meltpoint.adapters.hardware import GRAPHS
from meltpoint.benchmarks import gpu


def test_bert_base_takes_67_gflop_for_a_sentence_of_128_tokens():
    assert gpu.work_of_an_example("bert_base", 128) == pytest.approx(67e9, rel=0.01)


@pytest.mark.parametrize("only", ["minilm fine_tuning, plain", pytest.param("", marks=pytest.mark.slow)])
def test_each_part_writes_its_figures(only: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = tmp_path / "gpu.json"
    monkeypatch.setenv(GRAPHS, "0")  # it sets this itself
    monkeypatch.setattr(sys, "argv", ["gpu", "--tiny", "--only", only, "--out", str(out)])
    gpu.main()
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["ceiling_flops"] > 0
    assert len(found["parts"]) == (1 if only else len(gpu.parts(dict.fromkeys(gpu.SIZES, ""), True)))
    for name, part in found["parts"].items():
        assert part.get("examples_per_second", 0) > 0, (name, part)
