"""An exported ONNX file gives torch's scores for any batch and length, and is refused where it would not."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from meltpoint.adapters.exported_transformers import save_onnx_folder, save_transformers_folder
from meltpoint.adapters.families.huggingface import export

pytest.importorskip("onnxscript", reason='the extra "onnx" is not installed')
pytest.importorskip("onnxruntime", reason='the extra "onnx" is not installed')

Make = Callable[..., Any]


def save(trainer: Any, head: str, folder: Path) -> Any:
    facts, task = {"sweep": "tests"}, trainer.data.task
    return save_onnx_folder(
        folder, trainer.model.eval(), task, "fine_tuning", head, trainer.setting, facts, trainer.data.dev
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny", "minilm"])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("sentence_classification", {"text": ["the ship came home", "a film", "prices rose 3.5 percent"]}),
        ("pair_regression", {"text": ["a film", "the ship"], "text_pair": ["the ship came home", "a long film"]}),
        ("sequence_labelling", {"text": [["Anna", "Berg"], ["the", "ship", "came", "home"]],
                                "is_split_into_words": True}),
    ],
)  # fmt: skip
def test_the_runtime_gives_the_models_scores_for_texts_of_any_number_and_length(
    make_trainer: Make, tmp_path: Path, request: pytest.FixtureRequest, kind: str, words: dict[str, Any], name: str
) -> None:
    from onnxruntime import InferenceSession

    encoder = None if name == "tiny" else deepcopy(request.getfixturevalue("minilm_encoder"))
    trainer = make_trainer("fine_tuning", kind, "native", dev=7, encoder=encoder)
    check = save(trainer, "native", tmp_path)
    assert check.rows >= 7
    assert check.difference < export.TOLERANCE
    assert json.loads((tmp_path / "meltpoint.json").read_text(encoding="utf-8"))["onnx"]["rows"] == check.rows
    assert json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))["label2id"]
    assert not list(tmp_path.glob("*.safetensors"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    session = InferenceSession(tmp_path / "model.onnx")
    for count in (1, 2, 3):
        texts = {name: value[:count] if isinstance(value, list) else value for name, value in words.items()}
        inputs = dict(tokenizer(**texts, padding=True, return_tensors="np"))
        (found,) = session.run(["logits"], {name: array.astype(np.int64) for name, array in inputs.items()})
        assert found == pytest.approx(plain_scores(trainer, tmp_path, inputs), abs=1e-4)


def plain_scores(trainer: Any, folder: Path, inputs: dict[str, Any]) -> Any:
    """The scores of the plain folder of transformers, which other tests compare with ours."""

    plain, task = folder / "plain", trainer.data.task
    save_transformers_folder(plain, trainer.model, task, "fine_tuning", "native", trainer.setting, {})
    model = export.auto_class(task.kind).from_pretrained(plain).eval()
    with torch.no_grad():
        return model(**{name: torch.from_numpy(array) for name, array in inputs.items()}).logits.numpy()


@pytest.mark.slow
def test_a_file_whose_scores_are_others_is_refused_in_one_line(
    make_trainer: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, real = make_trainer("fine_tuning", "sentence_classification", "native"), export._export

    def export_then_change(model: Any, example: Any, path: Path) -> None:
        real(model, example, path)
        with torch.no_grad():
            model.classifier.bias.add_(1e-3)

    monkeypatch.setattr(export, "_export", export_then_change)
    with pytest.raises(ValueError, match=r"not those of torch \(up to 1\.0e-03 apart, 1e-04 is allowed\)") as refused:
        save(trainer, "native", tmp_path / "folder")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "folder").exists()


def test_without_the_extra_one_line_says_what_to_install(
    make_trainer: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "PACKAGES", ("torch", "no_such_exporter"))
    with pytest.raises(ValueError, match=r'ONNX needs no_such_exporter; .*pip install "meltpoint\[onnx\]"'):
        save(make_trainer("fine_tuning", "sentence_classification", "native"), "native", tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_a_head_that_transformers_has_no_class_for_is_refused_before_anything_is_exported(
    make_trainer: Make, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="no class for the head mlp"):
        save(make_trainer("fine_tuning", "sentence_classification", "mlp"), "mlp", tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
