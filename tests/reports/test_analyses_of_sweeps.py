"""Every analysis on sweeps of all three modes, in the default precision and in bf16, on any processor."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from meltpoint.reports.analyses import analyse, names
from meltpoint.reports.analyses.core.analysis import AnalysisOptions
from meltpoint.reports.analyses.core.states import STAGES, split_states, stages
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.export import export_finalist
from meltpoint.sweeps.results.summary import summarise
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.worker import worker
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec
from meltpoint.tasks.mnli import GENRES, LABELS

MODES = ("feature_extraction", "fine_tuning", "stack_and_finetune")
TELLING = ("fine", "dull", "warm")  # the word that determines the label
SETTING = {"learning_rate": 2e-3, "epochs": 2, "batch_size": 8, "dropout": 0.0, "max_pieces": 16}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hand-made files of MultiNLI: eight training and six dev pairs per genre."""
    folder, draw = tmp_path_factory.mktemp("data") / "mnli", random.Random(0)
    folder.mkdir()
    for name, count in (("train.tsv", 8), ("dev_matched.tsv", 6)):
        rows = ["genre\tgold_label\tsentence1\tsentence2"]
        for genre in GENRES:
            for number in range(count):
                thing, label = draw.choice(("film", "meal", "hotel", "song")), number % 3
                rows.append(f"{genre}\t{LABELS[label]}\tthe {thing} was {TELLING[label]}\tthe {thing} was good")
        (folder / name).write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder.parent


@pytest.fixture(scope="module", params=["auto", "bf16"])
def storage(request, data: Path, tiny_bert: Path, train_sweep, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep with one cell per mode, each with its default head and two finals."""
    spec = SweepSpec(
        name="every", encoders=(f"hf:{tiny_bert}",), modes=MODES, tasks=("mnli",), data_dir=str(data), trials=1, seeds=2
    )
    precision = {} if request.param == "auto" else {"precision": request.param}
    return train_sweep(tmp_path_factory.mktemp("storage"), spec, SETTING | precision)


def read(out: Path, name: str) -> list[dict[str, str]]:
    with (out / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_analysis_is_made_of_a_sweep_of_all_modes(storage, tmp_path):
    analyse("every", names(), storage, out=tmp_path, formats=["csv", "svg"])
    for name in ("diagnostic_classifiers", "mutual_information"):
        layers = [(row["stage"], row["layer"]) for row in read(tmp_path, name)]
        for stage in ("pretrained", "fine-tuned", "stacked, then fine-tuned"):
            assert [layer for one, layer in layers if one == stage] == ["0", "1", "2"]
        assert (tmp_path / f"{name}.svg").stat().st_size > 1000
    (guideline,) = read(tmp_path, "guidelines")
    assert guideline["task"] == "mnli"
    genres = read(tmp_path, "genres")
    assert [row["genre"] for row in genres] == list(GENRES)
    assert all(0.0 <= float(row[mode]) <= 1.0 for row in genres for mode in ("❄", "🔥"))
    (ratio,) = read(tmp_path, "cost_ratios")
    assert ratio["lecture"] == "~10×"


def tuned(storage: Path, data: Path, **fields: object) -> dict[str, np.ndarray]:
    """Stage name → mean dev states, for the tuned stages."""
    ledger = Ledger(storage / "every")
    summary, loaded = summarise(ledger), load_training_data(DataSpec("mnli", str(data)))
    options = AnalysisOptions(**{"sweep": summary, "ledger": ledger, "out": storage} | fields)
    states = {one.name: one.encoder for one in stages(options, summary.spec.encoders[0], loaded)}
    del states["pretrained"]
    return {name: split_states(encoder, loaded.task.kind, loaded.dev) for name, encoder in states.items()}


def by_transformers(weights: Path, tiny_bert: Path, data: Path) -> np.ndarray:
    """The same by transformers from a checkpoint's file, one input at a time: (layers, examples, dim)."""
    encoder = {name: tensor for name, tensor in load_file(weights).items() if name.startswith("encoder.")}
    assert {tensor.dtype for tensor in encoder.values()} == {torch.float32}
    model = transformers.BertModel.from_pretrained(tiny_bert, add_pooling_layer=False).eval()
    model.load_state_dict({name.removeprefix("encoder.model."): tensor for name, tensor in encoder.items()})
    tokenizer, rows = transformers.AutoTokenizer.from_pretrained(tiny_bert), []
    for example in load_training_data(DataSpec("mnli", str(data))).dev:
        with torch.no_grad():
            output = model(**tokenizer(*example.texts, return_tensors="pt"), output_hidden_states=True)
        rows.append(np.stack([states[0].mean(dim=0).numpy() for states in output.hidden_states]))
    return np.stack(rows, axis=1)


def test_a_finalists_states_are_those_of_its_checkpoints_float32_weights(storage, data, tiny_bert):
    ledger = Ledger(storage / "every")
    states = tuned(storage, data)
    kept = {STAGES[cell.header.mode]: cell.kept for cell in summarise(ledger).cells if cell.header.mode in STAGES}
    assert states.keys() == kept.keys()
    for stage, final in kept.items():
        expected = by_transformers(ledger.checkpoint(final.id) / worker.WEIGHTS, tiny_bert, data)
        np.testing.assert_allclose(states[stage], expected, atol=5e-6)


def test_an_exported_folder_gives_the_states_of_its_finalist(storage, data, tmp_path):
    ledger = Ledger(storage / "every")
    summary = summarise(ledger)
    for cell in summary.cells[1:]:
        stage = STAGES[cell.header.mode]
        folder = export_finalist(ledger, summary, cell_name(*cell.header.key), tmp_path)
        states = tuned(storage, data, sweep=None, model=folder)
        np.testing.assert_array_equal(states[stage], tuned(storage, data)[stage])
