"""The look at test splits before a search: a broken one is refused, and nothing else of it comes back."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from meltpoint.sweeps.driver.finals import require_test_splits, unchecked
from meltpoint.sweeps.driver.opening import settle_specification
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.search.closing import opened_trials
from meltpoint.sweeps.specification.cells import OpenCell, open_cells
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tests.sweeps.whole_sweeps import command, records, run

ROWS = "text\tlabel\nx fine film\tgood\na dull one\tbad\n"


def own_task(folder: Path, test: str, name: str = "own") -> Path:
    """A task whose test file has these rows."""
    folder.mkdir(exist_ok=True)
    for split, text in (("train", 4 * ROWS.partition("\n")[2]), ("dev", ROWS.partition("\n")[2]), ("test", test)):
        (folder / f"{split}.tsv").write_text(f"text\tlabel\n{text}", encoding="utf-8")
    path = folder / "task.yaml"
    path.write_text(
        f"name: {name}\nkind: sentence_classification\nfiles: {{train: train.tsv, dev: dev.tsv, test: test.tsv}}\n"
        "format: tsv\ncolumns: {text: text, label: label}\nlabels: [good, bad]\n",
        encoding="utf-8",
    )
    return path


BROKEN = "secret words\tgood\nother words\tsplendid\n"


@pytest.fixture
def opened(spec: SweepSpec, tmp_path: Path):
    """The ledger and the cells of a sweep on a task with these rows in its test file."""

    def made(test: str) -> tuple[Ledger, list[OpenCell]]:
        own = spec.model_copy(update={"tasks": (str(own_task(tmp_path / "data", test)),)})
        ledger, cells = Ledger(tmp_path / "tiny"), open_cells(own)
        settle_specification(ledger, own, cells)
        return ledger, cells

    return made


def test_a_broken_test_split_is_refused_with_its_file_its_line_and_its_remedy(opened) -> None:
    ledger, cells = opened(BROKEN)
    with pytest.raises(ValueError, match=r"test\.tsv") as refused:
        require_test_splits(ledger, cells)
    said = str(refused.value)
    assert "\n" not in said
    assert "line 3" in said
    assert "splendid" in said
    assert "secret" not in said
    assert not ledger.test_checks.exists()


def test_a_valid_one_is_logged_as_a_look_and_closes_no_cell_and_is_not_looked_at_again(opened) -> None:
    ledger, cells = opened("secret words\tgood\n")
    require_test_splits(ledger, cells)
    (line,) = ledger.test_checks.read_text().splitlines()
    logged = json.loads(line)
    assert (logged["task"], logged["found"], logged["data_fingerprint"]) == ("own", "valid", cells[0].data_fingerprint)
    assert "secret" not in line
    assert not opened_trials(ledger)
    assert unchecked(ledger, cells) == []


def test_other_train_data_and_a_torn_line_are_looked_at_again(opened) -> None:
    ledger, cells = opened("secret words\tgood\n")
    ledger.test_checks.write_text('{"task": "own", "data_fingerprint": "0000"}\n{"task": "ow')
    assert unchecked(ledger, cells) == [cells[-1]]


def test_a_generated_task_and_a_carved_test_split_are_not_looked_at(spec: SweepSpec, tmp_path: Path) -> None:
    carved = own_task(tmp_path / "data", "x\tgood\n")
    carved.write_text(carved.read_text().replace(", test: test.tsv", "") + "test_from: train[-2:]\n")
    for word in ("demo_sentiment", str(carved)):
        cells = open_cells(spec.model_copy(update={"tasks": (word,)}))
        assert unchecked(Ledger(tmp_path / "tiny"), cells) == []


def test_a_process_that_dies_is_told_from_a_broken_split(opened, monkeypatch) -> None:
    ledger, cells = opened("secret words\tgood\n")
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(ValueError, match="ended early: killed"):
        require_test_splits(ledger, cells)


@pytest.mark.slow
def test_a_sweep_refuses_a_broken_test_file_before_its_first_trial_and_goes_on_when_it_is_mended(
    spec: SweepSpec, tmp_path: Path
) -> None:
    task = own_task(tmp_path / "data", BROKEN)
    words = command(spec.model_copy(update={"tasks": (str(task),)}), tmp_path / "runs")
    refused = run(words)
    assert refused.returncode == 2, refused.stderr
    assert "Traceback" not in refused.stderr
    assert "splendid" in refused.stderr
    assert records(tmp_path / "runs") == []
    own_task(tmp_path / "data", ROWS.partition("\n")[2])
    assert run(words).returncode == 0
    assert len(records(tmp_path / "runs")) == len(spec.modes) * (spec.trials + spec.seeds)
