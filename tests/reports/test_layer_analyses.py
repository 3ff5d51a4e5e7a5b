"""Hidden states of finalists and the papers' figures of them."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from meltpoint.adapters import encoders
from meltpoint.adapters.encoder import Encoder
from meltpoint.reports.analyses import FORMATS, analyse
from meltpoint.reports.analyses.core.states import constant, probe, split_states
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.sweep_file import read_sweep, write_sweep
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.worker import worker
from meltpoint.tasks import get
from meltpoint.tasks.core.task import Example, Task
from meltpoint.tests.reports.stored_sweeps import read_csv
from meltpoint.tests.tiny_parts import BAD, GOOD, TASK_YAML, write_splits

WORDS = ("fine", "lovely", "dull", "awful", "film", "meal", "hotel", "the", "was")
LABELLED = Task("tiny", "sentence_classification", "accuracy", "", {}, labels=("bad", "good"))
SCORED = Task("tiny", "pair_regression", "pearson", "", {}, label_range=(0.0, 5.0))


@pytest.fixture
def encoder(tiny_bert: Path) -> Encoder:
    return encoders.load(encoders.resolve(f"hf:{tiny_bert}", "sentence_classification"))


def sentences(count: int) -> list[Example]:
    draw = random.Random(1)
    texts = [" ".join(draw.choices(WORDS, k=2 + number % 7)) for number in range(count)]
    return [Example(str(number), texts=(text,), label=number % 2) for number, text in enumerate(texts)]


def alone(encoder: Encoder, *texts: str) -> np.ndarray:
    """One input's mean states, by transformers itself: (layers, dim)."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder.revision)
    with torch.no_grad():
        output = encoder.model(**tokenizer(*texts, return_tensors="pt"), output_hidden_states=True)
    return np.stack([states[0].mean(dim=0).numpy() for states in output.hidden_states])


def test_a_mean_state_is_that_of_the_input_alone_whatever_shares_its_batch_and_leaves_the_encoder_as_it_was(encoder):
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    encoder.train()
    examples = sentences(70)
    result = split_states(encoder, get("cola"), examples)
    pairs = [
        Example("0", texts=("the film was fine", "the meal was cold"), label=1),
        Example("1", texts=("a", "b"), label=0),
    ]
    of_pairs = split_states(encoder, get("mrpc"), pairs)
    assert encoder.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())
    encoder.eval()
    assert (result.shape, result.dtype) == ((3, 70, 32), np.float32)
    for place in (0, 1, 6, 69):
        np.testing.assert_allclose(result[:, place], alone(encoder, *examples[place].texts), atol=2e-6)
    np.testing.assert_allclose(of_pairs[:, 0], alone(encoder, *pairs[0].texts), atol=2e-6)


def noise(examples: int, seed: int) -> np.ndarray:
    return np.random.RandomState(seed).standard_normal((examples, 24)).astype(np.float32)


def test_a_probe_finds_a_label_that_is_in_the_states_and_none_that_is_not():
    labels = list(np.random.RandomState(0).randint(0, 2, 500))
    states = noise(500, 1)
    assert probe(LABELLED, states[:300], labels[:300], states[300:], labels[300:]) == pytest.approx(0.5, abs=0.12)
    states[:, 3] += 1000.0 + 8.0 * np.array(labels)  # far from 0, so that only a scaled fit succeeds
    assert probe(LABELLED, states[:300], labels[:300], states[300:], labels[300:]) > 0.99
    assert constant(LABELLED, [1, 1, 0], [0, 0, 0, 1]) == 0.25, "the most frequent label of train, scored on dev"
    assert constant(SCORED, [1.0, 2.0], [1.0, 4.0, 5.0]) == 0.0
    with pytest.raises(ValueError, match="all have one label"):
        probe(LABELLED, noise(4, 0), [1, 1, 1, 1], noise(2, 0), [0, 1])


def test_scores_are_probed_by_least_squares():
    states = noise(400, 2)
    weights = np.linspace(-1, 1, 24)
    scores = [float(score) for score in states @ weights + 0.1 * noise(400, 3)[:, 0]]
    result = probe(SCORED, states[:200], scores[:200], states[200:], scores[200:])
    design = np.c_[states[:200], np.ones(200)]
    solved = np.linalg.lstsq(design, np.array(scores[:200]), rcond=None)[0]
    expected = np.corrcoef(np.c_[states[200:], np.ones(200)] @ solved, scores[200:])[0, 1]
    assert result == pytest.approx(expected, abs=1e-5)


SETTING = {
    "learning_rate": 2e-3, "epochs": 4, "batch_size": 8, "dropout": 0.0, "max_pieces": 16, "precision": "fp32",
}  # fmt: skip
PLAIN_WORDS = (*GOOD, *BAD, "film", "meal", "hotel", "song")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences with one word that tells the label; a fifth of the labels are wrong, so that no model is perfect."""

    def row(number: int, draw: random.Random) -> tuple[str, str]:
        tone = PLAIN_WORDS[draw.randrange(4) + 4 * (number % 2)]
        label = ("good", "bad")[number % 2 if number % 5 else draw.randrange(2)]
        return f"the {draw.choice(PLAIN_WORDS[8:12])} was {' '.join(['the'] * (number % 3))} {tone}", label

    place = tmp_path_factory.mktemp("tiny-task")
    write_splits(place, {"train": 64, "dev": 160, "test": 8}, row)
    path = place / "tiny_reviews.yaml"
    path.write_text(TASK_YAML, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def storage(tiny_bert: Path, task: Path, train_sweep, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of one frozen and one fine-tuned cell, one finalist each, trained by the worker itself."""
    place = tmp_path_factory.mktemp("storage")
    spec = SweepSpec(
        name="tiny", encoders=(f"hf:{tiny_bert}",), modes=("feature_extraction", "fine_tuning"), tasks=(str(task),),
        head="linear", trials=1, seeds=1,
    )  # fmt: skip
    return train_sweep(place, spec, SETTING)


def read(out: Path, name: str) -> list[dict[str, str]]:
    return read_csv(out / f"{name}.csv")


def column(rows: list[dict[str, str]], stage: str, name: str) -> list[float]:
    return [float(row[name]) for row in rows if row["stage"] == stage]


def test_a_sweeps_finalist_is_measured_beside_the_encoder_it_began_as(storage, tiny_bert, tmp_path):
    lines: list[str] = []
    written = analyse(
        "tiny", ["diagnostic_classifiers", "mutual_information"], storage, out=tmp_path, tell=lines.append
    )
    assert {path.name for path in written} == {
        f"{name}.{form}" for name in ("diagnostic_classifiers", "mutual_information") for form in FORMATS
    }
    assert all(path.stat().st_size > 100 for path in written)
    assert len(lines) == 4
    probes, information = read(tmp_path, "diagnostic_classifiers"), read(tmp_path, "mutual_information")
    for stage in ("pretrained", "fine-tuned"):
        assert [row["layer"] for row in probes if row["stage"] == stage] == ["0", "1", "2"]
        assert all(0.0 <= bits <= float(information[0]["label entropy"]) for bits in column(information, stage, "bits"))
    tuned, pretrained = (column(information, stage, "bits")[-1] for stage in ("fine-tuned", "pretrained"))
    assert tuned > pretrained, "as in figure 2"
    assert f"pretrained: hf:{tiny_bert}, weights " in (tmp_path / "mutual_information.md").read_text(encoding="utf-8")
    assert "with the best dev, seed 0" in (tmp_path / "diagnostic_classifiers.md").read_text(encoding="utf-8")
    few = {"out": tmp_path / "few", "formats": ["md"], "max_train_examples": 20}
    (path,) = analyse("tiny", ["diagnostic_classifiers"], storage, **few)
    assert "20 training and 160 dev examples" in path.read_text(encoding="utf-8")
    weights = storage / "tiny" / "checkpoints" / "fine_tuning-final0" / worker.WEIGHTS
    away = weights.rename(tmp_path / "away")
    try:
        with pytest.raises(ValueError, match=r"Cell '.*\.fine_tuning\.tiny_reviews' has no finalist with weights"):
            analyse("tiny", ["diagnostic_classifiers"], storage, out=tmp_path / "out")
    finally:
        away.rename(weights)


def test_the_sanity_checks_give_the_estimators_zero(storage):
    (path,) = analyse("tiny", ["mutual_information"], storage, formats=["csv"])
    assert path == storage / "tiny" / "analyses" / "mutual_information.csv", "without `out`, in the sweep's own folder"
    rows = read(path.parent, "mutual_information")
    (noisy,) = [row for row in rows if row["stage"] == "random states"]
    assert float(noisy["bits"]) < 0.02
    assert noisy["layer"] == ""
    assert abs(float(noisy["excess"])) < 4 * float(noisy["first pass, std"])
    # Its sentences are few, so that shuffled labels fit them a little; the papers' dev sets give 0.001.
    assert max(column(rows, "pretrained", "shuffled labels")) < 0.1


def test_a_sweeps_tasks_that_label_words_are_left_out_and_named(storage, tmp_path):
    ledger, later = Ledger(storage / "tiny"), Ledger(storage / "later")
    old = read_sweep(ledger)
    words = [header.model_copy(update={"task": "demo_entities", "kind": "sequence_labelling"}) for header in old.cells]
    later.create()
    for record in ledger.records():
        later.write(record)
    (later.folder / "checkpoints").symlink_to(ledger.folder / "checkpoints")
    write_sweep(later, old.model_copy(update={"cells": (*words, *old.cells)}))
    analyse("later", ["mutual_information"], storage, out=tmp_path, formats=["md", "csv"])
    text = (tmp_path / "mutual_information.md").read_text(encoding="utf-8")
    assert "demo_entities is left out: it labels words, or has several labels per text." in text
    assert {row["task"] for row in read(tmp_path, "mutual_information")} == {"tiny_reviews"}
    with pytest.raises(ValueError, match="demo_entities labels words"):
        analyse("later", ["mutual_information"], storage, out=tmp_path, tasks=["demo_entities"])


MINI = {"encoders": ["minilm"], "tasks": ["demo_entities"]}


@pytest.mark.parametrize(
    ("name", "chosen", "options", "part"),
    [
        ("tiny", "guidlines", {}, r"Unknown analysis 'guidlines'\. Did you mean guidelines\?"),
        ("nightly", "guidelines", {}, r"No sweep 'nightly'.*Sweeps: .*tiny\."),
        ("tiny", "mutual_information", {"tasks": ["sst2"]}, "Unknown task of sweep tiny 'sst2'"),
        ("tiny", "mutual_information", {"formats": ["pdf"]}, "Unknown format 'pdf'"),
        ("-", "mutual_information", {}, "name encoders and tasks: --encoder E --task T"),
        ("-", "diagnostic_classifiers", MINI, r"demo_entities labels words; .* Leave it out with --task\."),
        (
            "-", "mutual_information", {**MINI, "tasks": ["demo_similarity"]},
            "needs a task with classes; demo_similarity is left out",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_in_one_line(storage, tmp_path, name, chosen, options, part):
    with pytest.raises(ValueError, match=part) as caught:
        analyse(name, [chosen], storage, out=tmp_path, **options)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
