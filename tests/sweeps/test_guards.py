"""Guards against a wrong conclusion: each is tripped by its case, sound cells and sweeps trip none; baselines."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from meltpoint.reports.matrix import matrix
from meltpoint.reports.notes import FOLDED
from meltpoint.reports.trial_view import trial_lines
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results import ensembles_and_baselines
from meltpoint.sweeps.results.ensembles_and_baselines import baseline_of, settle_baselines
from meltpoint.sweeps.results.guards import cell_guards, guards
from meltpoint.sweeps.results.kept_results import Baseline, read_baselines
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary, summarise
from meltpoint.sweeps.results.sweep_file import CellHeader
from meltpoint.sweeps.search.selection import spread
from meltpoint.sweeps.specification.sweep_spec import Block, SweepSpec
from meltpoint.sweeps.tracking.run_contents import ending
from meltpoint.tasks import get
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec, Example, Task, TrainingData
from meltpoint.tests.sweeps.planning import epoch_of

SPACE = """\
parameters:
  learning_rate: {log_uniform: [1.0e-5, 1.0e-4]}
  dropout: {uniform: [0.0, 0.3]}
  epochs: {choice: [2, 3, 4]}
  batch_size: {fixed: 32}
"""
SOUND = {"learning_rate": 3e-5, "dropout": 0.1, "epochs": 4, "batch_size": 32}


def cell(mode: str = "fine_tuning", steps: int = 500, dev: float = 0.8, warnings: tuple[str, ...] = (),
         **setting: Any) -> CellSummary:  # fmt: skip
    """A finished cell of one trial."""
    header = CellHeader(
        encoder="minilm", mode=mode, task="sst2", head="linear", kind="sentence_classification", metric="accuracy",
        planned=1, space=SPACE, data_fingerprint="d", train_examples=4000, dev_examples=800, warnings=warnings,
    )  # fmt: skip
    epoch = epoch_of(4, dev, step=steps)
    best = TrialRecord(
        id="t", number=0, encoder="minilm", mode=mode, task="sst2", role="search", seed=0, setting={**SOUND, **setting},
        head="linear", status="finished", metric="accuracy", dev=dev, best_epoch=3,
        epochs=[epoch.model_copy(update={"epoch": 3}), epoch],
        data_fingerprint="d", code_version="0", started_at=1.0, seconds=1.0,
    )  # fmt: skip
    return CellSummary(header, {}, best, [best.model_copy(update={"role": "final"})], spread([dev, dev]), None)


@pytest.mark.parametrize("mode", ["fine_tuning", "feature_extraction", "stack_and_finetune"])
@pytest.mark.parametrize("rate", [1.2e-5, 3e-5, 9e-5])
@pytest.mark.parametrize("epochs", [2, 3, 4])
def test_sound_cells_trip_no_guard(mode: str, rate: float, epochs: int) -> None:
    known = Baseline(task="sst2", metric="accuracy", data_fingerprint="d", scores={"linear": 0.75}, train_examples=9)
    assert list(cell_guards(cell(mode, learning_rate=rate, epochs=epochs), known)) == []


@pytest.mark.parametrize(
    ("changes", "kind", "part"),
    [
        ({"steps": 28}, "few_steps", "28 steps: raise epochs or trials"),
        ({"mode": "stack_and_finetune", "steps": 99}, "few_steps", "99 steps"),
        ({"learning_rate": 9.99e-5}, "edge", "learning_rate 9.99e-05 is at the top of its range (0.0001): widen it"),
        ({"learning_rate": 1.001e-5}, "edge", "learning_rate 1e-05 is at the bottom of its range (1e-05): widen it"),
        ({"warnings": ("train has no example of bad",)}, "data", "train has no example of bad"),
    ],
)
def test_each_guard_is_tripped_by_its_case_alone(changes: dict[str, Any], kind: str, part: str) -> None:
    (found,) = cell_guards(cell(**changes))
    assert found.kind == kind
    assert part in found.text
    assert found.cell[0] == "minilm"


def test_steps_of_a_frozen_first_phase_are_not_the_encoders() -> None:
    found = cell("stack_and_finetune", 169)
    frozen = found.best.epochs[0].model_copy(update={"step": 130, "encoder_frozen": True})
    best = found.best.model_copy(update={"epochs": [frozen, *found.best.epochs]})
    assert "tuned the encoder for 39 steps" in "".join(one.text for one in cell_guards(replace(found, best=best), None))


def test_an_end_that_no_range_can_pass_is_no_edge() -> None:
    assert list(cell_guards(cell(dropout=0.001))) == []


def test_a_frozen_encoder_may_train_its_head_in_few_steps() -> None:
    assert list(cell_guards(cell("feature_extraction", steps=28))) == []


def test_a_cell_that_is_not_above_the_best_baseline_is_named_with_it() -> None:
    scores = {"the most frequent class": 0.6, "a linear model on TF-IDF": 0.8}
    known = Baseline(task="sst2", metric="accuracy", data_fingerprint="d", scores=scores, train_examples=9)
    (found,) = cell_guards(cell(dev=0.8), known)
    assert found.kind == "baseline"
    assert "dev 80.0 is not above a linear model on TF-IDF (80.0)" in found.text
    assert list(cell_guards(cell(dev=0.81), known)) == []
    other = known.model_copy(update={"metric": "f1"})
    assert list(cell_guards(cell(dev=0.1), other)) == []


@pytest.mark.parametrize(
    ("devs", "said"),
    [
        ((0.83, 0.82, 0.6), "1 of 3 finals did not learn (seed 2 has dev 60.0; the most frequent class 60.0)"),
        ((0.83, 0.3, 0.6), "2 of 3 finals did not learn (seed 1 has dev 30.0, seed 2 has dev 60.0;"),
        ((0.83, 0.82, 0.61), None),
        ((0.83, 0.82, None), None),
    ],
)
def test_finals_that_did_not_learn_beside_others_that_did_are_named(devs: tuple[float | None, ...], said: str) -> None:
    scores = {"the most frequent class": 0.6, "a linear model on TF-IDF": 0.65}
    known = Baseline(task="sst2", metric="accuracy", data_fingerprint="d", scores=scores, train_examples=9)
    one = cell()
    finals = [one.finals[0].model_copy(update={"seed": seed, "dev": dev}) for seed, dev in enumerate(devs)]
    found = [guard for guard in cell_guards(replace(one, finals=finals), known) if guard.kind == "failed_runs"]
    assert [guard.text.startswith(said) for guard in found] == ([True] if said else [])


def test_where_no_final_learnt_the_baseline_says_it() -> None:
    scores = {"the most frequent class": 0.6, "a linear model on TF-IDF": 0.65}
    known = Baseline(task="sst2", metric="accuracy", data_fingerprint="d", scores=scores, train_examples=9)
    assert [guard.kind for guard in cell_guards(cell(dev=0.5), known)] == ["baseline"]


def test_a_sweep_that_has_only_begun_has_no_guard() -> None:
    begun = replace(cell(), best=None, finals=[], dev=None)
    spec = SweepSpec(name="n", encoders=("minilm",), modes=("fine_tuning",), tasks=("sst2",))
    assert guards(SweepSummary("n", "running", spec, "0", [begun])) == []


# --- results that are less than their mode says ---

STACK, LAST = {"phase": "stack", "encoder_frozen": True}, {"phase": "finetune"}
SHUT = {**LAST, "frozen_groups": 2}


def with_epochs(best: int | None, *epochs: tuple[float, dict[str, Any]], **changes: Any) -> TrialRecord:
    """A trial of (dev, phase and the like) an epoch."""
    one = cell("stack_and_finetune").best
    assert one is not None
    each = [
        one.epochs[0].model_copy(update={"epoch": number, "dev": {"accuracy": dev}, **facts})
        for number, (dev, facts) in enumerate(epochs, 1)
    ]
    dev = None if best is None else each[best - 1].dev["accuracy"]
    return one.model_copy(update={"epochs": each, "best_epoch": best, "dev": dev, **changes})


NOTED = {
    "the frozen phase was better": (
        with_epochs(4, (0.712, STACK), (0.7, STACK), (0.5, LAST), (0.69, LAST)),
        ["the frozen phase was better: 71.2 in epoch 1"],
    ),
    "as good is not better": (with_epochs(3, (0.7, STACK), (0.5, LAST), (0.7, LAST)), []),
    "an error is better where it is lower": (
        with_epochs(2, (0.3, STACK), (0.4, LAST)).model_copy(update={
            "metric": "mse", "epochs": [
                epoch.model_copy(update={"dev": {"mse": epoch.dev["accuracy"]}})
                for epoch in with_epochs(2, (0.3, STACK), (0.4, LAST)).epochs
            ],
        }),
        ["the frozen phase was better: 0.300 in epoch 1"],
    ),
    "an older version's": (
        with_epochs(1, (0.712, STACK), (0.69, LAST)),
        ["its result is epoch 1 of the frozen phase, chosen by an earlier version"],
    ),
    "before all thawed": (
        with_epochs(1, (0.8, SHUT), (0.7, LAST)),
        ["its result is epoch 1, in which 2 layer groups of the encoder had not thawed: more epochs or"],
    ),
    "never thawed": (
        with_epochs(2, (0.7, SHUT), (0.8, SHUT)),
        ["its result is epoch 2, in which 2 layer groups of the encoder had not thawed, and 2 never thawed: more"],
    ),
    "thawed by then": (with_epochs(2, (0.7, SHUT), (0.8, LAST)), []),
    "diverged": (with_epochs(None, (0.7, STACK), status="failed", error="the loss is not finite"), []),
    "without epochs": (with_epochs(None), []),
}  # fmt: skip


@pytest.mark.parametrize("case", NOTED)
def test_a_result_that_is_less_than_its_mode_says_is_noted_in_the_table_in_show_and_in_mlflow(case: str) -> None:
    record, notes = NOTED[case]
    found = record.result_notes()
    assert len(found) == len(notes)
    assert all(one.startswith(note) for one, note in zip(found, notes, strict=True))
    finals = [record.model_copy(update={"role": "final", "seed": 3}), with_epochs(1, (0.7, LAST))]
    summary = replace(cell("stack_and_finetune"), best=record, finals=finals)
    said = [one.text for one in cell_guards(summary) if one.kind == "result"]
    assert said == [f"seed 3: {note}" for note in found]
    spec = SweepSpec(name="n", encoders=("minilm",), modes=("stack_and_finetune",), tasks=("sst2",))
    shown = trial_lines(record, SweepSummary("n", "done", spec, "0", [summary]))
    assert (yaml.safe_load("\n".join(shown)).get("notes") or []) == found
    tags = {tag.key: tag.value for tag in ending(record)[1]}
    assert tags.get("mlflow.note.content") == ("; ".join(found) or record.error)


# --- baselines ---


@pytest.mark.parametrize(
    ("task", "constant"),
    [
        ("demo_sentiment", "the most frequent class"), ("demo_entailment", "the most frequent class"),
        ("demo_similarity", "the mean score"),
    ],
)  # fmt: skip
def test_a_linear_model_beats_the_constant_on_the_demo_tasks(task: str, constant: str) -> None:
    found = baseline_of(load_training_data(DataSpec(task)))
    assert found.scores.keys() == {constant, "a linear model on TF-IDF"}
    assert found.chosen in ensembles_and_baselines.STRENGTHS
    assert found.best[1] == max(found.scores.values())
    assert found.scores["a linear model on TF-IDF"] > found.scores[constant]


def test_the_linear_model_is_scikit_learns_pipeline_with_the_best_c_on_dev() -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    data = load_training_data(DataSpec("demo_sentiment"))
    texts = [[example.texts[0] for example in split] for split in (data.train, data.dev)]
    labels = [[example.label for example in split] for split in (data.train, data.dev)]
    scores = []
    for strength in ensembles_and_baselines.STRENGTHS:
        vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\b\w+\b|[^\w\s]")
        model = make_pipeline(vectors, LogisticRegression(C=strength, max_iter=200))
        scores.append(model.fit(texts[0], labels[0]).score(texts[1], labels[1]))
    assert baseline_of(data).scores["a linear model on TF-IDF"] == pytest.approx(max(scores), abs=1e-12)


def test_words_get_their_most_frequent_tag_and_unknown_ones_the_most_frequent_of_all() -> None:
    task = Task(
        name="t", kind="sequence_labelling", metric="span_f1", folder="", readers={}, labels=("O", "B-X", "I-X")
    )  # fmt: skip
    train = [
        Example("1", words=("Rome", "is", "far"), label=(1, 0, 0)), Example("2", words=("Rome", "!"), label=(1, 0)),
        Example("3", words=("Rome",), label=(0,)),
    ]  # fmt: skip
    dev = [Example("d", words=("Rome", "new", "is"), label=(1, 0, 0))]
    found = baseline_of(TrainingData(task, train, dev, "f"))
    assert found.scores == {ensembles_and_baselines.LEXICON: 1.0}
    assert found.chosen is None


def test_one_class_in_train_is_no_error() -> None:
    task = get("demo_sentiment")
    train = [Example(str(n), texts=(f"text {n}",), label=1) for n in range(4)]
    found = baseline_of(TrainingData(task, train, [*train, Example("d", texts=("x",), label=0)], "f"))
    assert set(found.scores.values()) == {0.8}


def test_baselines_are_made_once_and_again_where_the_data_or_the_file_changed(tmp_path: Path, monkeypatch) -> None:
    spec = SweepSpec(name="n", encoders=("minilm",), modes=("fine_tuning",), tasks=("demo_sentiment",))
    data = load_training_data(DataSpec("demo_sentiment"))
    one = cell()
    header = one.header.model_copy(update={"task": "demo_sentiment", "data_fingerprint": data.fingerprint})
    summary = SweepSummary("n", "done", spec, "0", [replace(one, header=header)])
    ledger = Ledger(tmp_path / "n")
    ledger.create()
    made: list[str] = []
    fit = ensembles_and_baselines.baseline_of
    monkeypatch.setattr(ensembles_and_baselines, "baseline_of", lambda data: made.append(data.task.name) or fit(data))
    first = settle_baselines(ledger, summary)
    assert settle_baselines(ledger, summary) == first == read_baselines(ledger)
    assert made == ["demo_sentiment"]
    (tmp_path / "n" / "baselines" / "demo_sentiment.json").write_text("{", encoding="utf-8")
    assert read_baselines(ledger) == {}
    assert settle_baselines(ledger, summary).keys() == {"demo_sentiment"}
    assert made == ["demo_sentiment"] * 2


def test_a_cell_of_a_smaller_size_has_no_baseline_since_it_reads_all_of_train(tmp_path: Path) -> None:
    known = Baseline(task="sst2", metric="accuracy", data_fingerprint="d", scores={"linear": 0.95}, train_examples=9)
    words = {"encoders": ("minilm",), "modes": ("fine_tuning",), "tasks": ("sst2",)}
    blocks = (Block(**words, variant="64", train_examples=64), Block(**words, variant="all"))
    spec = SweepSpec(name="n", **words, blocks=blocks)
    small, whole = (replace(cell(), header=cell().header.model_copy(update={"variant": one})) for one in ("64", "all"))
    summary = SweepSummary("n", "done", spec, "0", [small, whole], baselines={"sst2": known})
    assert (summary.baseline_of(small), summary.baseline_of(whole)) == (None, known)
    assert [guard.cell[-1] for guard in guards(summary)] == ["all"]
    ledger = Ledger(tmp_path / "n")
    ledger.create()
    assert settle_baselines(ledger, replace(summary, cells=[small], baselines={})) == {}, "nothing is fitted"


def test_the_table_has_a_row_of_baselines_on_dev_and_none_where_there_are_none() -> None:
    known = Baseline(
        task="sst2", metric="accuracy", data_fingerprint="d", scores={"the most frequent class": 0.55, "linear": 0.75},
        train_examples=9,
    )  # fmt: skip
    spec = SweepSpec(name="n", encoders=("minilm",), modes=("fine_tuning",), tasks=("sst2",))
    (block,) = matrix(SweepSummary("n", "done", spec, "0", [cell()], baselines={"sst2": known})).blocks
    (row,) = block.ensembles
    assert (row.title, [entry.label for entry in row.entries]) == ("baseline", ["dev 75.0"])
    (plain,) = matrix(SweepSummary("n", "done", spec, "0", [cell()])).blocks
    assert plain.ensembles == ()


TASK = """name: {name}
kind: sentence_classification
files: {{train: train.tsv, dev: dev.tsv}}
test_from: {{from: train, fraction: 0.2}}
format: tsv
columns: {{text: text, label: label}}
labels: [good, bad{more}]
"""


def task_of(folder: Path, dev: int = 400, shared: int = 0, more: str = "") -> Path:
    """A task whose labels a linear model on words tells perfectly; `shared` dev texts stand in train."""
    train = [(f"text {n} is {'fine' if n % 2 else 'poor'}", "good" if n % 2 else "bad") for n in range(400)]
    own = [(f"dev {n} seems {'fine' if n % 2 else 'poor'}", "good" if n % 2 else "bad") for n in range(dev - shared)]
    for name, rows in (("train", train), ("dev", own + train[:shared])):
        (folder / f"{name}.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    path = folder / "task.yaml"
    path.write_text(TASK.format(name="made", more=more))
    return path


def swept(storage: Path, *words: str) -> tuple[SweepSummary, str]:
    """A sweep's results, and all that it printed."""
    command = [sys.executable, "-m", "meltpoint.launch", "sweep", "--name", "s", "--storage", str(storage)]
    asked = [*command, "--no-default-finals", *words]
    done = subprocess.run(asked, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    return summarise(Ledger(storage / "s")), " ".join((done.stdout + done.stderr).split())


SOUND_SWEEPS = {
    "sst2, its makers' head": ("sst2",), "sst2, another seed": ("sst2", "--seed", "1"),
    "sst2, a third seed": ("sst2", "--seed", "2"), "sst2, 4 000 examples": ("sst2", "--max-train-examples", "4000"),
    "stsb, its makers' head": ("stsb",), "stsb, another seed": ("stsb", "--seed", "1"),
    "stsb, 3 000 examples": ("stsb", "--max-train-examples", "3000"),
    "qqp, its makers' head": ("qqp",), "qqp, 4 000 examples": ("qqp", "--max-train-examples", "4000"),
    "mnli, 6 000 examples": ("mnli", "--max-train-examples", "6000"),
}  # fmt: skip


TRIPPED = {
    "a small dev split": ({"dev": 60}, (), "data", "dev has 60 examples"),
    "texts of dev in train": ({"shared": 40}, (), "data", "also occur in train"),
    "a class that is missing": ({"more": ", mixed"}, (), "data", "train has no example of mixed"),
    "not above a linear model": ({}, ("--set", "epochs=1"), "baseline", "is not above"),
    "few steps": (
        {}, ("--mode", "fine_tuning", "--set", "epochs=1", "--set", "batch_size=32"), "few_steps",
        "raise epochs or trials",
    ),
    "the edge of a range": (
        {}, ("--set", "learning_rate={log_uniform: [1e-4, 1e-2], first: 1e-2}", "--set", "epochs=2"), "edge",
        "is at the top of its range (0.01)",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", TRIPPED)
def test_a_guard_is_tripped_by_a_sweep_and_said_in_the_table_and_of_data_on_the_terminal(
    case: str, tiny_encoder: str, tmp_path: Path
) -> None:
    data, words, kind, part = TRIPPED[case]
    task = task_of(tmp_path, **data)  # type: ignore[arg-type]
    mode = () if "--mode" in words else ("--mode", "feature_extraction")
    common = ("--encoder", tiny_encoder, "--task", str(task), "--head", "linear", "--trials", "1", "--seeds", "1")
    summary, said = swept(tmp_path / "runs", *common, *mode, *words)
    assert [one.text for one in guards(summary) if one.kind == kind and part in one.text]
    assert (part if kind == "data" else FOLDED[kind][0]) in said
    assert part in " ".join((tmp_path / "runs" / "s" / "report.md").read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of hidden states that the sweeps share, so that a task's texts are encoded once."""
    return tmp_path_factory.mktemp("features")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_head_that_misses_what_the_encoder_was_made_for_is_below_words_alone(
    minilm: Path, shared: Path, features: Path, tmp_path: Path
) -> None:
    """all-MiniLM's mean is trained, and its [CLS] is not: `linear` on it is below TF-IDF on sst2."""
    summary, said = swept(
        tmp_path / "runs", "--encoder", "minilm", "--mode", "feature_extraction", "--task", "sst2", "--head", "linear",
        "--data-dir", str(shared / "data"), "--cache-dir", str(features), "--trials", "4", "--seeds", "2",
    )  # fmt: skip
    (found,) = guards(summary)
    assert found.kind == "baseline"
    assert "is not above a linear model on TF-IDF" in found.text
    assert FOLDED["baseline"][0] in said


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", SOUND_SWEEPS)
def test_a_sound_sweep_trips_no_guard(case: str, minilm: Path, shared: Path, features: Path, tmp_path: Path) -> None:
    task, *words = SOUND_SWEEPS[case]
    summary, _ = swept(
        tmp_path / "runs", "--encoder", "minilm", "--mode", "feature_extraction", "--task", task, "--data-dir",
        str(shared / "data"), "--cache-dir", str(features), "--trials", "4", "--seeds", "2", *words,
    )  # fmt: skip
    assert guards(summary) == []
