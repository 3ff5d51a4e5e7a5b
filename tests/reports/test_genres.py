"""Table 6: divergences per genre against SciPy, accuracies from predictions and from cells of one genre."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from meltpoint.reports.analyses import analyse
from meltpoint.reports.analyses.core.analysis import AnalysisOptions
from meltpoint.reports.analyses.genres import ANALYSIS
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.tasks.mnli import GENRES, LABELS

WORDS = {genre: [f"{genre}{n}" for n in range(4)] + ["the", "a"] for genre in GENRES}
ICE, FIRE = "feature_extraction", "fine_tuning"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Genres with distinct words and two shared ones; four training and two dev pairs per genre."""
    folder = tmp_path / "data" / "mnli"
    folder.mkdir(parents=True)
    for name, count in (("train.tsv", 4), ("dev_matched.tsv", 2)):
        rows = ["genre\tgold_label\tsentence1\tsentence2"]
        for genre in GENRES:
            own = WORDS[genre]
            rows += [f"{genre}\t{LABELS[n % 3]}\tthe {own[n]} the\ta {own[(n + 1) % 4]}" for n in range(count)]
        (folder / name).write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder.parent


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "books.txt"
    path.write_text("The fiction0 fiction1\na fiction2 the fiction3\nthe Travel0\n", encoding="utf-8")
    return path


def rows(paths: list[Path]) -> list[dict[str, str]]:
    (path,) = [path for path in paths if path.suffix == ".csv"]
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def every(right: list[bool]) -> dict[str, list[bool]]:
    """The same of each genre."""
    return {genre: list(right) for genre in GENRES}


def predictions(folder: Path, name: str, right: dict[str, list[bool]]) -> None:
    """A finalist's stored dev predictions: which of each genre's two are right."""
    lines = []
    for genre, judged in right.items():
        for n, is_right in enumerate(judged):
            place = 2 * GENRES.index(genre) + n
            record = {"id": str(place), "gold": LABELS[n], "prediction": LABELS[n if is_right else 2]}
            record |= {"probabilities": dict.fromkeys(LABELS, 1 / len(LABELS))}
            lines.append(json.dumps(record))
    path = folder / "predictions" / f"{name}.dev.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_each_genres_divergence_is_that_of_its_training_sentences(data, corpus, tmp_path):
    table = rows(analyse("-", ["genres"], tmp_path, corpus=corpus, data_dir=str(data)))
    assert [row["genre"] for row in table] == list(GENRES)
    reference = Counter(corpus.read_text(encoding="utf-8").lower().split())
    lines = [line.split("\t") for line in (data / "mnli" / "train.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    for row in table:
        own = Counter(word for line in lines if line[0] == row["genre"] for word in " ".join(line[2:]).split())
        words = sorted({word for line in lines for word in " ".join(line[2:]).split()} | set(reference))
        one, other = (np.array([counts[word] for word in words], float) for counts in (reference, own))
        expected = jensenshannon(one, other, base=math.e) ** 2
        assert float(row["divergence"]) == pytest.approx(expected)
        assert (row["train"], row["dev"], row["encoder"]) == ("4", "2", "")
    nearest = min(table, key=lambda row: float(row["divergence"]))
    assert nearest["genre"] == "fiction"


def test_a_cell_of_all_genres_is_scored_by_genre_from_its_predictions(make_cell, make_sweep, data, corpus, tmp_path):
    ledger = Ledger(tmp_path / "runs" / "first")
    cells = [make_cell(mode, "mnli", finals=[(0.5, "hidden")] * 2) for mode in (ICE, FIRE)]
    all_right, half = every([True, True]), every([True, False])
    none = every([False, False])
    for mode, seeds in ((ICE, (half, none)), (FIRE, (all_right, half | {"slate": [True, True]}))):
        for seed, right in enumerate(seeds):
            predictions(ledger.folder, f"minilm.{mode}.mnli.seed{seed}", right)
    options = AnalysisOptions(
        make_sweep(*cells), ledger, tmp_path / "out", corpus=corpus, data_dir=str(data), formats=("csv",)
    )
    table = {row["genre"]: row for row in rows(ANALYSIS.run(options))}
    assert {row["trained on"] for row in table.values()} == {"all genres"}
    assert len(table) == 5
    slate, travel = table["slate"], table["travel"]
    assert [float(slate[key]) for key in ("❄", "🔥", "Δ", "🔥 std")] == [0.25, 1.0, 0.75, 0.0]
    assert [float(travel[key]) for key in ("❄", "🔥", "Δ")] == [0.25, 0.75, 0.5]
    assert float(travel["Δ error"]) == pytest.approx(math.sqrt(0.125 / 2 + 0.125 / 2))


def test_a_cell_of_several_genres_is_scored_on_those_and_says_which(make_cell, make_sweep, data, tmp_path):
    ledger = Ledger(tmp_path / "runs" / "first")
    cell = make_cell(FIRE, "mnli:slate+travel", finals=[(0.5, "hidden")])
    predictions(ledger.folder, "minilm.fine_tuning.mnli_slate_travel.seed0", {"slate": [True, True], "travel": [True]})
    options = AnalysisOptions(make_sweep(cell), ledger, tmp_path, data_dir=str(data), formats=("csv",))
    table = rows(ANALYSIS.run(options))
    assert [(row["genre"], row["trained on"], row["🔥"], row["Δ"]) for row in table] == [
        ("slate", "slate+travel", "1.0", ""),
        ("travel", "slate+travel", "1.0", ""),
    ]


def test_cells_of_a_genre_give_their_own_dev_scores_and_a_correlation(make_cell, make_sweep, data, corpus, tmp_path):
    scores = {"fiction": 0.9, "slate": 0.7, "travel": 0.8}
    cells = [
        make_cell(mode, f"mnli:{genre}", finals=[(score + gain, None), (score + gain, None)])
        for genre, score in scores.items()
        for mode, gain in ((ICE, 0.0), (FIRE, 0.01 if genre == "fiction" else 0.02))
    ]
    options = AnalysisOptions(make_sweep(*cells), Ledger(tmp_path), tmp_path, corpus=corpus, data_dir=str(data))
    written = ANALYSIS.run(options)
    table = {row["genre"]: row for row in rows(written)}
    assert set(table) == set(scores)
    assert table["slate"]["trained on"] == "its genre"
    assert float(table["slate"]["🔥"]) == pytest.approx(0.72)
    assert float(table["fiction"]["Δ"]) == pytest.approx(0.01)
    assert "minilm trained on its genre: Pearson" in (tmp_path / "genres.md").read_text(encoding="utf-8")
    assert {path.suffix for path in written} == {".md", ".csv", ".tex"}


def test_mistakes_are_refused_in_one_line(make_cell, make_sweep, data, corpus, tmp_path):
    with pytest.raises(ValueError, match=r"needs a reference corpus \(--corpus FILE\.txt\), a sweep"):
        analyse("-", ["genres"], tmp_path, data_dir=str(data))
    with pytest.raises(ValueError, match=r"nothing\.txt cannot be read"):
        analyse("-", ["genres"], tmp_path, corpus=tmp_path / "nothing.txt", data_dir=str(data))
    other = AnalysisOptions(make_sweep(make_cell(task="sst2")), Ledger(tmp_path), tmp_path, data_dir=str(data))
    with pytest.raises(ValueError, match="'first' has no cell of mnli; sweep --task mnli:fiction"):
        ANALYSIS.run(other)
    open_cell = AnalysisOptions(
        make_sweep(make_cell(task="mnli:slate")), Ledger(tmp_path), tmp_path, data_dir=str(data)
    )
    with pytest.raises(ValueError, match=r"'minilm\.fine_tuning\.mnli_slate' has no finals yet"):
        ANALYSIS.run(open_cell)
    lost = AnalysisOptions(
        make_sweep(make_cell(task="mnli", finals=[(0.5, "hidden")])), Ledger(tmp_path), tmp_path, data_dir=str(data)
    )
    with pytest.raises(ValueError, match=r"mnli\.seed0\.dev\.jsonl does not hold the dev predictions"):
        ANALYSIS.run(lost)
    predictions(tmp_path, "minilm.fine_tuning.mnli.seed0", every([True, True, True]))
    with pytest.raises(ValueError, match="does not hold the dev predictions"):  # ids that the data does not have
        ANALYSIS.run(lost)
