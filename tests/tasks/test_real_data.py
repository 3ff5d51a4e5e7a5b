"""The real files give the published counts, with their irregularities handled."""

from __future__ import annotations

from collections import Counter

import pytest

from meltpoint import tasks
from meltpoint.tasks.core.locked import open_test
from meltpoint.tasks.core.metrics import spans, split_labels
from meltpoint.tasks.core.task import DataSpec

# ../shared/data/README.md; MultiNLI's train is the subset in that folder; CoLA and MultiNLI have no public test split.
COUNTS = {
    "conll2003": (14_041, 3_250, 3_453),
    "sst2": (6_920, 872, 1_821),
    "sst2_phrases": (67_349, 872, 1_821),
    "sst2_subtrees": (98_794, 872, 1_821),
    "mrpc": (3_668, 408, 1_725),
    "stsb": (5_749, 1_500, 1_379),
    "mnli": (25_072, 9_815, None),
    "cola": (8_551, 1_043, None),
    # Only samples of these two are in that folder, with splits that differ from the original ones.
    "qqp": (7_992, 983, 1_025),
    "yahoo:society_culture+science_mathematics": (3_637, 363, 418),
}


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_every_split_has_the_published_number_of_examples_whose_labels_fit_the_task(name, shared_data, real):
    spec = DataSpec(name, str(shared_data))
    data = real(name)
    train, dev, test = COUNTS[name]
    assert (len(data.train), len(data.dev)) == (train, dev)
    for split in (data.train, data.dev):
        assert len({example.id for example in split}) == len(split)
    for example in data.dev:
        if data.task.label_range:
            assert data.task.label_range[0] <= example.label <= data.task.label_range[1]
        elif data.task.kind == "sequence_labelling":
            assert len(example.label) == len(example.words) > 0
        else:
            assert example.label in range(len(data.task.labels))
    if test is not None:
        opened = open_test(spec)
        assert len(opened.examples) == test
        assert opened.labelled
        assert data.task.test_examples in {test, None}


def test_conll2003_has_the_published_documents_and_entities(shared_data):
    # Tjong Kim Sang & De Meulder 2003, tables 1 and 2.
    task, folder = tasks.get("conll2003"), shared_data / "conll2003"
    wanted = {
        "train": (946, {"LOC": 7140, "MISC": 3438, "ORG": 6321, "PER": 6600}),
        "dev": (216, {"LOC": 1837, "MISC": 922, "ORG": 1341, "PER": 1842}),
        "test": (231, {"LOC": 1668, "MISC": 702, "ORG": 1661, "PER": 1617}),
    }
    labels = split_labels(task.labels)
    for split, (documents, entities) in wanted.items():
        examples = task.readers[split](folder)
        assert len({example.group for example in examples}) == documents
        counts = Counter(kind for example in examples for _, _, kind in spans(example.label, labels))
        assert counts == entities
        assert not any("-DOCSTART-" in example.words for example in examples)


def test_the_three_sst2_tasks_share_dev_and_it_is_glues_word_for_word(shared_data, real):
    devs = [real(name).dev for name in ("sst2", "sst2_phrases")]
    assert devs[0] == devs[1]
    lines = (shared_data / "sst2/glue/dev.tsv").read_text(encoding="utf-8").split("\n")[1:-1]
    glue = {tuple(line.split("\t")) for line in lines}
    assert {(f"{example.texts[0]} ", str(example.label)) for example in devs[0]} == glue


@pytest.mark.parametrize("split", ["dev", "test"])
def test_the_sentences_of_subtrees_are_those_of_sst2_in_their_own_case(shared_data, split):
    cased, lower = (tasks.get(name).readers[split](shared_data / "sst2") for name in ("sst2_subtrees", "sst2"))
    assert sum(example.texts[0] != example.texts[0].lower() for example in cased) > 0.9 * len(cased)
    found = [(example.texts[0].lower(), example.label) for example in cased]
    assert sorted(found) == sorted((example.texts[0], example.label) for example in lower)


def test_texts_keep_their_oddities_and_lose_the_treebanks_escapes(real):
    texts = {name: [text for example in real(name).train for text in example.texts]
             for name in ("sst2", "sst2_subtrees", "mrpc", "mnli")}  # fmt: skip
    assert any("\u00a0" in text for text in texts["sst2"])
    assert any(" ( " in text for text in texts["sst2"])
    assert not any("-lrb-" in text or "\\" in text for name in ("sst2", "sst2_subtrees") for text in texts[name])
    assert Counter(example.label for example in real("sst2").train) == {1: 3610, 0: 3310}
    assert sum(text != text.lower() for text in texts["sst2_subtrees"]) > 20_000
    assert len({example.group for example in real("sst2_subtrees").train}) > 8_000
    assert sum(text.count('"') % 2 for text in texts["mrpc"]) > 100
    assert any("\u0012" in text for text in texts["mrpc"])
    assert not any("\r" in text or "\ufeff" in text for text in texts["mrpc"])
    assert texts["mnli"][1::2].count("n/a") == 1, "what pandas takes for missing"


def test_mrpc_reads_the_same_split_from_glues_files_and_from_the_original(shared_data, tmp_path):
    original = tmp_path / "mrpc"
    (original / "glue").mkdir(parents=True)
    for name in ("msr_paraphrase_train.txt", "glue/dev.tsv"):
        (original / name).symlink_to(shared_data / "mrpc" / name)
    train = tasks.get("mrpc").readers["train"]
    assert train(original) == train(shared_data / "mrpc")


def test_the_sample_of_qqp_keeps_every_pair_and_marks_its_damaged_characters(shared_data, real):
    test = open_test(DataSpec("qqp", str(shared_data))).examples
    pairs = [*real("qqp").train, *real("qqp").dev, *test]
    assert len({example.id for example in pairs}) == len(pairs) == 10_000
    assert Counter(example.label for example in pairs) == {0: 5_000, 1: 5_000}
    assert sum("\ufffd" in "".join(example.texts) for example in pairs) == 83
    assert sum('"' in "".join(example.texts) for example in pairs) > 300
    assert real("qqp").notes == (
        "sample.tsv, not GLUE's split: dev has the pairs whose id ends in 8, test the pairs whose id ends in 9",
    )
