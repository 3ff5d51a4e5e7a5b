"""An exported folder of transformers gives the model's own scores in a process that cannot import this project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from meltpoint.adapters import exported_transformers, heads
from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.data.batching import collate
from meltpoint.adapters.exported_transformers import head_weights, save_onnx_folder, save_transformers_folder
from meltpoint.adapters.families.huggingface.pretrained import auto_class
from meltpoint.tasks.core.task import Example, Kind

Make = Callable[..., Any]
SCRIPT = """
import json, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "meltpoint":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocked())
import torch, transformers
torch.set_num_threads(1)
answers = {}
for folder, asked in json.load(open(sys.argv[1], encoding="utf-8")).items():
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = getattr(transformers, asked["class"]).from_pretrained(folder).eval()
    batch = tokenizer(**asked["texts"], padding=True, truncation=True, return_tensors="pt")
    config = model.config
    with torch.no_grad():
        answers[folder] = {
            "logits": model(**batch).logits.tolist(), "labels": config.id2label, "ids": config.label2id,
            "problem": config.problem_type, "longest": tokenizer.model_max_length,
            "pieces": batch["input_ids"].tolist(),
        }
print(json.dumps(answers))
"""
CELLS: list[tuple[Kind, str, str]] = [
    ("sentence_classification", "native", "fine_tuning"),
    ("pair_classification", "native", "stack_and_finetune"),
    ("pair_regression", "native", "fine_tuning"),
    ("sequence_labelling", "native", "fine_tuning"),
    ("sequence_labelling", "linear", "fine_tuning"),
    ("pair_regression", "native", "feature_extraction"),
    ("sentence_classification", "native", "lora"),
]


@dataclass(frozen=True)
class Saved:
    """A trained model, its folder, the examples, and the batch of them."""

    trainer: Any
    folder: Path
    examples: list[Example]
    batch: Batch


def save(trainer: Any, mode: str, head: str, folder: Path) -> None:
    facts = {"sweep": "tests", "seed": 0}
    save_transformers_folder(folder, trainer.model, trainer.data.task, mode, head, trainer.setting, facts)


def train(make_trainer: Make, kind: Kind, head: str, mode: str, **setting: Any) -> Any:
    layers = {"feature_extraction__layers": "top"} if mode == "feature_extraction" else {}
    trainer = make_trainer(mode, kind, head, train=16, epochs=3, dropout=0.0, **layers, **setting)
    list(trainer.results())
    trainer.model.load_trained([trainer.trial.best_state])
    return trainer


@pytest.fixture(scope="module")
def saved(make_trainer: Make, tmp_path_factory: pytest.TempPathFactory) -> list[Saved]:
    """A trained and exported model of every cell."""
    found = []
    for kind, head, mode in CELLS:
        trainer = train(make_trainer, kind, head, mode)
        folder = tmp_path_factory.mktemp("plain") / f"{kind} {head}"
        save(trainer, mode, head, folder)
        split, pad = trainer.data.dev, trainer.model.encoder.tokenizer.pad_piece
        batch = collate(split.rows, range(len(split.rows)), pad, kind)
        found.append(Saved(trainer, folder, trainer.data.dev_examples, batch))
    return found


@pytest.fixture(scope="module")
def answers(saved: list[Saved], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The answers of plain transformers for each folder, in a process that cannot import this project."""
    place = tmp_path_factory.mktemp("elsewhere")
    asked = {str(one.folder): _asked(one) for one in saved}
    (place / "asked.json").write_text(json.dumps(asked), encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "asked.json"], capture_output=True, encoding="utf-8", cwd=place, env=environment
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _asked(one: Saved) -> dict[str, Any]:
    examples = one.examples
    if one.trainer.data.task.kind == "sequence_labelling":
        texts: dict[str, Any] = {"text": [list(e.words) for e in examples], "is_split_into_words": True}
        return {"class": "AutoModelForTokenClassification", "texts": texts}
    parts = dict(zip(("text", "text_pair"), zip(*(e.texts for e in examples), strict=True), strict=False))
    return {"class": "AutoModelForSequenceClassification", "texts": parts}


@torch.no_grad()
def scores(one: Saved) -> torch.Tensor:
    """The model's own: logits, or regressed scores in the task's range."""
    model, task = one.trainer.model.eval(), one.trainer.data.task
    found = model(one.batch)[0]
    if task.label_range is None:
        return found
    return torch.tensor(model.head.decode(found, one.batch, 0))[:, None]


@pytest.mark.parametrize("cell", range(len(CELLS)), ids=["-".join(cell) for cell in CELLS])
def test_plain_transformers_gives_our_scores_where_this_project_cannot_be_imported(
    saved: list[Saved], answers: dict[str, Any], cell: int
):
    one = saved[cell]
    said, mine = answers[str(one.folder)], scores(one)
    assert said["pieces"] == one.batch.pieces.tolist()
    logits = torch.tensor(said["logits"])
    if one.batch.word_starts is not None:
        logits = logits.gather(1, one.batch.word_starts[:, :, None].expand(-1, -1, logits.shape[2]))
        mine, logits = mine[one.batch.word_mask], logits[one.batch.word_mask]
    assert float((logits - mine).abs().max()) < 1e-5
    assert float(mine.std(0).max()) > 1e-4, "constant scores would prove little"


@pytest.mark.parametrize("cell", range(len(CELLS)), ids=["-".join(cell) for cell in CELLS])
def test_the_folder_says_its_labels_its_problem_and_its_longest_input(
    saved: list[Saved], answers: dict[str, Any], cell: int
):
    task, said = saved[cell].trainer.data.task, answers[str(saved[cell].folder)]
    names = list(task.labels) or ["score"]
    assert said["labels"] == {str(i): name for i, name in enumerate(names)}
    assert said["ids"] == {name: i for i, name in enumerate(names)}
    expected = "regression" if task.label_range else "single_label_classification"
    assert said["problem"] == (None if task.kind == "sequence_labelling" else expected)
    assert said["longest"] == 32
    assert json.loads((saved[cell].folder / "meltpoint.json").read_text())["sweep"] == "tests"


@pytest.mark.parametrize("family", ["roberta", "modernbert", "bert", "electra"])
def test_the_tokenizer_of_a_tagger_reads_words_as_in_training(
    make_trainer: Make, load_tiny: Callable[[str], Any], tmp_path: Path, family: str
):
    trainer = train(make_trainer, "sequence_labelling", "native", "fine_tuning", encoder=load_tiny(family))
    save(trainer, "fine_tuning", "native", tmp_path)
    words, trained = ["film", "was", "good"], trainer.model.encoder.tokenizer
    saved = transformers.AutoTokenizer.from_pretrained(tmp_path)
    found = saved([words], is_split_into_words=True, add_special_tokens=False)["input_ids"][0]
    assert found == [piece for word in words for piece in trained.word(word)]
    assert saved(" ".join(words), add_special_tokens=False)["input_ids"] == found  # as a pipeline gives them


@pytest.mark.parametrize("family", ["roberta", "distilbert", "electra"])
def test_other_families_are_exported_with_their_own_head(
    make_trainer: Make, load_tiny: Callable[[str], Any], tmp_path: Path, family: str
):
    trainer = train(make_trainer, "sentence_classification", "native", "fine_tuning", encoder=load_tiny(family))
    save(trainer, "fine_tuning", "native", tmp_path)
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    split, pad = trainer.data.dev, trainer.model.encoder.tokenizer.pad_piece
    batch = collate(split.rows, range(len(split.rows)), pad, "sentence_classification")
    with torch.no_grad():
        logits = plain(input_ids=batch.pieces, attention_mask=batch.piece_mask.long()).logits
        assert float((logits - trainer.model.eval()(batch)[0]).abs().max()) < 1e-5


@pytest.mark.parametrize("head", sorted(set(heads.names()) - {"native", "linear"}))
def test_every_head_that_is_no_class_of_transformers_is_refused_by_its_name(make_trainer: Make, head: str):
    trainer = make_trainer("fine_tuning", "sentence_classification", "linear")
    with pytest.raises(ValueError, match=f"no class for head {head}; only native and linear can be exported so"):
        head_weights(trainer.model, trainer.data.task, head, trainer.setting)


@pytest.mark.parametrize("cell", [0, 1, 3], ids=["sentence", "pair", "words"])
def test_a_pipeline_answers_with_the_tasks_own_labels(saved: list[Saved], cell: int):
    one = saved[cell]
    asked, task = one.examples[0], one.trainer.data.task
    if cell == 3:
        said = transformers.pipeline("token-classification", str(one.folder), aggregation_strategy="first")
        found = [entity["entity_group"] for entity in said(" ".join(asked.words))]
        assert found
        assert {name.removeprefix("B-").removeprefix("I-") for name in task.labels} - {"O"} >= set(found)
        return
    texts = asked.texts[0] if cell == 0 else dict(zip(("text", "text_pair"), asked.texts, strict=True))
    answered = transformers.pipeline("text-classification", str(one.folder), top_k=None)(texts)
    mine = scores(one)[0].softmax(0).tolist()
    found = {answer["label"]: answer["score"] for answer in (answered[0] if cell == 0 else answered)}
    assert found == pytest.approx(dict(zip(task.labels, mine, strict=True)), abs=1e-5)


@pytest.mark.parametrize(
    ("head", "mode", "setting", "reason"),
    [
        ("linear", "fine_tuning", {}, r"ForSequenceClassification has a layer .*bert\.pooler.*--head native"),
        ("native", "fine_tuning", {"native__pooler": "none"}, r"always applies its pooler.*native\.pooler=none"),
        ("native", "feature_extraction", {}, "learned mix of all layers.*--model"),
        ("linear", "feature_extraction", {"feature_extraction__layers": "depth", "feature_extraction__depth": 0.5},
         "other states than the top layer's.*--model"),
        ("linear", "probe", {"probe__layers": "mean"}, "other states than the top layer's.*--model"),
        ("linear", "probe", {"probe__depth": 0.5}, "other states than the top layer's.*--model"),
    ],
)  # fmt: skip
def test_what_transformers_cannot_express_is_refused_in_one_line(
    make_trainer: Make, tmp_path: Path, head: str, mode: str, setting: dict[str, Any], reason: str
):
    trainer = make_trainer(mode, "sentence_classification", head, **setting)
    with pytest.raises(ValueError, match=reason) as refused:
        save(trainer, mode, head, tmp_path / "folder")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "folder").exists()


# --- ONNX: the scores of torch for any batch and length, or a refusal ---


def save_onnx(trainer: Any, head: str, folder: Path) -> None:
    for package in ("onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason='the extra "onnx" is not installed')
    facts, task = {"sweep": "tests"}, trainer.data.task
    save_onnx_folder(
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
    save_onnx(trainer, "native", tmp_path)
    check = json.loads((tmp_path / "meltpoint.json").read_text(encoding="utf-8"))["onnx"]
    assert check["rows"] >= 7
    assert check["difference"] < exported_transformers.TOLERANCE
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
    model = auto_class(task.kind).from_pretrained(plain).eval()
    with torch.no_grad():
        return model(**{name: torch.from_numpy(array) for name, array in inputs.items()}).logits.numpy()


@pytest.mark.slow
def test_a_file_whose_scores_are_others_is_refused_in_one_line(
    make_trainer: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, real = make_trainer("fine_tuning", "sentence_classification", "native"), exported_transformers._export

    def export_then_change(model: Any, example: Any, path: Path) -> None:
        real(model, example, path)
        with torch.no_grad():
            model.classifier.bias.add_(1e-3)

    monkeypatch.setattr(exported_transformers, "_export", export_then_change)
    with pytest.raises(ValueError, match=r"differ from torch's \(by up to 1\.0e-03, 1e-04 is allowed\)") as refused:
        save_onnx(trainer, "native", tmp_path / "folder")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "folder").exists()


def test_without_the_extra_one_line_says_what_to_install(
    make_trainer: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exported_transformers, "PACKAGES", ("torch", "no_such_exporter"))
    with pytest.raises(ValueError, match=r'ONNX needs no_such_exporter; .*pip install "meltpoint\[onnx\]"'):
        save_onnx(make_trainer("fine_tuning", "sentence_classification", "native"), "native", tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
