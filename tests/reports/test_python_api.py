"""`import meltpoint as mp`: the command's names and types, frames, comparison, HTML; nothing is imported early."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy
import pandas
import pytest

import meltpoint
from meltpoint.reports import python_api
from meltpoint.reports.loaded_sweep import LoadedSweep
from meltpoint.reports.python_api import SweepFailedError, options_of
from meltpoint.sweeps.command_line.spec_from_options import asked_spec
from meltpoint.sweeps.command_line.typer_options import DEFAULTS, as_words
from meltpoint.sweeps.driver.plan import SweepPlan
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.machine.terminal import BAD_INPUT
from meltpoint.sweeps.specification.sweep_options import SweepOptions
from meltpoint.tests.reports.stored_sweeps import stored
from meltpoint.tests.reports.test_screen import planned


@pytest.fixture
def folder(tmp_path: Path, make_cell, make_sweep) -> Path:
    """A stored sweep of two cells."""
    cells = [
        make_cell("fine_tuning", search=(0.8, 0.75), finals=[(0.79, 0.78), (0.81, 0.8)]),
        make_cell("feature_extraction", search=(0.7,), finals=[(0.7, 0.69), (0.7, 0.71)]),
    ]
    return stored(tmp_path / "runs", make_sweep(*cells)).folder


def test_importing_meltpoint_imports_nothing_else() -> None:
    code = (
        "import sys, meltpoint; dir(meltpoint); heavy = {'typer', 'pydantic', 'torch', 'pandas', 'numpy'}; "
        "assert not heavy & set(sys.modules), heavy & set(sys.modules); "
        "meltpoint.load_sweep; assert not {'torch', 'pandas', 'mlflow', 'ray'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_name_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(AttributeError, match="load_sweep"):
        _ = meltpoint.load_sweeps  # type: ignore[attr-defined]
    assert set(meltpoint.__all__) <= set(dir(meltpoint))
    assert all(getattr(meltpoint, name) is not None for name in meltpoint.__all__)


def test_the_arguments_are_the_options_of_the_command() -> None:
    tuned = inspect.signature(meltpoint.tune).parameters
    assert {name for name, one in tuned.items() if "Any" in str(one.annotation)} == {"data", "test", "dev", "overrides"}
    shared = {name: one.default for name, one in tuned.items() if name in DEFAULTS}
    assert shared == {name: DEFAULTS[name] for name in shared}
    assert {"name", "encoder", "mode", "trials", "seeds", "overrides", "time_budget"} <= set(shared)
    for function in (meltpoint.sweep, meltpoint.plan):
        given = inspect.signature(function).parameters
        assert {name: one.default for name, one in given.items()} == DEFAULTS
        assert all(one.kind is one.KEYWORD_ONLY and "Any" not in str(one.annotation).replace("[str, Any]", "")
                   for one in given.values())  # fmt: skip


FRAME = pandas.DataFrame({"text": ["a b", "c\nd"], "label": ["x", "y"]})
FEATURES = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["x", "y"])})
DATASET = datasets.Dataset.from_dict({"text": ["a b", "c\nd"], "label": [0, 1]}, features=FEATURES)


@pytest.mark.parametrize(
    "data",
    [
        FRAME, {"train": FRAME}, DATASET, datasets.DatasetDict({"train": DATASET, "validation": DATASET}),
        (["a b", "c\nd"], ["x", "y"]), {"text": ["a b", "c\nd"], "label": ["x", "y"]},
    ],
    ids=["frame", "splits", "Dataset", "DatasetDict", "lists", "columns"],
)  # fmt: skip
def test_data_of_every_kind_are_the_same_lines_for_tune(data, folder, monkeypatch):
    monkeypatch.setattr(python_api, "_run", lambda words: (ran.extend(words) or 0, ""))
    ran: list[str] = []
    storage = folder.parent
    more = {"kind": "sentence_classification", "group": "author", "overrides": {"epochs": {"int": [2, 4]}}}
    (folder.parent / "new.csv").write_text('text,label\n"e,f",x\n', encoding="utf-8")
    meltpoint.tune(data, name="first", test=folder.parent / "new.csv", label="label", margin=2, storage=storage, **more)
    train = storage / "first" / "data" / "train.jsonl"
    dev = [f"--dev={storage / 'first' / 'data' / 'dev.jsonl'}"] if isinstance(data, datasets.DatasetDict) else []
    assert train.read_text() == '{"text":"a b","label":"x"}\n{"text":"c\\nd","label":"y"}\n'
    common = ["--label=label", "--kind=sentence_classification", "--group=author", "--name=first",
              "--set=epochs={int: [2, 4]}", "--margin=2.0", f"--storage={storage}"]  # fmt: skip
    test = storage / "first" / "data" / "test.jsonl"  # all files have one format
    assert test.read_text() == '{"text":"e,f","label":"x"}\n'
    assert ran[ran.index("tune") :] == ["tune", str(train), str(test), *dev, *common]
    with pytest.raises(ValueError, match="holds other data"):
        meltpoint.tune((["e"], ["x"]), name="first", storage=storage)


def test_the_hubs_other_splits_are_left_out_and_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(python_api, "_run", lambda words: (BAD_INPUT, "stop"))
    names = ("train", "validation_matched", "validation_mismatched", "unsupervised")
    with pytest.raises(ValueError, match="stop"):
        meltpoint.tune(datasets.DatasetDict(dict.fromkeys(names, DATASET)), name="hub", storage=tmp_path)
    assert {path.name for path in (tmp_path / "hub" / "data").iterdir()} == {"train.jsonl", "dev.jsonl"}
    said = capsys.readouterr().err
    assert "validation_mismatched is not read" in said
    assert "unsupervised is not read" in said


def test_data_that_were_refused_are_replaced_by_corrected_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(python_api, "_run", lambda words: (BAD_INPUT, "line 1: '' is not a number"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for score in (None, 2.0):
        with pytest.raises(ValueError, match="is not a number"):
            meltpoint.tune((["e"], [score]), name="scores", storage="~/runs")
    train = tmp_path / "runs" / "scores" / "data" / "train.jsonl"
    assert train.read_text() == '{"text":"e","label":2.0}\n'


def test_files_beside_data_keep_the_name_and_are_read_in_one_format(tmp_path, monkeypatch):
    ran: list[str] = []
    monkeypatch.setattr(python_api, "_run", lambda words: (ran.extend(words) or BAD_INPUT, "stop"))
    (tmp_path / "reviews.csv").write_text('text,label\n"a, b",x\n', encoding="utf-8")
    with pytest.raises(ValueError, match="stop"):
        meltpoint.tune(tmp_path / "reviews.csv", test=FRAME, storage=tmp_path / "runs")
    train = tmp_path / "runs" / "reviews" / "data" / "train.jsonl"
    assert train.read_text(encoding="utf-8") == '{"text":"a, b","label":"x"}\n'
    assert ran[ran.index("tune") + 1] == str(train)
    ledger = Ledger(tmp_path / "runs" / "reviews")
    ledger.specification.touch()
    assert not ledger.has_begun(with_test=True), "its test file may have been refused"
    ledger.create()
    (ledger.trials / "a.json").touch()
    assert ledger.has_begun(with_test=True), "a test that was carved has no check"


def test_data_of_another_form_are_refused_with_those_that_are_taken() -> None:
    for data, words in ((["a"], "train is a list; pass a pandas frame"), ({"test": FRAME}, "no split train")):
        with pytest.raises(ValueError, match=words):
            meltpoint.tune(data)
    with pytest.raises(ValueError, match="test is given twice"):
        meltpoint.tune({"train": FRAME, "test": FRAME}, test=FRAME)


def test_words_lists_paths_and_numbers_become_the_words_of_the_command(tmp_path: Path) -> None:
    options = options_of({
        "name": "n", "encoder": "minilm", "mode": ("fine_tuning", "feature_extraction"), "task": ["sst2"],
        "gpus_per_trial": 0.5, "searcher": "random", "data_dir": str(tmp_path), "trials": 3, "head": None,
    })  # fmt: skip
    assert options.searcher == "random"
    assert as_words(options) == [
        "--name=n", "--encoder=minilm", "--mode=fine_tuning", "--mode=feature_extraction", "--task=sst2", "--trials=3",
        "--searcher=random", f"--data-dir={tmp_path.as_posix()}", "--gpus-per-trial=0.5",
    ]  # fmt: skip
    options = options_of({"task": Path("a.yaml"), "trials": numpy.int64(3), "grow": True})
    assert as_words(options) == ["--task=a.yaml", "--trials=3", "--grow"]
    values = {"epochs": 3, "learning_rate": 1e-5, "dropout": {"uniform": [0.0, 0.3]}, "gradual_unfreezing": True}
    words = ["epochs=3", "learning_rate=1.0e-05", "dropout={uniform: [0.0, 0.3]}", "gradual_unfreezing=true"]
    assert options_of({"overrides": values}).overrides == words == options_of({"overrides": words}).overrides


@pytest.mark.parametrize(("name", "value", "near"), [("encoders", "minilm", "encoder"), ("searcher", "grids", "grid")])
def test_an_unknown_argument_or_word_is_refused_with_its_near_miss(name: str, value: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"Did you mean {near}"):
        options_of({name: value})


@pytest.mark.parametrize(
    "value",
    [
        pandas.DataFrame({"text": ["a"], "label": ["b"]}), pandas.Series(["sst2"]), numpy.array(["sst2"]), b"a",
        {"text": ["a"]}, {"sst2"}, iter(["sst2"]), [{"text": "a"}], [pandas.DataFrame({"text": ["a"]})], [["sst2"]],
    ],
    ids=lambda value: type(value[0] if isinstance(value, list) else value).__name__,
)  # fmt: skip
def test_tables_and_mappings_are_no_words_and_the_line_says_what_is(value: object) -> None:
    for name in DEFAULTS:
        if name == "overrides" and isinstance(value, dict):
            continue
        wanted = rf"^{name} is a \w+; write (a word or a list of words|one word or number|a dict)"
        with pytest.raises(ValueError, match=wanted) as refused:
            options_of({name: value})
        assert "\n" not in str(refused.value)
        assert ("new-task" in str(refused.value)) == (name == "task")


def test_bad_input_raises_what_the_command_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="Did you mean demo_sentiment"):
        meltpoint.sweep(name="n", mode="fine_tuning", task="demo_sentimnt", storage=tmp_path / "runs")
    assert "demo_sentimnt" in capsys.readouterr().err
    assert not (tmp_path / "runs" / "n").exists()
    with pytest.raises(ValueError, match="No sweep 'none'"):
        meltpoint.load_sweep(tmp_path / "none")


def test_a_sweep_that_fails_raises_with_what_finished(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import sys; print('meltpoint: one cell has no result', file=sys.stderr); sys.exit(1)"
    monkeypatch.setattr(python_api, "PYTHON", ("python", "-c", script))
    with pytest.raises(SweepFailedError, match="one cell has no result") as caught:
        meltpoint.sweep(name="first", storage=folder.parent)
    assert (caught.value.exit_status, caught.value.sweep.name) == (1, "first")


def test_an_interrupt_stops_the_sweep_and_waits_for_its_end_also_where_a_pipe_does_not_hold_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = tmp_path / "stopped"
    script = (
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job ignores it
        "try:\n    print('ready', flush=True); time.sleep(600)\n"
        f"except KeyboardInterrupt:\n    print('a table\\n' * 100_000, end=''); pathlib.Path({str(done)!r}).touch()"
    )
    shown: list[str] = []

    def show(line: str, err: bool) -> None:
        shown.append(line)
        if line == "ready\n":
            raise KeyboardInterrupt

    monkeypatch.setattr(python_api, "show", show)
    with pytest.raises(KeyboardInterrupt):
        python_api._run([sys.executable, "-c", script])
    assert done.exists()
    assert shown.count("a table\n") == 100_000


def test_progress_is_plain_lines_in_a_kernel_that_claims_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as ipykernel does
    script = "from rich.console import Console; print(Console().is_terminal)"
    assert python_api._run([sys.executable, "-c", script]) == (0, "")
    assert capfd.readouterr().err == "False\n"


def test_frames_and_texts_are_those_of_the_commands_and_scores_are_fractions(folder: Path) -> None:
    loaded = meltpoint.load_sweep(str(folder) + "/")
    assert (type(loaded), loaded.state) == (LoadedSweep, "done")
    assert list(loaded.cells.index) == ["minilm.fine_tuning.sst2", "minilm.feature_extraction.sst2"]
    assert loaded.cells.loc["minilm.fine_tuning.sst2", "test_mean"] == pytest.approx(0.79)
    trials = loaded.trials
    assert set(trials["role"]) == {"search", "final"}
    assert {"learning_rate", "dropout", "epochs"} <= set(trials.columns)
    assert trials.loc["fine_tuning.sst2.100", "test"] == pytest.approx(0.78)
    assert loaded.table().loc[("minilm", "🔥 fine_tuning"), "sst2 (accuracy)"] == "★ 79.0 ± 1.4"
    assert loaded.best("minilm.fine_tuning.sst2")["setting"]["epochs"] == 3
    compared = loaded.compare(loaded.refreshed()).cells
    assert all(cell.delta == 0 and not cell.conditions for cell in compared)
    assert loaded.report("csv").startswith("sweep,encoder")
    assert "<table" in loaded._repr_html_()
    with pytest.raises(ValueError, match="Did you mean html"):
        loaded.report("htm")


def test_the_leaderboard_ranks_cells_and_their_trials_in_numbers(folder: Path) -> None:
    loaded = meltpoint.load_sweep(folder)
    board = loaded.leaderboard()
    assert list(board["mode"].unique()) == ["fine_tuning", "feature_extraction"]
    assert board["rank"].is_monotonic_increasing
    assert (board.iloc[0]["recommended"], board["recommended"].sum()) == (True, 1)
    assert board.iloc[0]["test_mean"] == pytest.approx(0.79)
    assert all(pandas.api.types.is_numeric_dtype(board[name]) for name in ("dev", "test_mean", "test_std", "seconds"))
    assert loaded.recommendation.winner.mode == "fine_tuning"
    assert loaded.recommendation is loaded.recommendations["sst2"]


def test_a_sweep_of_several_tasks_asks_which_recommendation(make_cell, make_sweep) -> None:
    loaded = LoadedSweep("runs/first", make_sweep(make_cell(task="sst2"), make_cell(task="mrpc")))
    with pytest.raises(ValueError, match=r"2 tasks; take \.recommendations\[TASK\] for one of mrpc, sst2"):
        _ = loaded.recommendation
    with pytest.raises(ValueError, match="no finals have ended"):
        _ = LoadedSweep("runs/first", make_sweep(make_cell())).recommendation


def test_what_is_shown_at_the_end_of_a_cell_is_under_twenty_lines(folder: Path, make_cell, make_sweep) -> None:
    loaded, cell = meltpoint.load_sweep(folder), planned("fine_tuning", "sst2")
    many = LoadedSweep("r", make_sweep(*(make_cell(task=f"t{n}", finals=[(0.8, 0.8)]) for n in range(30))))
    paper = asked_spec(SweepOptions(name="first", spec="to_tune_or_not"))
    for shown in (
        loaded,
        loaded.recommendation.winner,
        SweepPlan([cell] * 30, 2, 12.4, 12.4),
        many,
        many.summary,
        paper,
    ):
        assert len(repr(shown).splitlines()) < 20
        assert len(repr(shown)) < 2500
    assert loaded.recommendation.sentence in repr(loaded)


@pytest.mark.slow
def test_a_sweep_from_python_gives_a_table_and_the_same_call_again_its_ledgers_answer(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {
        "name": "small", "encoder": "minilm", "mode": "feature_extraction", "task": "demo_sentiment",
        "head": "linear", "trials": 1, "seeds": 2, "max_train_examples": 40, "storage": tmp_path,
    }  # fmt: skip
    assert meltpoint.plan(**arguments).trials >= 3
    first = meltpoint.sweep(**arguments)
    assert first.state == "done"
    again = meltpoint.sweep(**arguments)
    assert list(again.trials.index) == list(first.trials.index)
    assert meltpoint.plan(**arguments).answered == meltpoint.plan(**arguments).trials


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_frame_is_tuned_to_a_model_that_predicts_and_the_same_call_resumes(tmp_path: Path) -> None:
    words = {"good": ("fine", "great", "lovely"), "bad": ("poor", "dull", "awful")}
    rows = [(f"the {noun} was {word} .", label) for label, said in words.items() for word in said
            for noun in ("film", "plot", "cast", "end", "score", "joke", "song", "cut", "light", "scene")]  # fmt: skip
    frame = pandas.DataFrame(rows, columns=["text", "label"])
    asked = {"name": "frame", "mode": "feature_extraction", "trials": 1, "seeds": 1, "storage": tmp_path}
    found = meltpoint.tune(frame, **asked)
    model = found.best_model()
    assert set(model.classes_) == {"bad", "good"}
    assert set(model.predict(["the film was great ."])) <= {"bad", "good"}
    assert model.predict_proba(["the film was great ."]).shape == (1, 2)
    assert 0 <= model.score(frame.text.tolist(), frame.label.tolist()) <= 1
    assert str(found.recommendation).startswith("Freeze it: ❄ ")
    assert len(meltpoint.tune(frame, **asked).trials) == len(found.trials)
