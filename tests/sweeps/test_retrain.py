"""`train`: the recorded score to the last bit, or what else differs from the record; changes of the code that count."""

from __future__ import annotations

import ast
import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

import meltpoint
from meltpoint.adapters.exported_model import load_folder
from meltpoint.adapters.hardware import claim_device
from meltpoint.launch import app
from meltpoint.search_spaces import documents
from meltpoint.sweeps.driver.start import settle_specification
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import HardwareRecord, Trial, TrialRecord
from meltpoint.sweeps.results.export import export_cells, order_of
from meltpoint.sweeps.results.summary import summarise
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import OpenCell, open_cells
from meltpoint.sweeps.specification.provenance import code_version, digest, read_sources, reasons
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.worker.retrain import prepared, retrain
from meltpoint.tasks.core import sources
from meltpoint.tasks.core.files import schema_line
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec
from meltpoint.tests.sweeps import write_schemas
from meltpoint.tests.sweeps.whole_sweeps import command, run


@pytest.fixture
def exported(
    tmp_path: Path, spec: SweepSpec, cells: list[OpenCell], proposal: Trial, make_record: Callable[..., TrialRecord]
) -> Path:
    """The export of a feature extraction that was never trained: its recorded dev score is made up."""
    ledger = Ledger(tmp_path / "tiny")
    settle_specification(ledger, spec, cells)
    ledger.write(make_record(proposal, dev=(0.123,), code_version=code_version()))
    (path,) = export_cells(summarise(ledger), tmp_path / "exports")
    return path


def change(path: Path, **facts: Any) -> dict[str, Any]:
    """Write other facts into an export's provenance, part by part; gives all of it."""
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    for key, value in facts.items():
        old = document["provenance"][key]
        document["provenance"][key] = {**old, **value} if isinstance(value, dict) else value
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    provenance: dict[str, Any] = document["provenance"]
    return provenance


def here(path: Path) -> dict[str, object]:
    """This machine's hardware, as a record has it; the export's own is another's."""
    facts = change(path)["hardware"]
    hardware = claim_device(facts["threads"])
    return {**facts, "name": hardware.name, "host": socket.gethostname()}


def test_an_export_records_the_encoders_weights(exported: Path, cells: list[OpenCell]):
    assert change(exported)["encoder_fingerprint"] == cells[0].encoder_fingerprint


@pytest.mark.parametrize(("micro_batch_size", "checkpoints"), [(None, False), (None, True), (4, True)])
def test_a_trial_that_needed_less_memory_trains_again_with_as_little(
    spec, cells, proposal, make_record, tmp_path, micro_batch_size, checkpoints
):
    record = make_record(proposal, micro_batch_size=micro_batch_size, gradient_checkpointing=checkpoints)
    ledger = Ledger(tmp_path / "tiny")
    settle_specification(ledger, spec, cells)
    ledger.write(record)
    (path,) = export_cells(summarise(ledger), tmp_path / "exports")
    again, facts = prepared(str(path), None, None, str(tmp_path))
    for order in (again, order_of(spec, record, ledger)):
        assert (order.micro_batch_size, order.gradient_checkpointing) == (micro_batch_size, checkpoints)
    assert ("gradient_checkpointing" in facts) == checkpoints


def test_another_score_ends_with_status_1_and_names_what_else_differs(exported: Path):
    change(exported, code="0.0.1+00000000", versions={"torch": "1.0"})
    said = CliRunner().invoke(app, ["train", str(exported), "--json"])
    assert said.exit_code == 1
    document = json.loads(said.stdout)
    assert (document["recorded"], document["same"]) == (0.123, False)
    named = {reason.partition(":")[0] for reason in document["reasons"]}
    assert {"Meltpoint's code", "torch", "machine"} <= named
    (line,) = [line for line in said.stderr.splitlines() if "records" in line]
    assert f"different. Other differences: Meltpoint's code: 0.0.1+00000000 → {code_version()}; " in line
    assert "machine: here → " in line


def test_a_score_of_the_first_phase_that_an_earlier_version_took_for_the_result_is_explained(
    tmp_path: Path, spec: SweepSpec, make_record: Callable[..., TrialRecord]
):
    own = spec.model_copy(update={"modes": ("stack_and_finetune",), "space": None, "overrides": ("batch_size=8",)})
    ledger, cells = Ledger(tmp_path / "old"), open_cells(own)
    settle_specification(ledger, own, cells)
    proposal = Planner(own, cells, []).next()
    ledger.write(make_record(proposal, dev=(0.123, 0.1), code_version=code_version()))
    (path,) = export_cells(summarise(ledger), tmp_path / "exports")
    first, _, text = path.read_text(encoding="utf-8").partition("\n")
    assert first == schema_line("space")
    jsonschema.validate(documents.parse(text, "exported"), write_schemas.space())
    change(path, code="0.0.1+00000000")
    said = CliRunner().invoke(app, ["train", str(path), "--json"])
    assert said.exit_code == 1
    first, code, *_ = json.loads(said.stdout)["reasons"]
    assert first.startswith("the epoch of the result: 1, in the first phase, as earlier versions chose → ")
    assert code == f"Meltpoint's code: 0.0.1+00000000 → {code_version()}"


def test_another_task_than_the_one_that_the_export_was_found_on_is_refused(exported: Path):
    document = yaml.safe_load(exported.read_text(encoding="utf-8"))
    exported.write_text(yaml.safe_dump({**document, "task": "sst2"}), encoding="utf-8")
    said = CliRunner().invoke(app, ["train", str(exported)])
    assert said.exit_code == 2
    assert f"names the task sst2 but was found on {document['task']}" in said.stderr


@pytest.mark.parametrize("last", ["epochs", "learning_rate"])
def test_a_file_that_was_cut_off_behind_a_key_is_refused(exported: Path, last: str):
    text = exported.read_text(encoding="utf-8")
    head, key, _ = text.partition(f"  {last}:")
    exported.write_text(head + key, encoding="utf-8")
    said = CliRunner().invoke(app, ["train", str(exported)])
    assert said.exit_code == 2
    assert f"{last} has no value" in said.stderr


def test_another_score_that_nothing_explains_says_so(exported: Path):
    change(exported, hardware=here(exported))
    said = CliRunner().invoke(app, ["train", str(exported)])
    assert said.exit_code == 1
    assert "different, and nothing that it records explains it" in said.stderr


@pytest.mark.slow
def test_finals_of_a_sweep_whose_epochs_are_scored_on_a_sample_of_dev_train_again_to_their_scores(
    spec: SweepSpec, tiny_task: Path, tmp_path: Path
):
    shutil.copytree(tiny_task.parent, tmp_path / "data")
    dev = tmp_path / "data" / "dev.tsv"
    head, *rows = dev.read_text(encoding="utf-8").splitlines(keepends=True)
    dev.write_text(head + "".join(rows * 50), encoding="utf-8")
    task = str(tmp_path / "data" / tiny_task.name)
    ended = run(command(spec, tmp_path, tasks=(task,), modes=("feature_extraction",), trials=2))
    assert ended.returncode == 0, ended.stderr
    assert "dev sample of 500 of 800 for epochs" in ended.stdout
    (path,) = (tmp_path / "tiny" / "exports").glob("*.yaml")
    for final in yaml.safe_load(path.read_text(encoding="utf-8"))["provenance"]["finals"]:
        again = retrain(str(path), final["seed"], True, None, lambda epoch: None)
        assert (again.dev, again.test) == (final["dev_of_sample"], final["test"]["accuracy"])
        assert again.same


def test_the_model_is_kept_where_out_says_and_predicts_dev_as_it_was_scored(exported: Path, tmp_path: Path):
    kept = tmp_path / "kept"
    said = CliRunner().invoke(app, ["train", str(exported), "--seed", "7", "--json", "--out", str(kept)])
    assert said.exit_code == 0
    model = load_folder(kept)
    facts = json.loads((kept / "meltpoint.json").read_text())
    dev = load_training_data(DataSpec(yaml.safe_load(exported.read_text())["provenance"]["data"]["task"])).dev
    right = [model.predict([one.texts[0]])[0] == model.task.labels[one.label] for one in dev]
    assert sum(right) / len(right) == json.loads(said.stdout)["dev"] == facts["dev"]
    again = CliRunner().invoke(app, ["train", str(exported), "--out", str(kept)])
    assert again.exit_code == 2
    assert "already exists" in again.stderr


def test_a_model_that_transformers_has_no_class_for_is_refused_before_it_is_trained(exported: Path, tmp_path: Path):
    words = ["train", str(exported), "--seed", "7", "--out", str(tmp_path / "kept"), "--transformers"]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 2
    assert "train with --head native, or export it with --model" in said.stderr
    assert "epoch" not in said.stderr
    assert not (tmp_path / "kept").exists()
    lacking = CliRunner().invoke(app, ["train", str(exported), "--transformers"])
    assert (lacking.exit_code, "name a folder with --out" in lacking.stderr) == (2, True)


def test_a_test_split_that_cannot_be_scored_is_refused_before_anything_is_trained(
    exported: Path, without_test: Path, monkeypatch: pytest.MonkeyPatch
):
    change(exported, data={"task": str(without_test)})
    said = CliRunner().invoke(app, ["train", str(exported), "--seed", "7", "--test"])
    assert (said.exit_code, "epoch" in said.stderr) == (2, False)
    assert "--test: tiny_reviews has no test split here; leave --test out." in said.stderr
    monkeypatch.setattr(sources, "check", lambda data: "hidden")
    said = CliRunner().invoke(app, ["train", str(exported), "--seed", "7", "--test"])
    assert (said.exit_code, "epoch" in said.stderr) == (2, False)
    assert "keeps its test labels hidden" in said.stderr


def test_a_seed_without_a_recorded_score_is_compared_with_nothing(exported: Path):
    said = CliRunner().invoke(app, ["train", str(exported), "--seed", "7", "--json"])
    assert said.exit_code == 0
    assert json.loads(said.stdout)["same"] is None
    assert "records no dev score for seed 7" in said.stderr


NOW = {
    "code": "1+a", "versions": {"torch": "2", "ray": "9"},
    "hardware": HardwareRecord(device="cpu", name="AVX2", threads=1, gpu_share=0.0, precision="fp32", host="h"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        ({}, ()),
        ({"code": "1+b"}, ("Meltpoint's code: 1+b → 1+a",)),
        ({"versions": {"torch": "1", "ray": "8"}}, ("torch: 1 → 2",)),
        ({"hardware": None}, ()),
        ({"hardware": {"name": "AVX512", "threads": 2, "precision": "bf16", "host": "h"}},
         ("processor: AVX512 → AVX2", "threads: 2 → 1", "precision: bf16 → fp32")),
        ({"hardware": {"name": "AVX2", "cpu_kernels": True}}, ()),  # a record of version 0.2; its code says enough
        ({"hardware": {"device": "cuda:0", "gpu_share": 0.5}}, ("device: cuda:0 → cpu", "share of the GPU: 0.5 → 0.0")),
    ],
)  # fmt: skip
def test_only_what_is_recorded_and_differs_is_a_reason(facts: dict[str, Any], wanted: tuple[str, ...]):
    hardware = NOW["hardware"]
    assert isinstance(hardware, HardwareRecord)
    assert reasons(facts, "1+a", NOW["versions"], hardware.model_dump()) == wanted


LOOP = "adapters/training/trainer.py"
SOURCES = read_sources(Path(meltpoint.__path__[0]))
TRAINING = {path: text for path, text in SOURCES.items() if path.startswith("adapters/training/")}


def with_docstrings(text: str) -> str:
    """The text without comments and layout, and with another docstring in every module, class and function."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [ast.Expr(ast.Constant("Another text.")), *node.body]
    return ast.unparse(ast.fix_missing_locations(tree))


def test_comments_docstrings_and_layout_leave_the_version_as_it_is():
    version = digest(TRAINING)
    assert digest({path: with_docstrings(text) for path, text in TRAINING.items()}) == version
    assert digest({path: f"# a file\n\n{text}\n# its end\n" for path, text in TRAINING.items()}) == version
    assert digest({**TRAINING, "adapters/new/__init__.py": '"""A folder."""\n'}) == version


TEXT = "from a import b\n\nclass C:\n    rate: float = 0.1\n    def f(self, x: int = 2):\n        return x + 1\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [("0.1", "0.2"), ("+", "-"), ("= 2", "= 3"), (": float", ": int"), ("rate", "pace"), ("import b", "import c")],
)
def test_every_number_operator_default_name_annotation_and_import_counts(old: str, new: str):
    assert digest({LOOP: TEXT}) != digest({LOOP: TEXT.replace(old, new)})


def test_one_changed_number_and_a_moved_file_make_another_version():
    text = TRAINING[LOOP]
    assert digest({**TRAINING, LOOP: f"{text}\nEXTRA = 1\n"}) != digest({**TRAINING, LOOP: f"{text}\nEXTRA = 2\n"})
    moved = {path: text for path, text in TRAINING.items() if path != LOOP} | {"adapters/training/loop.py": text}
    assert digest(moved) != digest(TRAINING)
