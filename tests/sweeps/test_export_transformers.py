"""`export --transformers` of whole sweeps: a folder where transformers has a class for it, else one line a cell."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from meltpoint.tests.sweeps.whole_sweeps import command, run


def export(name: str, storage: Path, out: Path, *forms: str) -> tuple[int, str, str]:
    words = [sys.executable, "-m", "meltpoint.launch", "export", name, "--transformers", *forms, "--out", str(out)]
    done = run([*words, "--storage", str(storage)])
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_a_finalist_of_the_native_head_is_loaded_by_plain_transformers(spec, tmp_path: Path):
    import transformers

    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")

    words = command(spec, tmp_path, modes=("fine_tuning",), trials=1, seeds=1)
    words[words.index("linear")] = "native"
    finished = run(words)
    assert finished.returncode == 0, finished.stderr
    status, said, error = export("tiny", tmp_path, tmp_path / "out", "--model", "--onnx")
    assert status == 0, error
    for form in ("model", "transformers", "onnx"):
        (place,) = (tmp_path / "out").glob(f"*.{form}")
        card = ModelCard.load(place / "README.md")
        assert {one.dataset_split for one in card.data.eval_results} == {"validation", "test"}, form
        assert "The interval covers examples alone: one seed" in card.text
        assert str(tmp_path) not in card.content
    checked = json.loads(next((tmp_path / "out").glob("*.onnx/meltpoint.json")).read_text(encoding="utf-8"))["onnx"]
    assert checked["rows"] == 16
    assert checked["difference"] < 1e-4
    (folder,) = (tmp_path / "out").glob("*.transformers")
    assert str(folder) in said
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    assert type(loaded).__name__ == "BertForSequenceClassification"
    assert set(loaded.config.id2label.values()) == {"good", "bad"}


@pytest.mark.slow
def test_every_cell_that_transformers_cannot_express_is_named_with_its_reason(done, tmp_path: Path):
    _, storage = done
    status, _, error = export("tiny", storage, tmp_path)
    assert status == 2
    assert error.count("cannot be exported with --transformers") == 2
    assert "learned mix of all layers" in error
    assert "train with --head native" in error
    assert not list(tmp_path.glob("*.transformers"))
