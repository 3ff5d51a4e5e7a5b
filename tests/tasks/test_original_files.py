"""Tasks read the original files of their authors."""

from __future__ import annotations

import csv
from itertools import permutations
from pathlib import Path

import pytest

from meltpoint import tasks
from meltpoint.sweeps.command_line.spec_from_options import split_at_commas
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.tasks import get
from meltpoint.tasks.core.locked import open_test
from meltpoint.tasks.core.sources import check
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec
from meltpoint.tasks.mnli import GENRES, LABELS
from meltpoint.tasks.yahoo import CLASSES


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
    (release / "mnli" / "test_matched.tsv").write_text("index\tgenre\tsentence1\tsentence2\n0\tslate\ta\tb\n")
    states = [
        check(DataSpec(*words)) for words in (("mnli", str(release)), ("mnli:slate", str(release)), ("mnli:slate",))
    ]
    assert states == ["hidden", "absent", "absent"], "the server scores all genres together"


def test_the_hubs_rows_of_other_genres_are_left_out():
    row = {"pairID": "5e", "premise": "a", "hypothesis": "b", "genre": "slate", "label": 1}
    slate, travel = (tasks.get(f"mnli:{genre}").hub for genre in ("slate", "travel"))
    assert slate.example(row, 0, LABELS) == tasks.get("mnli").hub.example(row, 0, LABELS)
    assert travel.example(row, 0, LABELS) is None
    assert "test" not in slate.splits
    assert not slate.elsewhere


def test_the_real_genres_have_their_published_dev_sizes(real):
    sizes = {genre: len(real(f"mnli:{genre}").dev) for genre in GENRES}
    assert sizes == {"fiction": 1973, "government": 1945, "slate": 1955, "telephone": 1966, "travel": 1976}


HEADER = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
TRAIN = [
    "133273\t213221\t213222\tHow does \"it\" work?\tHow do I do it?\t1",
    "402555\t536040\t536041\t\"Was he a real figure?\n\"\tWhat is the evidence? \t0",  # GLUE has such line breaks
    "201841\t303951\t174364\tHow can I create an Android app?\t\t0",
    "360472\t364011\t490273\tWhat can one do after MBBS?\tWhat do I do after my MBBS ?\t1",
]  # fmt: skip
DEV = ["201359\t303345\t303346\tWhy are African-Americans so beautiful?\tWhy are hispanics so beautiful?\t0"]
TEST = ["0\tWould the idea of Trump be good?\tDo you think it works?", "1\tWhat are the top ten?\tWhat is it?"]

SAMPLE = [
    "1\tWhy?\tWhy so?\t18", "0\tHow do I \"read\"?\tWhat is a book\t211", "1\tmarked as \u2018this?\tHow?\t129",
    "0\tWho is he?\tWho was she?\t30",
]  # fmt: skip


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    folder = tmp_path / "qqp"
    folder.mkdir()
    for name, rows in (("train", [HEADER, *TRAIN]), ("dev", [HEADER, *DEV])):
        (folder / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    (folder / "test.tsv").write_text("\n".join(["id\tquestion1\tquestion2", *TEST]) + "\n")
    return tmp_path


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    (tmp_path / "qqp").mkdir()
    data = "\n".join(SAMPLE).encode() + b"\n1\tcosts \xe2\x82500?\tHow much?\t528\n"
    (tmp_path / "qqp" / "sample.tsv").write_bytes(data)
    return tmp_path


def test_glues_rows_are_read_with_line_breaks_mended_and_empty_questions_left_out(glue):
    (glue / "qqp" / "sample.tsv").write_text("\n".join(SAMPLE), encoding="utf-8")  # passed over where GLUE's are there
    spec = DataSpec("qqp", str(glue))
    data = load_training_data(spec)
    assert [(e.id, e.label) for e in data.train] == [("133273", 1), ("402555", 0), ("360472", 1)]
    assert data.train[0].texts == ('How does "it" work?', "How do I do it?")
    assert data.train[1].texts == ('"Was he a real figure?\n"', "What is the evidence?")
    assert [e.id for e in data.dev] == ["201359"]
    assert data.notes == ("test labels hidden",)
    assert (check(spec), open_test(spec).labelled) == ("hidden", False)


def test_the_sample_is_split_by_the_last_digit_of_the_id_and_its_test_has_labels(sample):
    spec = DataSpec("qqp", str(sample))
    data, opened = load_training_data(spec), open_test(spec)
    assert [e.id for e in data.train] == ["211", "30"]
    assert [e.id for e in data.dev] == ["18", "528"]
    assert [(e.id, e.label) for e in opened.examples] == [("129", 1)]
    assert (check(spec), opened.labelled, opened.notes) == ("labelled", True, ())
    assert data.notes == (
        "sample.tsv, not GLUE's split: dev has the pairs whose id ends in 8, test the pairs whose id ends in 9",
    )


SICK_HEADER = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
SICK_ROWS = {
    "SICK_train.txt": [
        "1\tA man is eating\tSomeone eats\t4.5\tENTAILMENT", "2\tA dog runs\tNo dog runs\t3.3\tCONTRADICTION",
    ],
    "SICK_trial.txt": ["4\tA boy \"waves\tA boy sings\t2.8\tNEUTRAL"],
    "SICK_test_annotated.txt": ["6\tThe sea is calm\tThe sea is rough\t3.6\tCONTRADICTION"],
}  # fmt: skip


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "sick").mkdir()
    for name, rows in SICK_ROWS.items():
        end = "\r\n" if "test" in name else "\n"
        (tmp_path / "sick" / name).write_bytes((end.join([SICK_HEADER, *rows]) + end).encode())
    return tmp_path


def test_entailment_reads_the_judgment_and_relatedness_the_score_of_the_same_pairs(data_dir):
    entailment = load_training_data(DataSpec("sick_e", str(data_dir)))
    relatedness = load_training_data(DataSpec("sick_r", str(data_dir)))
    assert [e.texts for e in entailment.train] == [e.texts for e in relatedness.train]
    assert [entailment.task.labels[e.label] for e in entailment.train] == ["entailment", "contradiction"]
    assert [e.label for e in relatedness.train] == [4.5, 3.3]
    assert [e.id for e in entailment.train] == ["1", "2"]
    (example,) = open_test(DataSpec("sick_e", str(data_dir))).examples
    assert example.texts == ("The sea is calm", "The sea is rough"), "that file ends its lines with CRLF"
    assert get("sick_e").labels[example.label] == "contradiction"


YAHOO_ROWS = 556  # four times 139: four rows of dev


def write(path: Path, rows: list[list[str]]) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)


def row(place: int) -> list[str]:
    return [str(place % 10 + 1), f'why "{place}"?', "" if place % 3 else "more\\nof it", f"because, {place}"]


@pytest.fixture
def yahoo_release(tmp_path: Path) -> Path:
    write(tmp_path / "yahoo" / "train.csv", [row(place) for place in range(YAHOO_ROWS)])
    write(tmp_path / "yahoo" / "test.csv", [row(place) for place in range(20)])
    return tmp_path


@pytest.fixture
def yahoo_sample(tmp_path: Path) -> Path:
    names = ["society_culture"] * 30 + ["science_mathematics"] * 30
    write(tmp_path / "yahoo" / "sample_2class_train.csv", [[f"text {n}\\nend", name] for n, name in enumerate(names)])
    write(tmp_path / "yahoo" / "sample_2class_test.csv", [["one  two", names[0]], ["three", names[-1]]])
    return tmp_path


def test_the_classes_are_the_releases_in_its_order(shared):
    lines = (shared / "data" / "yahoo" / "classes.txt").read_text(encoding="utf-8").split("\n")[:10]
    assert [line.lower().replace(" & ", "_") for line in lines] == list(CLASSES) == list(tasks.get("yahoo").labels)


def test_all_ten_classes_are_read_by_their_index_with_every_139th_row_as_dev(yahoo_release):
    spec = DataSpec("yahoo", str(yahoo_release))
    data, opened = load_training_data(spec), open_test(spec)
    assert [e.id for e in data.dev] == ["138", "277", "416", "555"]
    assert [e.id for e in data.train] == [str(n) for n in range(YAHOO_ROWS) if n % 139 != 138]
    assert all(e.label == int(e.id) % 10 for e in [*data.train, *data.dev, *opened.examples])
    assert data.notes == ("dev = every 139th row of train.csv",)
    first, second = data.train[:2]
    assert first.texts == ('why "0"? more\nof it because, 0',), "title, content and answer with their line breaks"
    assert second.texts == ('why "1"? because, 1',), "and no gap where one is empty"
    assert (check(spec), len(opened.examples), opened.labelled) == ("labelled", 20, True)


def test_some_classes_are_those_rows_alone_with_ids_of_their_own_order(yahoo_release):
    spec = DataSpec("yahoo:politics_government+sports", str(yahoo_release))
    data, opened = load_training_data(spec), open_test(spec)
    assert data.task.labels == ("sports", "politics_government")
    whole = load_training_data(DataSpec("yahoo", str(yahoo_release)))
    for few, every in ((data.train, whole.train), (data.dev, whole.dev)):
        wanted = [(e.id, e.texts, CLASSES[e.label]) for e in every if e.label in (5, 9)]
        assert [(e.id, e.texts, data.task.labels[e.label]) for e in few] == wanted
        assert few
    assert [e.id for e in opened.examples] == ["5", "9", "15", "19"]
    assert data.fingerprint != whole.fingerprint


def test_the_order_of_the_words_does_not_matter_and_all_ten_are_the_whole_task():
    names = {tasks.get(f"yahoo:{'+'.join(three)}").name for three in permutations(("sports", "health", CLASSES[0]))}
    assert names == {"yahoo:society_culture+health+sports"}
    assert tasks.get(f"yahoo:{'+'.join(reversed(CLASSES))}").name == "yahoo"
    name = tasks.get("yahoo:sports+health").name
    assert tasks.get(name).name == name
    assert split_at_commas([f"sst2,{name}"]) == ("sst2", name), "a word of the command line"
    assert cell_name("minilm", "fine_tuning", name) == "minilm.fine_tuning.yahoo_health_sports"


@pytest.mark.parametrize(
    ("word", "part"),
    [
        ("yahoo:sport+health", r"^Unknown class of yahoo 'sport'\. Did you mean sports\?"),
        ("yahoo:", r"^Unknown class of yahoo ''"),
        ("mnli:slat", r"^Unknown genre of mnli 'slat'\. Did you mean slate\?.*travel\.$"),
        ("mnli:slate+slate", r"names a genre twice; name each once\.$"),
        ("yahoo:sports", r"^yahoo:sports is one class; name two or more"),
        ("yahoo:sports+health+sports", r"names a class twice; name each once\.$"),
    ],
)
def test_wrong_words_are_refused_in_one_line(word, part):
    with pytest.raises(ValueError, match=part) as caught:
        check(DataSpec(word))
    assert "\n" not in str(caught.value)


def test_the_sample_is_read_where_only_it_is_there_with_every_11th_row_as_dev(yahoo_sample):
    spec = DataSpec("yahoo:society_culture+science_mathematics", str(yahoo_sample))
    data, opened = load_training_data(spec), open_test(spec)
    assert [e.id for e in data.dev] == ["10", "21", "32", "43", "54"]
    assert [e.label for e in data.dev] == [0, 0, 1, 1, 1]
    assert len(data.train) == 55
    assert data.train[0].texts == ("text 0\nend",)
    assert data.notes == ("dev = every 11th row of sample_2class_train.csv",)
    assert [(e.texts[0], e.label) for e in opened.examples] == [("one  two", 0), ("three", 1)]
    with pytest.raises(ValueError, match=r"has no example of sports\. Name classes .*\(yahoo:society_culture\+science"):
        load_training_data(DataSpec("yahoo:society_culture+sports", str(yahoo_sample)))
