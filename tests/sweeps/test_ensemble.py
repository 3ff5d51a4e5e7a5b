"""ensemble: probabilities averaged as by hand, only of what may be averaged, and never by looking at test."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meltpoint.adapters.training.evaluation import Evaluation
from meltpoint.reports.report import comma_separated
from meltpoint.reports.results import results_of
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.predictions import ScoredExamples, read_scored
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.ensembles_and_baselines import averaged, ensemble
from meltpoint.sweeps.results.kept_results import read_ensembles
from meltpoint.sweeps.results.summary import summarise
from meltpoint.sweeps.results.sweep_file import CellHeader, SweepFile, read_sweep, write_sweep
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.worker.finalist_scoring import save_predictions
from meltpoint.tasks import get
from meltpoint.tasks.core.scoring import score
from meltpoint.tasks.core.task import Example

Shares = Sequence[Sequence[float]]

# Two labels; three test examples, of labels 0, 1, 1. The averages of seed 0 are (0.55, 0.45), (0.35, 0.65),
# (0.45, 0.55): all right. Those of seed 1 are (0.7, 0.3), (0.6, 0.4), (0.65, 0.35): label 0 thrice, right once.
GOLD = {"dev": (1, 0), "test": (0, 1, 1)}
DEV = [[0.4, 0.6], [0.7, 0.3]]
FIRST = {0: [[0.9, 0.1], [0.1, 0.9], [0.6, 0.4]], 1: [[0.8, 0.2], [0.3, 0.7], [0.9, 0.1]]}
SECOND = {0: [[0.2, 0.8], [0.6, 0.4], [0.3, 0.7]], 1: [[0.6, 0.4], [0.9, 0.1], [0.4, 0.6]]}
MODES = ("feature_extraction", "fine_tuning", "stack_and_finetune")


def header(mode: str, encoder: str, task: str, changes: Mapping[str, Any]) -> CellHeader:
    facts = {
        "encoder": encoder, "mode": mode, "task": task, "head": "linear", "kind": get(task).kind,
        "metric": get(task).metric, "planned": 1, "space": "parameters: {}", "data_fingerprint": "d" * 16,
        "train_examples": 4, "dev_examples": 2,
    }  # fmt: skip
    return CellHeader.model_validate(facts | changes)


class Runs:
    """A storage folder with sweeps that were never run: ledgers, records and predictions, as a sweep writes them."""

    def __init__(self, storage: Path) -> None:
        self.storage = storage

    def sweep(
        self, members: Mapping[str, Mapping[int, Shares]], *, name: str = "one", encoder: str = "minilm",
        task: str = "mrpc", gold: Mapping[str, Sequence[int]] = GOLD, dev: Shares = DEV, ids: str = "",
        unscored: Sequence[str] = (), **changes: Any,
    ) -> None:  # fmt: skip
        """One cell a mode, whose finals' test probabilities are given by seed."""
        ledger = Ledger(self.storage / name)
        ledger.create()
        cells = tuple(header(mode, encoder, task, changes) for mode in members)
        spec = SweepSpec(name=name, encoders=(encoder,), modes=tuple(members), tasks=(task,), trials=1, seeds=2)
        write_sweep(ledger, SweepFile(spec=spec, code="0", cells=cells))
        for cell, shares in zip(cells, members.values(), strict=True):
            ledger.write(self._record(name, cell, "search", 0, dev=1.0))
            for seed, own in shares.items():
                scored = {"dev": self._scores(task, dev, gold["dev"]), "test": self._scores(task, own, gold["test"])}
                test = None if cell.mode in unscored else scored["test"]
                ledger.write(self._record(name, cell, "final", seed, dev=scored["dev"][cell.metric], test=test))
                for split, rows in (("dev", dev), ("test", own)):
                    stem = f"{encoder}.{cell.mode}.{task}.seed{seed}.{split}"
                    self._predictions(ledger, stem, task, rows, gold[split], ids)

    @staticmethod
    def _scores(task: str, shares: Shares, gold: Sequence[int]) -> dict[str, float]:
        return score(get(task), gold, [int(np.argmax(row)) for row in shares])

    @staticmethod
    def _record(name: str, cell: CellHeader, role: str, seed: int, **said: Any) -> TrialRecord:
        facts = {
            "id": f"{name}.{cell.encoder}.{cell.mode}.{cell.task}.{role}{seed}", "number": 0, "encoder": cell.encoder,
            "mode": cell.mode, "task": cell.task, "head": cell.head, "role": role, "seed": seed, "setting": {},
            "status": "finished", "metric": cell.metric, "data_fingerprint": cell.data_fingerprint,
            "code_version": "0", "started_at": float(seed), "seconds": 1.0,
        }  # fmt: skip
        return TrialRecord.model_validate(facts | said)

    @staticmethod
    def _predictions(ledger: Ledger, stem: str, task: str, rows: Shares, gold: Sequence[int], ids: str) -> None:
        examples = [Example(f"{ids}{place}", ("a", "b"), label=label) for place, label in enumerate(gold)]
        result = Evaluation([int(np.argmax(row)) for row in rows], [list(row) for row in rows], {})
        trainer: Any = SimpleNamespace(data=SimpleNamespace(task=get(task)))
        save_predictions(ledger.folder / "predictions" / f"{stem}.jsonl", trainer, result, examples)

    def file(self, mode: str, seed: int, split: str, sweep: str = "one") -> Path:
        return self.storage / sweep / "predictions" / f"minilm.{mode}.mrpc.seed{seed}.{split}.jsonl"

    def ensemble(self, *cells: str, name: str = "one", task: str = "mrpc") -> Any:
        return ensemble(self.storage, name, task, cells)


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


@pytest.fixture
def two(runs: Runs) -> Runs:
    runs.sweep({MODES[0]: FIRST, MODES[1]: SECOND})
    return runs


def test_probabilities_are_averaged_seed_by_seed_as_by_hand(two):
    made = two.ensemble()
    assert [scores["accuracy"] for scores in made.test] == [1.0, pytest.approx(1 / 3)]
    assert [scores["f1"] for scores in made.test] == [1.0, 0.0]
    assert [scores["accuracy"] for scores in made.dev] == [1.0, 1.0]


def test_an_ensemble_of_finalists_of_two_versions_of_the_code_says_so(two):
    assert two.ensemble().code_versions == ("0",)
    ledger = Ledger(two.storage / "one")
    settled = read_sweep(ledger)
    write_sweep(ledger, settled.model_copy(update={"continued_with": ("1",)}))
    final = next(record for record in ledger.records() if record.role == "final" and record.seed == 1)
    ledger.write(final.model_copy(update={"code_version": "1"}))
    made = two.ensemble()
    assert made.code_versions == ("0", "1")
    assert "its members' finalists mix versions of Meltpoint's code: 0, 1" in made.notes
    lines = csv.DictReader(io.StringIO(comma_separated(results_of(summarise(ledger)))))
    assert [line["code_version"] for line in lines if line["mode"] == "ensemble"] == ["0; 1"]


shares = st.lists(st.floats(0, 1), min_size=3, max_size=3).map(lambda row: [round(share, 6) for share in row])


@given(st.lists(st.lists(shares, min_size=4, max_size=4), min_size=1, max_size=4), st.randoms())
def test_the_average_is_that_of_a_slow_loop_and_knows_no_order_of_members(members, order):
    zeros, kind = np.zeros(4, dtype=np.int32), "pair_classification"
    read = [ScoredExamples(kind, ("a", "b", "c"), zeros, zeros, zeros, "", np.array(rows)) for rows in members]
    means = [[sum(rows[place][label] for rows in members) / len(members) for label in range(3)] for place in range(4)]
    found = averaged(read).argmax(axis=1)
    for place, label in enumerate(found):
        assert means[place][label] == pytest.approx(max(means[place]), abs=1e-9)
    order.shuffle(read)
    for place, (label, other) in enumerate(zip(found, averaged(read).argmax(axis=1), strict=True)):
        assert label == other or means[place][label] == pytest.approx(means[place][other], abs=1e-9)


def test_what_a_sweep_stores_is_read_back_with_gold_and_six_digits(tmp_path, runs):
    ledger = Ledger(tmp_path / "x")
    runs._predictions(ledger, "c", "mrpc", [[1 / 3, 2 / 3], [0.9, 0.1]], (0, 1), "a\u2028")
    read = read_scored(ledger.folder / "predictions" / "c.jsonl", "pair_classification")
    assert read.count == 2
    assert read.labels == get("mrpc").labels
    assert (read.gold.tolist(), read.predicted.tolist()) == ([0, 1], [1, 0])
    assert read.probabilities.tolist() == [[0.333333, 0.666667], [0.9, 0.1]]


def test_named_cells_alone_are_members_in_the_order_in_which_they_were_named(runs):
    runs.sweep(dict.fromkeys(MODES, FIRST))
    made = runs.ensemble(f"minilm.{MODES[2]}.mrpc", f"minilm.{MODES[0]}.mrpc")
    assert [member.mode for member in made.members] == [MODES[2], MODES[0]]
    assert made.members[0].seeds == (0, 1)
    assert made.members[0].trials == tuple(f"one.minilm.{MODES[2]}.mrpc.final{seed}" for seed in (0, 1))


def test_the_same_members_in_another_order_replace_the_file_and_others_get_their_own(runs):
    runs.sweep(dict.fromkeys(MODES, FIRST))
    names = [f"minilm.{mode}.mrpc" for mode in MODES]
    assert runs.ensemble(*names[:2]).id == runs.ensemble(*names[1::-1]).id != runs.ensemble(*names[1:]).id
    stored = read_ensembles(Ledger(runs.storage / "one"))
    assert [one.members[0].mode for one in stored] == [MODES[1], MODES[1]]
    assert {f"{one.id}.json" for one in stored} == {path.name for path in (runs.storage / "one/ensembles").iterdir()}


def test_seeds_that_not_every_member_has_are_left_out_and_it_is_said(runs):
    runs.sweep({MODES[0]: FIRST, MODES[1]: {1: SECOND[1]}})
    made = runs.ensemble()
    assert [member.seeds for member in made.members] == [(1,), (1,)]
    assert [scores["accuracy"] for scores in made.test] == [pytest.approx(1 / 3)]
    assert made.spread("test").std is None
    assert made.notes == (f"seeds that not every member has are left out: minilm.{MODES[0]}.mrpc",)


def test_the_one_run_of_a_mode_without_chance_stands_beside_every_seed(runs):
    runs.sweep({"probe": {0: FIRST[0]}, MODES[1]: SECOND})
    made = runs.ensemble()
    assert [member.seeds for member in made.members] == [(0, 1), (0, 1)]
    assert len(made.test) == 2
    assert made.notes == ()


def test_unfinished_cells_are_left_out_of_all_cells_and_refused_by_name(runs):
    runs.sweep(dict.fromkeys(MODES, FIRST), unscored=(MODES[2],))
    made = runs.ensemble()
    assert [member.mode for member in made.members] == list(MODES[:2])
    assert made.notes == (f"left out, not finished: minilm.{MODES[2]}.mrpc",)
    with pytest.raises(ValueError, match=f"Cell 'minilm.{MODES[2]}.mrpc' is not a finished cell of mrpc"):
        runs.ensemble(f"minilm.{MODES[2]}.mrpc", f"minilm.{MODES[0]}.mrpc")


@pytest.mark.parametrize(
    ("cells", "task", "message"),
    [
        ((), "sst2", "^Sweep 'one' has no cell of task 'sst2'. Tasks: mrpc.$"),
        ((), "mrcp", "^Unknown task 'mrcp'. Did you mean mrpc"),
        (("minilm.fine_tuning.mrpc",), "mrpc", "needs two finished cells of mrpc"),
        (("minilm.fine_tuning.mrpc", "minilm.fine_tuning.mrpc"), "mrpc", "needs two finished cells of mrpc"),
        (("minilm.fine_tunin.mrpc",), "mrpc", "^No cell 'minilm.fine_tunin.mrpc' in sweep 'one'. Cells: minilm.feat"),
    ],
)
def test_wrong_words_are_refused_in_one_line(cells, task, message, two):
    with pytest.raises(ValueError, match=message) as caught:
        two.ensemble(*cells, task=task)
    assert "\n" not in str(caught.value)


def test_only_classification_is_averaged(runs):
    runs.sweep({MODES[0]: FIRST, MODES[1]: SECOND}, kind="pair_regression")
    with pytest.raises(ValueError, match=r"Ensembles support only classification; mrpc is pair regression\."):
        runs.ensemble()


def test_predictions_that_do_not_give_the_recorded_score_are_refused(two):
    path = two.file(MODES[0], 0, "test")
    path.write_text(
        path.read_text(encoding="utf-8").replace('"prediction": "equivalent"', '"prediction": "not_equivalent"')
    )
    with pytest.raises(
        ValueError, match=r"seed0\.test\.jsonl gives test 0\.333.*, but the record of trial one\.minilm.*0\.666"
    ):
        two.ensemble()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not an example with gold, prediction and probabilities"),
        ("[]", "line 2: not an example"),
        ('{"id": "1", "gold": "equivalent", "prediction": "equivalent"}', "line 2: not an example"),
        (
            '{"id": "1", "gold": "maybe", "prediction": "a", "probabilities": {"equivalent": 1}}',
            "the label 'maybe' is not one of not_eq",
        ),
    ],
)
def test_a_broken_line_of_stored_predictions_is_named(line, message, two):
    path = two.file(MODES[0], 0, "test")
    first, _, third = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([first, line, third]) + "\n")
    with pytest.raises(ValueError, match=message) as caught:
        two.ensemble()
    assert str(path) in str(caught.value)


def test_a_missing_test_file_is_named_and_a_missing_dev_file_leaves_dev_out(two):
    two.file(MODES[1], 1, "dev").unlink()
    made = two.ensemble()
    assert made.dev == ()
    assert made.notes == (f"no dev score: nothing stored to score for minilm.{MODES[1]}.mrpc",)
    two.file(MODES[0], 1, "test").unlink()
    with pytest.raises(ValueError, match=r"seed1\.test\.jsonl is missing; restore it, or leave that cell out"):
        two.ensemble()


def test_hidden_test_labels_leave_a_dev_score_that_says_so(two):
    for path in (two.storage / "one/trials").glob("*final*"):
        document = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(document | {"test": {}}))
    made = two.ensemble()
    assert made.test == ()
    assert len(made.dev) == 2
    assert made.notes[0].startswith("no test score: nothing stored to score for minilm.feature_extraction.mrpc")
    for path in (two.storage / "one/predictions").glob("*.dev.jsonl"):
        path.unlink()
    with pytest.raises(ValueError, match="An ensemble cannot be scored: no dev score"):
        two.ensemble()


def test_no_test_split_is_opened_and_no_record_changes(two, monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("the test split was opened")

    monkeypatch.setattr("meltpoint.tasks.core.sources.read_locked_split", refuse)
    monkeypatch.setattr("meltpoint.tasks.core.locked.open_test", refuse)
    before = {path: path.read_bytes() for path in two.storage.rglob("*.json*")}
    two.ensemble()
    after = {path: path.read_bytes() for path in two.storage.rglob("*.json*") if path.parent.name != "ensembles"}
    assert after == before
    assert not (two.storage / "one/test_openings.jsonl").exists()


def test_a_damaged_file_is_named_with_its_remedy(two):
    made = two.ensemble()
    (two.storage / f"one/ensembles/{made.id}.json").write_text('{"id": 3}')
    with pytest.raises(ValueError, match=rf"{made.id}\.json is not an ensemble \(.*delete it"):
        summarise(Ledger(two.storage / "one"))
