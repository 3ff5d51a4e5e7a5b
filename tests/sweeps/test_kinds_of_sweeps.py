"""Whole sweeps of each kind of task, of published data sets, and of all modes, from their files to exported models."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import peft
import pytest
import transformers
from huggingface_hub import ModelCard

from meltpoint.adapters import modes
from meltpoint.adapters.exported_model import load_folder
from meltpoint.reports.results import legend
from meltpoint.reports.statistics.comparison import Comparer
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.guards import guard_lines
from meltpoint.sweeps.results.predicting import predict_file
from meltpoint.sweeps.results.summary import SweepSummary, summarise
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tests.sweeps.whole_sweeps import command, run
from meltpoint.tests.tasks.layouts import LAYOUTS
from meltpoint.tests.tiny_parts import BAD, GOOD, THINGS

MODES = ("feature_extraction", "fine_tuning")
POLITE = """\
name: politeness
kind: sentence_regression
files: {train: train.csv, dev: dev.csv, test: test.csv}
format: csv
columns: {text: Request, label: Normalized Score}
range: [-2, 2]
metric: mse
also: [mae]
"""
EMOTIONS = """\
name: emotions
kind: multi_label_classification
files: {train: train.tsv, dev: dev.tsv, test: test.tsv}
format: tsv
header: false
columns: {text: 0, label: 1}
labels: {0: good, 1: bad, 2: thing}
also: [roc_auc, subset_accuracy]
"""
STARS = """\
name: stars
kind: ordinal_classification
files: {train: train.csv, dev: dev.csv, test: test.csv}
format: csv
columns: {text: text, label: stars}
labels: ["1", "2", "3"]
"""
SPEECH = """\
name: speech
kind: word_tagging
files: {train: train.conllu, dev: dev.conllu, test: test.conllu}
format: conll
columns: {words: 1, tags: 3}
labels: [DET, NOUN, AUX, ADJ, CCONJ]
"""
MELTPOINT = [sys.executable, "-m", "meltpoint.launch"]

TAGS = ("DET", "NOUN", "AUX", "ADJ", "CCONJ", "ADJ")


def sentences(count: int, seed: int) -> list[tuple[str, int]]:
    """Sentences with 0, 1 or 2 good words of two."""
    draw = random.Random(seed)
    found = []
    for number in range(count):
        words = [draw.choice(GOOD if place < number % 3 else BAD) for place in range(2)]
        found.append((f"the {draw.choice(THINGS)} was {words[0]} and {words[1]}", number % 3))
    return found


def write(folder: Path, kind: str) -> Path:
    for seed, (split, count) in enumerate({"train": 36, "dev": 18, "test": 24}.items()):
        rows = sentences(count, seed)
        if kind == "emotions":
            having = {0: "1,2", 1: "0,1", 2: "0"}
            lines = [f"{text}\t{having[good]}\tid{number}" for number, (text, good) in enumerate(rows)]
            (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        elif kind == "politeness":
            scores = [f"{text},{good - 1 + 0.01 * number}" for number, (text, good) in enumerate(rows)]
            lines = ["Request,Normalized Score", *scores]
            (folder / f"{split}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        elif kind == "speech":
            numbered = [enumerate(zip(text.split(), TAGS, strict=True), 1) for text, _ in rows]
            lines = ["".join(f"{n}\t{word}\t_\t{tag}\n" for n, (word, tag) in one) for one in numbered]
            (folder / f"{split}.conllu").write_text("# newdoc\n" + "\n".join(lines), encoding="utf-8")
        else:
            lines = ["text,stars", *(f"{text},{good + 1}" for text, good in rows)]
            (folder / f"{split}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    path = folder / "task.yaml"
    tasks = {"politeness": POLITE, "emotions": EMOTIONS, "stars": STARS, "speech": SPEECH}
    path.write_text(tasks[kind], encoding="utf-8")
    return path


def swept(
    kind: str, folder: Path, encoder: str, space: Path, modes: tuple[str, ...] = MODES, head: str = "linear",
    trials: int = 3,
) -> tuple[SweepSummary, str]:  # fmt: skip
    spec = SweepSpec(
        name=kind, encoders=(encoder,), modes=modes, tasks=(str(write(folder, kind)),),
        head=head, trials=trials, seeds=2, space=str(space),
    )  # fmt: skip
    done = run(command(spec, folder / "runs", "--head", head))
    assert done.returncode == 0, done.stderr
    summary = summarise(Ledger(folder / "runs" / kind))
    assert summary.state == "done"
    return summary, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["politeness", "emotions", "stars"])
def test_a_sweep_runs_from_its_files_to_a_table_with_intervals(kind, tiny_encoder, quick_space, tmp_path):
    summary, shown = swept(kind, tmp_path, tiny_encoder, quick_space)
    frozen, tuned = summary.cells
    for cell in summary.cells:
        assert cell.counts["finished"] == 3
        devs = [record.dev for record in cell.search]
        chooses = min if kind == "politeness" else max
        assert cell.best is not None
        assert cell.best.dev == chooses(devs), "the best trial is that of the best dev score"
        for record in cell.search:
            own = [epoch.dev[cell.header.metric] for epoch in record.epochs]
            assert record.dev == chooses(own), "and the best epoch that of its trial"
    compared = Comparer(summary.folder).compare(tuned, frozen)
    assert compared is not None
    assert compared.low is not None, compared.reason
    assert compared.examples == 24
    baseline = summary.baselines[summary.cells[0].header.task]
    assert len(baseline.scores) == 2
    assert guard_lines(summary)
    metrics = {"politeness": "mse", "emotions": "roc_auc", "stars": "quadratic_kappa"}
    assert metrics[kind] in shown
    if kind == "politeness":
        assert any("lower is better" in line for line in legend(summary, ())), "as `report --explain` shows"
    assert frozen.finals[0].test is not None
    assert set(frozen.finals[0].test) >= {cell.header.metric for cell in summary.cells} | set(frozen.header.beside)


@pytest.mark.slow
def test_the_winner_of_several_labels_is_exported_and_predicts_lists(tiny_encoder, quick_space, tmp_path):
    swept("emotions", tmp_path, tiny_encoder, quick_space, ("fine_tuning",), "native")
    storage = ["--storage", str(tmp_path / "runs")]
    done = run([*MELTPOINT, "export", "emotions", "--model", "--transformers", *storage])
    assert done.returncode == 0, done.stderr
    exports = tmp_path / "runs" / "emotions" / "exports"
    (tuned,) = exports.glob("*fine_tuning*.transformers")
    assert json.loads((tuned / "config.json").read_text("utf-8"))["problem_type"] == "multi_label_classification"
    (folder,) = exports.glob("*fine_tuning*.model")
    model = load_folder(folder)
    found = model.predict(["the film was lovely and great", "the meal was dull and awful"])
    assert all(isinstance(one, list) and set(one) <= {"good", "bad", "thing"} for one in found)
    shares = model.predict_proba(["the film was lovely and great"])
    assert shares.shape == (1, 3)
    texts, out = tmp_path / "new.txt", tmp_path / "out.csv"
    texts.write_text("the film was lovely and great\nthe meal was dull\n", encoding="utf-8")
    assert predict_file(model, texts, out) == 2
    rows = out.read_text("utf-8").splitlines()
    assert rows[0] == "text,prediction"
    assert [set(filter(None, row.partition(",")[2].strip('"').split(","))) for row in rows[1:]] == [
        set(one) for one in model.predict(["the film was lovely and great", "the meal was dull"])
    ]


@pytest.mark.slow
def test_classes_of_words_are_swept_reported_exported_and_predicted_from_columns(tiny_encoder, quick_space, tmp_path):
    summary, shown = swept("speech", tmp_path, tiny_encoder, quick_space, MODES, "linear", trials=2)
    assert "word_accuracy" in shown
    frozen, tuned = summary.cells
    compared = Comparer(summary.folder).compare(tuned, frozen)
    assert compared is not None
    assert compared.low is not None, compared.reason
    assert "the most frequent tag of each word" in summary.baselines["speech"].scores
    done = run([*MELTPOINT, "export", "speech", "--model", "--storage", str(tmp_path / "runs")])
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs" / "speech" / "exports").glob("*fine_tuning*.model")
    model, out = load_folder(folder), tmp_path / "out.conll"
    assert model.task.conll_columns == (1, 3)
    assert predict_file(model, tmp_path / "dev.conllu", out) == 18
    found = [sentence.splitlines() for sentence in out.read_text("utf-8").split("\n\n") if sentence]
    words = [[line.split("\t")[1] for line in sentence] for sentence in found]
    assert words == [text.split() for text, _ in sentences(18, 1)]
    assert [[line.split("\t")[4] for line in sentence] for sentence in found] == model.predict(words)


@pytest.mark.slow
def test_the_ladder_runs_from_its_files_to_models_and_every_setting_trains_again(
    tiny_encoder, tiny_task: Path, tmp_path: Path
):
    storage = ["--storage", str(tmp_path / "runs")]
    short = {"epochs": 2, "batch_size": 8, "learning_rate": {"choice": [0.001, 0.003]}}
    sections = {name: {"parameters": short} for name in modes.names()}
    sections["probe"] = {"parameters": {"probe.c": {"choice": [0.1, 1.0]}}}
    space = tmp_path / "space.yaml"
    space.write_text(json.dumps({"modes": sections}), encoding="utf-8")
    done = run([
        *MELTPOINT, "sweep", "--name", "rungs", "--encoder", tiny_encoder, "--mode", "ladder", "--task", str(tiny_task),
        "--trials", "2", "--seeds", "2", "--space", str(space), *storage,
    ])  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = summarise(Ledger(tmp_path / "runs" / "rungs"))
    assert [cell.header.mode for cell in summary.cells] == list(modes.expanded(["ladder"]))
    trained = {cell.header.mode: cell.cost.trained_parameters or 0 for cell in summary.cells}
    whole = {cell.header.mode: cell.cost.model_parameters or 0 for cell in summary.cells}
    assert all(cell.test is not None for cell in summary.cells)
    assert {cell.header.mode: len(cell.finals) for cell in summary.cells} == {
        name: 1 if name == "probe" else 2 for name in modes.names()
    }
    assert trained["norm_bias"] < trained["lora"] < trained["fine_tuning"] == whole["fine_tuning"]
    assert run([*MELTPOINT, "export", "rungs", "--model", *storage]).returncode == 0
    exports = tmp_path / "runs" / "rungs" / "exports"
    (adapter,) = exports.glob("*lora*.model/adapter")
    base = transformers.AutoModel.from_pretrained(tiny_encoder.removeprefix("hf:"))
    assert peft.PeftModel.from_pretrained(base, adapter).peft_config["default"].r == 16
    for setting in sorted(exports.glob("*.yaml")):
        again = run([*MELTPOINT, "train", str(setting), "--json"])
        assert again.returncode == 0, f"{setting.name}: {again.stderr}"
        assert json.loads(again.stdout)["same"] is True


STATED = {
    "imdb": "dev = fold 0 (of 0 to 2) of train, stratified, seed 1", "snli": "dev: 2 rows with the label '-' left out",
    "trec": "dev = train[-2:]",
}  # fmt: skip
"""What a table has to state of a data set, beside its scores."""


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_sweep_on_files_as_they_are_published_ends_with_a_table(name, tiny_encoder, quick_space, tmp_path):
    task = LAYOUTS[name].write(tmp_path)
    spec = SweepSpec(
        name=name, encoders=(tiny_encoder,), modes=("feature_extraction",), tasks=(task,), head="linear", trials=2,
        seeds=1, space=str(quick_space),
    )  # fmt: skip
    done = run(command(spec, tmp_path / "runs"))
    assert done.returncode == 0, done.stderr
    summary = summarise(Ledger(tmp_path / "runs" / name))
    (cell,) = summary.cells
    assert summary.state == "done"
    assert cell.counts["finished"] == 2
    assert STATED.get(name, cell.header.task) in " ".join(done.stdout.split())


def export(name: str, storage: Path, out: Path, *forms: str) -> tuple[int, str, str]:
    words = [*MELTPOINT, "export", name, "--transformers", *forms, "--out", str(out)]
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
        assert "this model is seed 0, its only seed" in card.text
        assert str(tmp_path) not in card.content
    checked = json.loads(next((tmp_path / "out").glob("*.onnx/meltpoint.json")).read_text(encoding="utf-8"))["onnx"]
    assert checked["rows"] == 16
    assert checked["difference"] < 1e-4
    (folder,) = (tmp_path / "out").glob("*.transformers")
    assert str(folder) in said
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    assert type(loaded).__name__ == "BertForSequenceClassification"
    assert set(loaded.config.id2label.values()) == {"good", "bad"}
