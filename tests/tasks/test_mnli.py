"""MultiNLI by genre: variants of the task, in files of the original format and on the hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from meltpoint import tasks
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.tasks.core.sources import check
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec
from meltpoint.tasks.mnli import GENRES, LABELS


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """Three pairs per genre in train, one in dev, in alternating genres."""
    folder = tmp_path / "mnli"
    folder.mkdir()
    for name, count in (("train.tsv", 3), ("dev_matched.tsv", 1)):
        rows = [f"{genre}\t{LABELS[n]}\t{genre} premise {n}\thypothesis {n}" for n in range(count) for genre in GENRES]
        (folder / name).write_text("\n".join(["genre\tgold_label\tsentence1\tsentence2", *rows]) + "\n")
    return tmp_path


def test_a_genre_is_trained_and_scored_on_its_own_examples_which_keep_their_ids(release):
    whole, slate = (load_training_data(DataSpec(word, str(release))) for word in ("mnli", "mnli:slate"))
    assert slate.train == [example for example in whole.train if example.group == "slate"]
    assert slate.dev == [example for example in whole.dev if example.group == "slate"]
    assert (len(slate.train), len(slate.dev)) == (3, 1)
    assert slate.fingerprint != whole.fingerprint


def test_all_genres_together_are_the_whole_task(release):
    whole, every = (load_training_data(DataSpec(w, str(release))) for w in ("mnli", f"mnli:{'+'.join(GENRES)}"))
    assert (every.train, every.dev, every.fingerprint) == (whole.train, whole.dev, whole.fingerprint)


def test_the_order_of_genres_does_not_matter_and_the_name_fits_a_file():
    one, other = tasks.get("mnli:travel+fiction"), tasks.get("mnli:fiction+travel")
    assert one.name == other.name == "mnli:fiction+travel"
    assert cell_name("minilm", "fine_tuning", one.name) == "minilm.fine_tuning.mnli_fiction_travel"


def test_a_genre_has_no_test_because_the_server_scores_all_of_them_together(release):
    (release / "mnli" / "test_matched.tsv").write_text("index\tgenre\tsentence1\tsentence2\n0\tslate\ta\tb\n")
    assert check(DataSpec("mnli", str(release))) == "hidden"
    assert check(DataSpec("mnli:slate", str(release))) == "absent"
    assert check(DataSpec("mnli:slate")) == "absent"


def test_the_hubs_rows_of_other_genres_are_left_out():
    row = {"pairID": "5e", "premise": "a", "hypothesis": "b", "genre": "slate", "label": 1}
    slate, travel = (tasks.get(f"mnli:{genre}").hub for genre in ("slate", "travel"))
    assert slate.example(row, 0, LABELS) == tasks.get("mnli").hub.example(row, 0, LABELS)
    assert travel.example(row, 0, LABELS) is None
    assert "test" not in slate.splits
    assert not slate.elsewhere


@pytest.mark.parametrize(
    ("word", "part"),
    [
        ("mnli:slat", r"^Unknown genre of mnli 'slat'\. Did you mean slate\?.*travel\.$"),
        ("mnli:", r"^Unknown genre of mnli ''"),
        ("mnli:slate+slate", r"names a genre twice; name each once\.$"),
    ],
)
def test_a_genre_that_is_not_one_is_refused(word, part):
    with pytest.raises(ValueError, match=part):
        tasks.get(word)


def test_a_file_without_the_genre_is_refused(release):
    train = release / "mnli" / "train.tsv"
    train.write_text(
        "\n".join(line for line in train.read_text(encoding="utf-8").splitlines() if "slate" not in line) + "\n"
    )
    with pytest.raises(ValueError, match=r"train\.tsv has no example of slate; put the original file there\."):
        load_training_data(DataSpec("mnli:slate", str(release)))


def test_the_real_genres_have_their_published_dev_sizes(real):
    sizes = {genre: len(real(f"mnli:{genre}").dev) for genre in GENRES}
    assert sizes == {"fiction": 1973, "government": 1945, "slate": 1955, "telephone": 1966, "travel": 1976}
