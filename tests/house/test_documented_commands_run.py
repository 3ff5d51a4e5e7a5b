"""Every command and snippet of README, CONTRIBUTING and the guides that can run here runs, as it is written.

Runs are made small by options that are put behind a command (`SMALL`); names in capitals are filled in (`PLACES`).
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from meltpoint.tests.house.test_docs import ROOT
from meltpoint.tests.house.test_documented_commands import lines, snippets
from meltpoint.tests.tiny_parts import BAD, GOOD, THINGS

SMALL = ("--max-train-examples", "48", "--set", "epochs=1")
"""Behind every sweep and analysis of encoders that has no size of its own: fewer examples and epochs.

Trials and seeds stay as documented.
"""

PLACES = {"NAME": "first", "books_and_wikipedia.txt": "words.txt"}
EXPORTED, NATIVE = "docs/exporting.md", "minilm.fine_tuning.reviews"
"""The guide to exporting, and the one cell of its sweep: only native heads have every form."""
TRIES = 4
"""Of a command for which Ray did not start in its time, as on a machine that does much else."""
ROWS = 90
"""Of the files of real data: their first lines."""

HUB = "it reads an encoder or a data set from the hub"
CLUSTER = "it needs a running cluster at that address; tests/sweeps/test_jobs_on_ray.py has one"
ELIDED = "it stands for many commands: what matters is left out as `…`"
SELF = "it installs, tests or checks this checkout, as the run of this test does"

CANNOT = {
    "README.md: make demo": SELF,
    "README.md: meltpoint tune train.csv": "it takes minutes; tests of `tune` run it small",
    "README.md: make test": SELF,
    "README.md: meltpoint sweep --name first --encoder bert-base": HUB,
    "docs/machines.md: meltpoint demo": "it takes minutes; its sweep is as others that run here",
    "CONTRIBUTING.md: make": SELF,
    "docs/agents.md: meltpoint mcp": "it serves until its client ends; tests/reports/test_mcp_server.py has one",
    "docs/own_data.md: make install": SELF,
    "docs/index.md: meltpoint tune train.csv": "it takes minutes; tests of `tune` run it small",
    "docs/own_data.md: meltpoint tune train.csv": "it takes minutes; tests of `tune` run it small",
    "docs/own_data.md: meltpoint predict reviews": "it is of the sweep before it; tests/sweeps/test_predicting.py",
    "docs/own_data.md: meltpoint doctor": "its status is 1 where something is lacking; tests/sweeps/test_doctor.py",
    "docs/analyses.md: meltpoint sweep --name genres --encoder bert-base": HUB,
    "docs/analyses.md: meltpoint analyse genres genres": "it is of the sweep before it, which reads from the hub",
    "docs/analyses.md: meltpoint analyse figure_1": "it is of a sweep that reads from the hub",
    "docs/clusters.md: meltpoint": CLUSTER,
    "docs/papers.md: meltpoint plan --spec to_tune_or_not": HUB,
    "docs/papers.md: meltpoint sweep --spec to_tune_or_not": HUB,
    "docs/search_spaces.md: meltpoint sweep …": ELIDED,
    "docs/storage.md: meltpoint": "an S3 bucket; tests/sweeps/test_object_lease.py has one",
    "docs/machines.md: meltpoint doctor": "its status is 1 where something is lacking, such as that cluster",
    "docs/machines.md: meltpoint sweep --address": CLUSTER,
}
"""Beginning of a line → why it is not run."""

SNIPPETS_ELSEWHERE = {
    "README.md": "it takes minutes; tests/reports/test_python_api.py runs mp.tune small",
    "docs/python.md": "it takes minutes; tests/reports/test_python_api.py runs mp.tune small",
}

GUIDES = [
    line
    for line in (*lines("meltpoint"), *lines("make"))
    if line.document in {"README.md", "CONTRIBUTING.md"} or Path(line.document).parent.name == "docs"
]
RUNNING = [line for line in GUIDES if not any(str(line).startswith(start) for start in CANNOT)]
DOCUMENTS = sorted({line.document for line in RUNNING})


def test_most_commands_run_and_one_that_does_not_is_still_in_its_document() -> None:
    assert len(RUNNING) >= 30
    assert [start for start in CANNOT if not any(str(line).startswith(start) for line in GUIDES)] == []
    assert {name for name, _ in snippets()} >= set(SNIPPETS_ELSEWHERE)


def reviews(count: int, seed: int) -> str:
    """A csv of short reviews and their labels."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        tone = (BAD, GOOD)[number % 2]
        text = (
            f"the {draw.choice(THINGS)} number {seed * count + number} was {draw.choice(tone)} and {draw.choice(tone)}"
        )
        rows.append(f"{text},{('bad', 'good')[number % 2]}")
    return "\n".join(["text,label", *rows]) + "\n"


def first_lines(data: Path, to: Path) -> None:
    """The first lines of each file of the data sets that the commands name."""
    for name in ("sst2", "mrpc", "cola", "stsb", "mnli"):
        for path in (data / name).rglob("*.*"):
            if path.is_file():
                place = to / path.relative_to(data)
                place.parent.mkdir(parents=True, exist_ok=True)
                with path.open("rb") as file:  # one of them is no UTF-8
                    place.write_bytes(b"".join(itertools.islice(file, ROWS)))


def run(words: tuple[str, ...], folder: Path) -> None:
    """Run a command of a document in a folder."""
    environment = {**os.environ, "COLUMNS": "100", "HF_HUB_OFFLINE": "1"}
    for _ in range(TRIES):
        done = subprocess.run(
            [sys.executable, "-m", "meltpoint.launch", *words[1:]], cwd=folder, env=environment, capture_output=True,
            encoding="utf-8", timeout=900, check=False,
        )  # fmt: skip
        if "Ray did not start" not in done.stderr:
            break
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}"


def filled(words: tuple[str, ...]) -> tuple[str, ...]:
    """A command with its places filled in, made small, and with its data from files: the hub is not reached."""
    words = tuple(PLACES.get(word, word) for word in words if word != "…")
    command = " ".join(words[1:])
    more: list[str] = []
    if command.startswith(("sweep", "analyse -")) and "--max-train-examples" not in words:
        more += SMALL[:2]
    if command.startswith("sweep") and "epochs=" not in command:
        more += SMALL[2:]
    if command.startswith(("sweep", "plan", "analyse -")) and "--data-dir" not in words:
        more += ["--data-dir", "DATA"]
    return (*words, *more)


def prepare(folder: Path, data: Path) -> None:
    """Write the data, and run the sweeps, that the documents speak of; the same call goes on."""
    first_lines(data, folder / "DATA")
    for name, count, seed in (("train.csv", 120, 0), ("test.csv", 30, 1), ("texts.csv", 10, 2)):
        (folder / name).write_text(reviews(count, seed), encoding="utf-8")
    (folder / "words.txt").write_text("the film was great and the meal was cold\n" * 200, encoding="utf-8")
    if not (folder / "reviews.yaml").exists():
        run(("meltpoint", "new-task", "train.csv", "test.csv", "--out", "reviews.yaml"), folder)
    both, few = ("--mode", "feature_extraction,fine_tuning"), ("--trials", "2", "--seeds", "2", "--head", "linear")
    quick = ("--encoder", "minilm", "--data-dir", "DATA", *SMALL)
    for name, task in (("first", "reviews.yaml"), ("second", "reviews.yaml"), ("demo", "demo_sentiment")):
        run(("meltpoint", "sweep", "--name", name, "--task", task, *quick, *both, *few), folder)
    for name in ("first", "demo"):
        run(("meltpoint", "export", name, "--model"), folder)
    searched = ("--trials", "14", "--searcher", "random", "--seeds", "2", "--head", "linear", "--no-default-finals")
    run(("meltpoint", "sweep", "--name", "nightly", "--task", "sst2,mrpc,cola", *quick, *both, *searched), folder)
    run(("meltpoint", "export", "nightly", "--model", "--out", "."), folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, shared: Path, minilm: Path) -> Path:
    """A folder with the data and the sweeps that the documents speak of."""
    folder = tmp_path_factory.mktemp("made")
    prepare(folder, shared / "data")
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of it, for one document."""
    folder = tmp_path / "here"
    shutil.copytree(made, folder)
    yield folder
    shutil.rmtree(folder)


def fresh(document: str, place: Path) -> None:
    """Take away what a document makes itself."""
    made_here = {word for line in RUNNING if line.document == document for word in line.words}
    if "new-task" in made_here:
        (place / "reviews.yaml").unlink()
    for line in RUNNING:
        if line.document == document and "--name" in line.words:
            name = line.words[line.words.index("--name") + 1]
            shutil.rmtree(place / "runs" / name, ignore_errors=True)


def make_native(place: Path) -> None:
    """Let `first` be of one cell that plain transformers can express."""
    shutil.rmtree(place / "runs" / "first")
    few = ("--mode", "fine_tuning", "--head", "native", "--trials", "2", "--seeds", "2", "--no-default-finals")
    quick = ("--task", "reviews.yaml", "--encoder", "minilm", "--data-dir", "DATA", *SMALL)
    run(("meltpoint", "sweep", "--name", "first", *quick, *few), place)


def agreed(words: tuple[str, ...], place: Path) -> tuple[str, ...]:
    """A command with the agreement to let its sweep grow, where it is there already: nobody can be asked here."""
    name = words[words.index("--name") + 1] if "--name" in words else ""
    is_there = words[1] == "sweep" and bool(name) and (place / "runs" / name).is_dir()
    return (*words, "--grow") if is_there else words


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_commands_of_a_document_run_one_after_another(document: str, place: Path) -> None:
    fresh(document, place)
    if document == EXPORTED:
        make_native(place)
    for line in RUNNING:
        if line.document == document:
            run(agreed(filled(line.words), place), place)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("document", "code"), snippets(), ids=[name for name, _ in snippets()])
def test_a_snippet_runs(document: str, code: str, place: Path) -> None:
    if document in SNIPPETS_ELSEWHERE:
        assert (ROOT / SNIPPETS_ELSEWHERE[document].split("; ")[1].split()[0]).is_file()
        return
    if document == EXPORTED:
        make_native(place)
        run(("meltpoint", "export", "first", "--onnx"), place)
        code = code.replace("FOLDER", f"runs/first/exports/{NATIVE}.onnx")
    if "settings/" in code:
        run(("meltpoint", "export", "first", "--out", "settings"), place)
    if "mp.sweep(" in code:
        shutil.rmtree(place / "runs" / "first")
        code = code.replace('task="reviews.yaml"', 'task="reviews.yaml", max_train_examples=48, overrides="epochs=1"')
    bin_folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=place, env=environment, capture_output=True, encoding="utf-8", timeout=900,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
