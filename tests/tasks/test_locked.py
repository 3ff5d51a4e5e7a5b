"""The locked test split stays closed except for finalists; submissions have GLUE's format."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from meltpoint import tasks
from meltpoint.tasks.core import locked, sources
from meltpoint.tasks.core.locked import write_glue_submission
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("tasks", "adapters", "search_spaces", "sweeps", "reports", "launch.py")
LOCKED = Path("tasks/core/locked.py")
SOURCES = Path("tasks/core/sources.py")

REAL = ["cola", "conll2003", "mnli", "mrpc", "sst2", "sst2_phrases", "sst2_subtrees", "stsb"]


def modules():
    for room in ROOMS:
        place = ROOT / room
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            yield path.relative_to(ROOT), ast.parse(path.read_text(encoding="utf-8"))


def mentions(tree, name):
    """True if a module uses a name: as a variable, an attribute, an import or a string."""
    for node in ast.walk(tree):
        names = (getattr(node, key, None) for key in ("id", "attr", "name", "value"))
        if any(word == name for word in names if isinstance(word, str)):
            return True
    return False


def test_only_the_locked_room_asks_for_the_test_split():
    users = {path for path, tree in modules() if mentions(tree, "read_locked_split")}
    defined = {
        path for path, tree in modules() if any(getattr(n, "name", "") == "read_locked_split" for n in tree.body)
    }
    assert users - defined == {LOCKED}
    assert defined == {SOURCES}


def test_the_locked_room_stays_locked_where_the_specification_closes_it():
    spec = DataSpec("demo_sentiment", is_test_closed=True)
    assert sources.check(spec) == "closed"
    with pytest.raises(ValueError, match="test of demo_sentiment stays closed"):
        locked.open_test(spec)
    assert load_training_data(spec).dev == load_training_data(DataSpec("demo_sentiment")).dev


def test_only_sources_takes_a_reader_or_the_hub_out_of_a_task():
    for path, tree in modules():
        nodes = list(ast.walk(tree))
        calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        listed = {id(word) for call in calls if call.func.id in {"set", "sorted", "len"} for word in call.args}
        taken = any(getattr(node, "attr", "") == "readers" and id(node) not in listed for node in nodes)
        assert taken == (path == SOURCES), f"{path} reads a split past tasks/core/sources.py"
        if path != SOURCES:
            assert not mentions(tree, "load_hub_split"), f"{path} reads the hub past tasks/core/sources.py"
            assert not mentions(tree, "pinned_folder"), f"{path} downloads a split past tasks/core/sources.py"


def imported(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_task_and_no_adapter_imports_the_locked_room():
    for path, _ in modules():
        if path.parts[0] in {"tasks", "adapters", "search_spaces"} and path != LOCKED:
            assert not any(name.endswith("core.locked") for name in imported(path)), path


def test_only_new_task_and_tune_import_what_looks_at_test_files():
    users = {path for path, _ in modules() if any("tasks.inspection" in name for name in imported(path))}
    commands = {Path("reports/commands/look_around.py"), Path("reports/commands/search.py")}
    names_of_splits = Path("reports/python_api.py")  # the words for splits alone
    predicted = Path("sweeps/results/text_files.py")  # the encoding and separator of a file to predict
    assert {path for path in users if path.parts[1] != "inspection"} == {*commands, names_of_splits, predicted}


def opened_by(folder, names):
    """The files that a process of its own opens to load the training data of some tasks."""
    command = [sys.executable, "-c", WATCH, str(folder), json.dumps(names)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
    return {Path(path) for path in json.loads(done.stdout)}


def test_training_data_of_a_users_task_open_no_test_file(tmp_path):
    names = ("train", "dev", "test")
    for name in names:
        (tmp_path / f"{name}.csv").write_text("text,label\nfine,a\npoor,b\n", encoding="utf-8")
    files = ", ".join(f"{name}: {name}.csv" for name in names)
    task = tmp_path / "own.yaml"
    task.write_text(
        f"name: own\nkind: sentence_classification\nfiles: {{{files}}}\nformat: csv\n"
        "columns: {text: text, label: label}\nlabels: [a, b]\n",
        encoding="utf-8",
    )
    opened = opened_by(tmp_path, [str(task)])
    assert {name for name in names if tmp_path / f"{name}.csv" in opened} == {"train", "dev"}


WATCH = """
import json, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec
for name in json.loads(sys.argv[2]):
    load_training_data(DataSpec(name, sys.argv[1]))
print(json.dumps(opened))
"""


def test_loading_training_data_opens_no_test_file(shared_data):
    opened = opened_by(shared_data, REAL)
    for name in REAL:
        task = tasks.get(name)
        folder = shared_data / task.folder
        # The audit hook works: it has seen the training files.
        assert any(folder / one in opened for names in task.files["train"] for one in names.split("|"))
        for names in task.files["test"]:
            assert not any(folder / one in opened for one in names.split("|")), f"{name} opened its test"
    unlocked = {"sts-test.csv", "eng.testb", "stsa.binary.test", "msr_paraphrase_test.txt"}
    assert not {path.name for path in opened} & (unlocked | {"test.tsv", "test.txt", "test_matched.tsv"})


@pytest.mark.parametrize("name", [name for name in tasks.names() if name.startswith("demo_")])
def test_generated_training_data_never_makes_a_test_example(name, monkeypatch):
    from meltpoint.tasks import demo_sentiment

    asked = []
    real = demo_sentiment.Draw
    monkeypatch.setattr(demo_sentiment, "Draw", lambda random, split: asked.append(split) or real(random, split))
    load_training_data(DataSpec(name))
    assert asked == ["train", "dev"]


@pytest.mark.parametrize(
    ("name", "predictions", "file", "rows"),
    [
        ("mnli", [2, 0, 1], "MNLI-m.tsv", ["0\tneutral", "1\tentailment", "2\tcontradiction"]),
        ("cola", [1, 0, 1], "CoLA.tsv", ["0\t1", "1\t0", "2\t1"]),
        ("sst2_phrases", [1, 0, 1], "SST-2.tsv", ["0\t1", "1\t0", "2\t1"]),
        ("mrpc", [0, 1, 1], "MRPC.tsv", ["0\t1", "1\t1", "2\t0"]),
        ("stsb", [5.25, -0.125, 2.5], "STS-B.tsv", ["0\t2.500", "1\t0.000", "2\t5.000"]),
    ],
)
def test_rows_are_in_the_servers_order_and_words(tmp_path, name, predictions, file, rows):
    path = write_glue_submission(tasks.get(name), predictions, ["2", "1", "0"], tmp_path / "new")
    assert path == tmp_path / "new" / file
    assert path.read_bytes().decode() == "\n".join(["index\tprediction", *rows]) + "\n"


@pytest.mark.parametrize("ids", [["0", "0"], ["1", "2"], ["0", "x"]])
def test_ids_that_are_not_glues_are_refused(tmp_path, ids):
    with pytest.raises(ValueError, match="not GLUE's indices 0 to 1"):
        write_glue_submission(tasks.get("cola"), [0, 1], ids, tmp_path)
    with pytest.raises(ValueError, match="Unknown GLUE task 'conll2003'"):
        write_glue_submission(tasks.get("conll2003"), [], [], tmp_path)
