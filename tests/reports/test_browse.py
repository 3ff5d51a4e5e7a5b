"""The commands that look into sweeps: `list sweeps`, `status` without a name, `show`, `best`, `compare`."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from meltpoint.launch import app
from meltpoint.reports.loaded_sweep import compare_sweeps, comparison_lines
from meltpoint.reports.trial_view import best_of_cell, find_trial
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.summary import summarise
from meltpoint.tests.reports.stored_sweeps import stored

SETTING = {"learning_rate": 4.25e-5, "dropout": 0.1, "weight_decay": 0.01, "epochs": 3, "batch_size": 32}


@pytest.fixture
def storage(tmp_path: Path, make_cell, make_sweep) -> Path:
    """Two sweeps: `first` with two cells, `second` with one of them, another setting and other data."""
    tuned = make_cell("fine_tuning", search=(0.8,), finals=[(0.79, 0.78), (0.81, 0.8)])
    frozen = make_cell("feature_extraction", search=(0.7,), finals=[(0.7, 0.69), (0.7, 0.71)])
    stored(tmp_path, make_sweep(tuned, frozen))
    other = make_cell("fine_tuning", search=(0.9,), finals=[(0.9, 0.9)], setting={**SETTING, "epochs": 4})
    facts = {"data_fingerprint": "e" * 16}
    header = other.header.model_copy(update=facts)
    assert other.best is not None
    best = other.best.model_copy(update={**facts, "suggested_by": "tpe"})
    moved = replace(other, header=header, best=best, finals=[f.model_copy(update=facts) for f in other.finals])
    stored(tmp_path, make_sweep(moved, name="second", trials=8))
    return tmp_path


def asked(storage: Path, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--storage", str(storage)])


def run(storage: Path, *words: str) -> str:
    result = asked(storage, *words)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("words", [("list", "sweeps"), ("status",)])
def test_every_sweep_of_a_storage_is_listed_also_a_damaged_one(storage: Path, words: tuple[str, ...]) -> None:
    (storage / "broken").mkdir()
    (storage / "broken" / "sweep.json").write_text("{", encoding="utf-8")
    (storage / "unreadable" / "sweep.json").mkdir(parents=True)
    rows = {row["name"]: row for row in json.loads(run(storage, *words, "--json"))}
    assert set(rows) == {"first", "second", "broken", "unreadable"}
    assert (rows["first"]["cells"], rows["first"]["cells_done"], rows["first"]["trials"]) == (2, 2, 2)
    assert rows["first"]["tasks"] == ["sst2"]
    assert rows["broken"]["state"] == "damaged"
    assert "sweep.json" in rows["broken"]["fault"]
    assert rows["unreadable"]["state"] == "damaged"
    assert "sweep.json is damaged" in rows["unreadable"]["fault"]
    text = run(storage, *words)
    assert all(name in text for name in rows)
    (storage / "empty").mkdir()
    assert "meltpoint sweep" in run(storage / "empty", "status"), "how to begin"


@pytest.mark.parametrize("dev", ["NaN", "3.5"])
def test_a_damaged_record_is_named_and_left_out_and_everything_else_is_shown(storage: Path, dev: str) -> None:
    best = storage / "first" / "trials" / "fine_tuning.sst2.0.json"
    best.write_text(best.read_text().replace('"dev": 0.8', f'"dev": {dev}'))
    rows = {row["name"]: row for row in json.loads(run(storage, "list", "sweeps", "--json"))}
    assert best.name in rows["first"]["fault"]
    assert (rows["first"]["trials"], rows["second"]["trials"]) == (1, 1)
    for words in (("status", "first"), ("report", "first"), ("report", "first", "--format", "csv")):
        result = asked(storage, *words)
        assert result.exit_code == 0, result.output
        assert f"Leftout:{best}isnotatrialrecord" in "".join(result.output.split())
        assert "350.0" not in result.output
    refused = asked(storage, "export", "first")
    assert (refused.exit_code, best.name in refused.output) == (2, True)


EVIL = "[red]e\x1b]0;title\x07\x9b31m\u202e\n✗ forged.cell failed"
"""A name as a folder or a configuration may have it."""


def test_names_with_control_characters_and_markup_are_shown_as_they_are_and_forge_no_line(
    tmp_path: Path, make_cell, make_sweep
) -> None:
    cell = make_cell(encoder=f"hf:/{EVIL}", notes=(EVIL,), input_notes=(EVIL,), failed=(EVIL,), planned=3)
    stored(tmp_path, make_sweep(replace(cell, finals=cell.search)))
    for words in (
        ("status",), ("status", "first"), ("report", "first"), ("report", "first", "--format", "csv"),
        ("best", "first"), ("compare", "first", "first"), ("show", "first", cell.best.id), ("export", "first"),
        ("status", "first", "--json"), ("best", "first", "--json"),
    ):  # fmt: skip
        result = asked(tmp_path, *words)
        assert not set(result.output) & set("\x1b\x07\x9b\u202e"), words
        forged = any(line.startswith("✗ forged") for line in result.output.splitlines())
        assert not forged or "csv" in words, "a cell of CSV may have several lines"
        assert result.exit_code == 0, result.output


def test_show_prints_a_trial_by_the_first_characters_of_its_id(storage: Path) -> None:
    text = run(storage, "show", "second", "fine_tuning.sst2.0")
    shown = yaml.safe_load(text)
    assert (shown["role"], shown["suggested_by"], shown["dev"], shown["best_epoch"]) == ("search", "tpe", 0.9, 2)
    assert shown["searched"] == {"learning_rate": 4.25e-5, "dropout": 0.1, "epochs": 4}
    assert [line.startswith("epoch ") for line in shown["epochs"]] == [True] * 3
    record = json.loads(run(storage, "show", "second", "fine_tuning.sst2.0", "--json"))
    assert record["setting"]["epochs"] == 4
    ledger = Ledger(storage / "first")
    lost = {"id": "lost-trial", "status": "failed", "dev": None, "error": "killed\nfor memory", "cause": "memory"}
    ledger.write(ledger.records()[0].model_copy(update=lost))
    shown = yaml.safe_load(run(storage, "show", "first", "lost"))
    assert (shown["error"], shown["cause"]) == ("killed\nfor memory", "memory")
    summary = summarise(Ledger(storage / "first"))
    waiting = replace(summary, cells=[replace(cell, best=None) for cell in summary.cells])
    with pytest.raises(ValueError, match=r"has no finished trial yet; `meltpoint status first` shows its trials"):
        best_of_cell(waiting, summary.cells[0].name)
    for word in ("nothing", "fine", "fi"):
        with pytest.raises(ValueError, match="No cell or trial"):
            find_trial(ledger.records(), "first", word)


def test_best_ranks_the_cells_of_each_task_and_gives_programs_every_value(tmp_path, make_cell, make_sweep):
    scores = {("feature_extraction", "sst2"): 0.7, ("fine_tuning", "sst2"): 0.8, ("feature_extraction", "mrpc"): 0.9}
    cells = [make_cell(mode, task, finals=[(0.5, score)]) for (mode, task), score in scores.items()]
    cells.append(make_cell("fine_tuning", "mrpc", search=()))
    stored(tmp_path, make_sweep(*cells))
    (cell,) = json.loads(run(tmp_path, "best", "first", "--cell", "minilm.fine_tuning.sst2", "--json"))
    assert (cell["setting"], cell["seeds"], cell["test_mean"]) == (SETTING, [0], 0.8)
    assert (cell["rank"], cell["recommended"]) == (1, True)
    refused = asked(tmp_path, "best", "first", "--cell", "x.y.z")
    assert (refused.exit_code, "minilm.fine_tuning.sst2" in refused.stderr) == (2, True)
    lines = run(tmp_path, "best", "first").splitlines()
    found = [line.partition("rank")[2].strip() or line for line in lines if line.startswith(("minilm.", "  rank"))]
    assert found == [
        "minilm.fine_tuning.sst2", "1/2 ★", "minilm.feature_extraction.sst2", "2/2", "minilm.feature_extraction.mrpc",
        "1/2 ★", "minilm.fine_tuning.mrpc", "2/2",
    ]  # fmt: skip


def test_compare_says_what_differs_and_that_other_data_lie_under_the_scores(storage: Path) -> None:
    text = run(storage, "compare", "first", "second")
    assert "trials 4 → 8" in text
    assert "Only in first: minilm.feature_extraction.sst2." in text
    assert "test accuracy 79.0 ± 1.4 → 90.0, Δ +11.0" in text
    assert f"data: {'d' * 16} → {'e' * 16}" in text
    assert "epochs 3 → 4" in text
    found = json.loads(run(storage, "compare", "first", "second", "--json"))
    assert found["cells"][0]["setting"] == {"epochs": [3, 4]}
    assert found["cells"][0]["delta"] == pytest.approx(0.11)
    summary = summarise(Ledger(storage / "first"))
    same = compare_sweeps(summary, summary)
    assert same.specification == same.only_a == same.only_b == []
    assert all(not cell.conditions and not cell.setting and cell.delta == 0 for cell in same.cells)
    assert "Specification: the same." in list(comparison_lines(same))


def test_rm_asks_and_then_removes_a_sweep_and_nothing_beside_it(storage: Path) -> None:
    (storage / "cache").mkdir()
    (storage / "cache" / "notes.txt").write_text("mine")
    assert asked(storage, "rm", "cache", "--yes").exit_code == 2
    words = ["rm", "first"]
    refused = asked(storage, *words)
    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    assert (storage / "first" / "sweep.json").exists()
    assert asked(storage, *words, "--yes").exit_code == 0
    assert not (storage / "first").exists()
    assert (storage / "second" / "sweep.json").exists()
    assert (storage / "cache" / "notes.txt").exists(), "that was never a sweep"
    assert "No sweep 'first'" in asked(storage, *words, "--yes").stderr
    (storage / "second" / "sweep.json").write_text("{", encoding="utf-8")
    result = asked(storage, "rm", "second", "--checkpoints", "--yes")
    assert (result.exit_code, "remove it with `rm`" in result.stderr) == (2, True), "weights may still be needed"
    assert asked(storage, "rm", "second", "--yes").exit_code == 0


def contents(folder: Path) -> dict[str, bytes]:
    """A sweep's files by their names, but for those of its drivers, of whom `rm` is one."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if not name.startswith("driver")}


@pytest.mark.parametrize("link", [".", "checkpoints", "trials/gone.json"])
def test_rm_follows_no_link_and_then_removes_nothing(storage: Path, link: str) -> None:
    (storage / "runs").mkdir()
    folder, elsewhere = (storage / "first").rename(storage / "runs" / "first"), storage / "elsewhere"
    if link == ".":
        folder.rename(elsewhere)
    elif link == "checkpoints":
        elsewhere.mkdir()
        (elsewhere / "weights.safetensors").write_bytes(b"0")
    (folder / link).symlink_to(elsewhere)
    before = contents(folder)
    result = asked(storage / "runs", "rm", "first", "--yes")
    assert (result.exit_code, "removed" in result.stderr.replace("nothing was removed", "")) == (1, False)
    assert f"{folder / link} is a link to" in result.stderr
    assert contents(folder) == before


@pytest.mark.parametrize("place", ["trials/x.json", "trials", "checkpoints/a/weights.safetensors", "sweep.json", "."])
def test_rm_removes_nothing_where_a_file_cannot_be_removed_and_all_once_it_can(
    storage: Path, place: str, unremovable: Callable[[Path], AbstractContextManager[None]]
) -> None:
    folder = storage / "first"
    (folder / "checkpoints" / "a").mkdir(parents=True)
    (folder / "checkpoints" / "a" / "weights.safetensors").write_bytes(b"0")
    record = next((folder / "trials").glob("*.json"))
    path = record if place == "trials/x.json" else folder / place
    before, words = contents(folder), ["rm", "first", "--yes"]
    with unremovable(path):
        result = asked(storage, *words)
        assert result.exit_code != 0
        assert str(path) in result.stderr
        assert contents(folder) == before
        assert len(Ledger(folder).records()) == 6
    assert asked(storage, *words).exit_code == 0
    assert not folder.exists()


def test_what_a_removal_that_went_wrong_in_its_midst_has_left_is_said_and_removed_by_the_same_command(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, unlink = ["rm", "first", "--yes"], os.unlink
    record = next((storage / "first" / "trials").glob("*.json")).name

    def refusing(path: str, **options: int) -> None:
        if Path(path).name == record:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        unlink(path, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refusing)
        result = asked(storage, *words)
    assert result.exit_code == 1
    assert re.search(rf"{record} cannot be removed \(Input/output error\); \d files are left in", result.stderr)
    assert asked(storage, *words).exit_code == 0
    assert not (storage / "first").exists()


def test_rm_takes_the_weights_alone_where_they_are_not_needed_and_refuses_a_sweep_that_is_driven(
    storage: Path, make_cell, make_sweep
) -> None:
    open_cell = make_cell("fine_tuning", search=(0.8,), planned=2)
    stored(storage, make_sweep(open_cell, name="open"))
    needed = asked(storage, "rm", "open", "--checkpoints", "--yes")
    assert needed.exit_code == 2
    assert "train again" in needed.stderr
    weights = storage / "first" / "checkpoints" / "a" / "model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"0" * 1000)
    done = asked(storage, "rm", "first", "--checkpoints", "--yes")
    assert (done.exit_code, "1 file, 0.0 MB" in done.stderr, weights.exists()) == (0, True, False), done.stderr
    assert len(Ledger(storage / "first").records()) == 6
    with Ledger(storage / "first").driving():
        driven = asked(storage, "rm", "first", "--yes")
    assert driven.exit_code == 2, driven.output
    assert (storage / "first" / "sweep.json").exists()
