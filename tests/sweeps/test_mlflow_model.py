"""mlflow_model: a finalist that MLflow loads and predicts with, in this and in a fresh process, without a pickle."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import pandas
import pytest
from mlflow.exceptions import MlflowException

from meltpoint.adapters import encoders
from meltpoint.adapters.exported_model import load_folder, save_folder
from meltpoint.adapters.model import Member, build
from meltpoint.adapters.settings import complete
from meltpoint.sweeps.results.mlflow_model import ARTIFACT, LONGEST_DESCRIPTION, described, save_model
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.task import KINDS, Kind, Task
from meltpoint.tests.tiny_parts import BAD, GOOD, save_tiny_bert

LABELS = {"pair_regression": (), "sentence_regression": (), "sequence_labelling": ("O", "B-X", "I-X")}
TEXTS: dict[str, list[Any]] = {
    **{name: [["the", "film"], ["was", "good", "."]] for name in kinds.reading("words")},
    **{name: ["the film was good", "a bad meal"] for name in KINDS if kinds.get(name).input == "sentence"},
}
PAIRS = [("the film", "a film"), ("the meal", "no meal")]
FRESH = """
import sys, mlflow.pyfunc, pandas
frame = pandas.DataFrame({"text": ["the film was good", "a bad meal"]})
print(mlflow.pyfunc.load_model(sys.argv[1]).predict(frame).to_json())
"""


@pytest.fixture(scope="module", params=KINDS)
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Kind, Path, Path]:
    """A kind of task, a random exported model of it, and the MLflow model of that."""
    kind: Kind = request.param
    bert, exported = tmp_path_factory.mktemp("bert"), tmp_path_factory.mktemp(kind)
    save_tiny_bert(bert, [*GOOD, *BAD, "film", "meal", "the", "was"])
    task = Task(
        name="t", kind=kind, metric="accuracy", folder="", readers={}, labels=LABELS.get(kind, ("no", "yes")),
        label_range=(0.0, 5.0) if kind.endswith("_regression") else None,
    )  # fmt: skip
    setting = complete({}, "fine_tuning", "linear")
    encoder = encoders.load(encoders.resolve(f"hf:{bert}", kind))
    model = build(encoder, task, "fine_tuning", "linear", [Member(setting, 0)], "cpu")
    save_folder(exported, model, task, "fine_tuning", "linear", setting, "fp32", {})
    folder = exported.with_name(f"{kind} mlflow")
    save_model(folder, exported, kind)
    return kind, exported, folder


def test_a_versions_description_is_the_model_card_as_far_as_mlflow_keeps_one(tmp_path: Path):
    assert described(tmp_path) == ""
    card = tmp_path / "artifacts" / ARTIFACT / "README.md"
    card.parent.mkdir(parents=True)
    card.write_text("---\nlicense: mit\n---\n\n# A model\n\nOf a sweep.\n", encoding="utf-8")
    assert described(tmp_path) == "# A model\n\nOf a sweep."
    card.write_text("---\nlicense: mit\n---\n\n# A model\n\n" + "- one line of limits\n" * 400, encoding="utf-8")
    cut = described(tmp_path)
    assert LONGEST_DESCRIPTION - 100 < len(cut) <= LONGEST_DESCRIPTION
    assert cut.endswith("- one line of limits\n\n… The whole card is `artifacts/finalist/README.md`.")


def frame_of(kind: Kind) -> tuple[pandas.DataFrame, list[Any]]:
    """Texts in the columns that MLflow's model reads, and as `predict` takes them."""
    if kind.startswith("pair"):
        return pandas.DataFrame(PAIRS, columns=["text_a", "text_b"]), list(PAIRS)
    texts = TEXTS[kind]
    return pandas.DataFrame({"words" if kinds.get(kind).labels_words else "text": texts}), texts


def test_it_predicts_as_the_exported_model_does(models: tuple[Kind, Path, Path]) -> None:
    kind, exported, folder = models
    frame, texts = frame_of(kind)
    ours = load_folder(exported)
    found = mlflow.pyfunc.load_model(str(folder)).predict(frame)
    assert found["prediction"].tolist() == ours.predict(texts)
    if ours.gives_probabilities:
        assert found.filter(like="probability.").to_numpy() == pytest.approx(ours.predict_proba(texts))
        assert list(found.columns[1:]) == ["probability.no", "probability.yes"]


def test_no_file_of_it_is_a_pickle(models: tuple[Kind, Path, Path]) -> None:
    names = {path.name for path in models[2].rglob("*") if path.is_file()}
    assert {"MLmodel", "mlflow_model_code.py", "head.safetensors", "meltpoint.json"} <= names
    assert not [name for name in names if name.endswith((".pkl", ".pickle", ".bin", ".pt"))]


def test_other_columns_are_refused_by_their_names(models: tuple[Kind, Path, Path]) -> None:
    with pytest.raises(MlflowException, match=r"missing inputs \['(text|text_a|words)'"):
        mlflow.pyfunc.load_model(str(models[2])).predict(pandas.DataFrame({"other": ["x"]}))


def test_a_fresh_process_with_this_package_predicts_the_same(models: tuple[Kind, Path, Path]) -> None:
    kind, _, folder = models
    if kind != "sentence_classification":
        pytest.skip("one kind is enough for a process of its own")
    words = [sys.executable, "-c", FRESH, str(folder)]
    fresh = subprocess.run(words, capture_output=True, encoding="utf-8", check=True)
    here = mlflow.pyfunc.load_model(str(folder)).predict(frame_of(kind)[0])
    assert fresh.stdout.splitlines()[-1] == here.to_json()
