"""`export --optuna`: a journal that Optuna reads back, one study a cell, every state as it is."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from typer.testing import CliRunner

from meltpoint.launch import app
from meltpoint.reports.tuning import write_journal
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.summary import summarise
from meltpoint.sweeps.results.sweep_file import SweepFile, write_sweep

SPACE = """\
parameters:
  learning_rate: {log_uniform: [1.0e-5, 1.0e-4]}
  dropout: {uniform: [0.0, 0.3]}
  weight_decay: {fixed: 0.01}
  epochs: {choice: [2, 3, 4]}
  batch_size: {fixed: 32}
"""


@pytest.fixture
def storage(tmp_path: Path, make_cell, make_sweep) -> Path:
    """A sweep of two cells; in the first, trials that finished, were stopped, failed, and were lost."""
    tuned, frozen = make_cell("fine_tuning", search=(0.7, 0.8), planned=5), make_cell("feature_extraction")
    ledger = Ledger(tmp_path / "first")
    ledger.create()
    search = [*tuned.search, *frozen.search]
    source = tuned.search[0]
    for name, status, said in (
        ("stopped", "stopped", {"dev": None}), ("failed", "failed", {"dev": None, "error": "loss is NaN"}),
        ("lost", "failed", {"dev": None, "error": "killed", "cause": "memory"}),
    ):  # fmt: skip
        setting = {**source.setting, "dropout": 0.2}
        search.append(source.model_copy(update={"id": name, "status": status, "setting": setting, **said}))
    for record in search:
        ledger.write(record)
    summary = make_sweep(tuned, frozen)
    headers = tuple(cell.header.model_copy(update={"space": SPACE}) for cell in (tuned, frozen))
    write_sweep(ledger, SweepFile(spec=summary.spec, code=summary.code, cells=headers))
    return tmp_path


def test_optuna_reads_a_study_a_cell_with_every_trial_that_says_something(storage: Path, tmp_path: Path) -> None:
    path = tmp_path / "journals" / "search.log"
    result = CliRunner().invoke(app, ["export", "first", "--optuna", str(path), "--storage", str(storage)])
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(path)
    journal = JournalStorage(JournalFileBackend(str(path)))
    names = optuna.get_all_study_names(journal)
    assert sorted(names) == ["minilm.feature_extraction.sst2", "minilm.fine_tuning.sst2"]
    study = optuna.load_study(study_name="minilm.fine_tuning.sst2", storage=journal)
    states = [trial.state for trial in study.trials]
    assert sorted(states) == sorted([TrialState.COMPLETE, TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL]), (
        "the lost one is left out"
    )
    assert study.best_value == 0.8
    assert study.best_trial.params["learning_rate"] == pytest.approx(4.25e-5)
    assert study.best_trial.intermediate_values.keys() == {1, 2, 3}
    failed = next(trial for trial in study.trials if trial.state == TrialState.FAIL)
    assert failed.user_attrs["error"] == "loss is NaN"
    assert study.user_attrs["metric"] == "dev accuracy"
    assert list(path.parent.iterdir()) == [path], "nothing of the writing stays"


def test_a_file_that_is_there_is_not_overwritten(storage: Path, tmp_path: Path) -> None:
    path = tmp_path / "taken.log"
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(ValueError, match="exists; name a new file"):
        write_journal(summarise(Ledger(storage / "first")), path)
    assert path.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("option", [["--cell", "a.b.c"], ["--model"], ["--out", "folder"]])
def test_options_that_a_journal_has_no_use_for_are_refused(storage: Path, tmp_path: Path, option: list[str]) -> None:
    path = tmp_path / "search.log"
    result = CliRunner().invoke(app, ["export", "first", "--optuna", str(path), "--storage", str(storage), *option])
    assert (result.exit_code, path.exists()) == (2, False)
    assert f"leave out {option[0]}." in result.stderr
