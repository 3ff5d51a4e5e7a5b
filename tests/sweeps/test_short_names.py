"""`NAME=ENCODER`: the name stands in cells, records, tables and exports; the folder behind it may move."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from meltpoint.adapters import encoders
from meltpoint.adapters.families import encoder_word, short_name
from meltpoint.adapters.families.huggingface import files
from meltpoint.reports.notes import notes
from meltpoint.sweeps.command_line.spec_from_options import encoder_name
from meltpoint.sweeps.command_line.submission import is_elsewhere
from meltpoint.sweeps.driver.start import settle_specification
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.export import export_cells, order_of
from meltpoint.sweeps.results.summary import summarise
from meltpoint.sweeps.results.sweep_file import read_sweep
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import open_cells
from meltpoint.sweeps.specification.provenance import code_version
from meltpoint.sweeps.specification.sweep_spec import SweepSpec, check
from meltpoint.sweeps.worker.retrain import prepared

KIND = "sentence_classification"


@pytest.mark.parametrize(
    ("text", "name", "word"),
    [
        ("l3=hf:/models/a", "l3", "hf:/models/a"), ("minilm", "minilm", "minilm"),
        ("hf:/a=b/c", "hf:/a=b/c", "hf:/a=b/c"),
        ("l3=hf:/a=b", "l3", "hf:/a=b"), ("./x=y", "./x=y", "./x=y"), ("big=minilm", "big", "minilm"),
    ],
)  # fmt: skip
def test_a_name_is_what_stands_before_the_first_equals_sign_unless_a_path_does(text: str, name: str, word: str) -> None:
    assert (short_name(text), encoder_word(text)) == (name, word)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("=minilm", "takes letters, digits"), ("a b=minilm", "takes letters, digits"),
        ("a.b=minilm", "letters, digits"),
        (f"{'x' * 41}=minilm", "at most 40"), ("minilm=bert-base", "is the name of an encoder"),
        ("l3=nothing", "Unknown encoder 'nothing'"), ("l3=", "Unknown encoder ''"),
    ],
)  # fmt: skip
def test_a_bad_name_and_an_unknown_encoder_behind_a_good_one_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        encoders.resolve(text, KIND)
    assert "\n" not in str(refused.value)


def test_two_encoders_of_one_name_are_refused() -> None:
    spec = SweepSpec(name="x", encoders=("a=minilm", "a=bert-base"), modes=("fine_tuning",), tasks=("sst2",))
    with pytest.raises(ValueError, match="gives two encoders the same name"):
        check(spec)


def test_a_relative_folder_behind_a_name_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bert").mkdir()
    monkeypatch.chdir(tmp_path)
    assert encoder_name("l3=hf:bert") == f"l3=hf:{tmp_path}/bert"
    assert is_elsewhere("l3=hf:/models/bert")


def test_cells_and_orders_have_the_name_and_workers_the_folder(spec: SweepSpec, tiny_encoder: str) -> None:
    named = spec.model_copy(update={"encoders": (f"l3={tiny_encoder}", "minilm")})
    cells = open_cells(named)
    assert [cell.name.split(".")[0] for cell in cells] == ["l3", "l3", "minilm", "minilm"]
    assert {cell.located_encoder for cell in cells} == {tiny_encoder, "minilm"}
    assert named.encoder_words() == {"l3": tiny_encoder}


def test_a_named_encoder_moves_and_its_sweep_goes_on_and_its_export_trains(
    spec: SweepSpec, tiny_encoder: str, tmp_path: Path, make_record: Callable[..., TrialRecord]
) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(tiny_encoder.removeprefix("hf:"), moved)
    here, there = (
        spec.model_copy(update={"encoders": (f"l3={word}",), "modes": ("feature_extraction",)})
        for word in (tiny_encoder, f"hf:{moved}")
    )
    ledger, before, now = Ledger(tmp_path / "tiny"), open_cells(here), open_cells(there)
    settle_specification(ledger, here, before)
    trial = Planner(here, before, []).next()
    ledger.write(make_record(trial, dev=(0.123,), code_version=code_version()))
    settle_specification(ledger, there, now)
    summary = summarise(ledger)
    (cell,) = summary.cells
    assert cell.best is not None
    assert cell.best.encoder == "l3"
    assert cell.best.id == Planner(there, now, []).trial_id(now[0], cell.best.setting, 0, "search")
    assert order_of(summary.spec, cell.best, ledger).located_encoder == f"hf:{moved}"
    assert f"Encoder l3: hf:{moved}." in notes(summary)
    (path,) = export_cells(summary, tmp_path / "exports")
    assert yaml.safe_load(path.read_text())["encoder"] == f"l3=hf:{moved}"
    order, _ = prepared(str(path), None, None, str(tmp_path / "out"))
    assert (order.encoder, order.located_encoder) == ("l3", f"hf:{moved}")


def test_other_weights_behind_a_name_are_another_encoder(
    spec: SweepSpec, tiny_encoder: str, tmp_path: Path, minilm: Path
) -> None:
    ledger = Ledger(tmp_path / "tiny")
    first = spec.model_copy(update={"encoders": (f"l3={tiny_encoder}",)})
    settle_specification(ledger, first, open_cells(first))
    other = spec.model_copy(update={"encoders": ("l3=minilm",)})
    with pytest.raises(ValueError, match="the files of encoder l3"):
        settle_specification(ledger, other, open_cells(other))


def test_the_ledger_has_the_commit_of_a_revision_and_a_moved_revision_is_refused_with_both(
    spec: SweepSpec, tiny_encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (shutil.copytree(tiny_encoder.removeprefix("hf:"), tmp_path / (digit * 40)) for digit in "01")
    config = (new / "config.json").read_text()
    (new / "config.json").write_text(config.replace('"gelu"', '"relu"'))
    ledger, hub = Ledger(tmp_path / "tiny"), spec.model_copy(update={"encoders": ("hf:some/model@v1",)})
    monkeypatch.setattr(files, "snapshot", lambda reference: old)
    settle_specification(ledger, hub, open_cells(hub))
    assert {cell.encoder_revision for cell in read_sweep(ledger).cells} == {f"some/model@{old.name}"}
    settle_specification(ledger, hub, open_cells(hub))
    monkeypatch.setattr(files, "snapshot", lambda reference: new)
    moved = f"the files of encoder hf:some/model@v1 (some/model@{old.name} → some/model@{new.name} on the hub; "
    with pytest.raises(ValueError, match=re.escape(moved + f"hf:some/model@{old.name} pins it)")):
        settle_specification(ledger, hub, open_cells(hub))
