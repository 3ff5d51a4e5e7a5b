"""Specification files: what a file says is what is read; a mistake is one line with file, block, key and remedy."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from meltpoint.search_spaces import build
from meltpoint.sweeps.specification import spec_files

GOOD = """\
name: mine
summary: "what it is"
trials: 4
blocks:
  - name: "first"
    encoders: minilm
    modes: [feature_extraction, fine_tuning]
    tasks: [mrpc, stsb]
    head: linear
    set: {epochs: {integer: [2, 5], first: 3}, dropout: 0.2, schedule: constant}
  - name: "second"
    encoders: [minilm]
    modes: fine_tuning
    tasks: mrpc
    variant: again
    trials: 2
    seeds: 1
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD, encoding="utf-8")
    return path


def test_a_file_is_read_as_written_and_one_word_stands_for_a_list_of_one(file):
    found = spec_files.read(str(file))
    first, second = found.blocks
    assert (first.encoders, first.modes, first.tasks) == (
        ("minilm",), ("feature_extraction", "fine_tuning"), ("mrpc", "stsb"),
    )  # fmt: skip
    assert (first.trials, first.seeds, second.trials, second.seeds) == (None, None, 2, 1)
    assert (found.trials, found.seeds, second.variant) == (4, 5, "again")
    assert [block.size for block in found.blocks] == [4, 1]


def test_a_file_with_a_base_has_its_own_values_and_the_bases_blocks(file):
    file.write_text("name: mine\nsummary: small\nbase: table_5\ntrials: 2\n", encoding="utf-8")
    found, base = spec_files.read(str(file)), spec_files.read("table_5")
    assert (found.name, found.trials, found.base) == ("mine", 2, "table_5")
    assert (found.blocks, found.folders, found.seeds, found.split) == (base.blocks, base.folders, 5, "dev")


def test_the_values_of_a_block_survive_as_texts_of_set(file):
    first, _ = spec_files.read(str(file)).blocks
    said = build.overrides([f"{key}={text}" for key, text in first.overrides().items()])
    entries = {name: entry for name, (entry, _) in said.items()}
    assert entries == {"epochs": {"integer": [2, 5], "first": 3}, "dropout": 0.2, "schedule": "constant"}


@pytest.mark.parametrize("value", [1e-5, 2e-05, 1e20, True, None, "no", "1e-5", [1, 2.5], {"choice": ["a", "b"]}])
def test_a_value_in_a_block_means_the_same_as_behind_set(value):
    block = spec_files.FileBlock(name="b", encoders="e", modes="m", tasks="t", set={"key": value})
    ((entry, _),) = build.overrides([f"key={text}" for text in block.overrides().values()]).values()
    assert entry == value
    assert type(entry) is type(value)


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("trials: 4", "trails: 4", ("Unknown key of a specification 'trails'", "Did you mean trials")),
        ("    head: linear", "    haed: linear", ("block 1 'first'", "'haed'", "Did you mean head")),
        ("trials: 4", "split: train", ("split is 'train'", "write dev, which leaves test closed, or test")),
        ("trials: 4", "base: table_44", ("base is 'table_44'", "write one of", "table_4")),
        ("trials: 4", "trials: 0", ("trials is 0", "write a whole number of at least 1")),
        ("trials: 4", "searcher: luck", ("searcher is 'luck'", "write tpe, random or grid, as in searcher: random")),
        ("    trials: 2", "    searcher: 3", ("block 2 'second'", "searcher is 3", "write tpe, random or grid")),
        ("    trials: 2", "    trials: two", ("block 2 'second'", "trials is 'two'", "whole number")),
        ("    modes: fine_tuning", "    modes: []", ("block 2 'second'", "modes is []", "a word or a list of words")),
        ('  - name: "second"\n', "  - source: a paper\n", ("block 2", "name is missing", "as in name: ")),
        ("name: mine", "name: a/b", ("name is 'a/b'",)),
        ("set: {", "set: [{", ("mine.yaml:11", "not valid YAML")),
        ("set: {epochs: {integer: [2, 5], first: 3}, dropout: 0.2, schedule: constant}", "set: linear",
         ("block 1 'first'", "set is 'linear'", "write a mapping")),
        ("    trials: 2\n", "    trials: 2\n    trials: 3\n", ("'trials' is given twice",)),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_its_place_and_what_would_be_right(file, old, new, parts):
    assert old in GOOD
    file.write_text(GOOD.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ValueError, match=r"mine\.yaml") as refused:
        spec_files.read(str(file))
    assert "\n" not in str(refused.value)
    for part in parts:
        assert part in str(refused.value)


KEYS = (*spec_files.SpecFile.model_fields, *(f"block.{key}" for key in spec_files.FileBlock.model_fields))
WRONG = ("oddity odd", 3, 0, -1, 2.5, True, None, [], [[1]], [None], {}, {"a": 1}, {"a": {"b": []}})


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
@pytest.mark.parametrize("key", KEYS)
def test_a_value_of_a_wrong_type_is_answered_with_what_to_write_and_never_in_pydantics_words(file, key, wrong):
    document = yaml.safe_load(GOOD)
    part, _, inner = key.partition(".")
    (document["blocks"][1] if inner else document)[inner or part] = wrong
    file.write_text(yaml.dump(document), encoding="utf-8")
    try:
        spec_files.read(str(file))
    except ValueError as error:
        said = str(error)
        assert said.startswith(str(file))
        at = rf"\b{inner or part}(\.\w+)? is "
        assert re.search(at, said) or said.endswith("mapping with name, encoders, modes and tasks.")
        assert "write" in said
        assert "\n" not in said
        assert not re.search(r"nput should|valid|pydantic|tuple|dictionary|instance", said), said
    else:
        fits = (key, wrong) == ("notes", []) or isinstance(wrong, (str, int, dict, type(None)))
        assert fits, f"{key} takes no {wrong!r}"


@pytest.mark.parametrize("levels", [200, 5_000])
def test_a_file_nested_too_deep_is_one_line(file, levels):
    file.write_text(GOOD.replace("trials: 4", "trials: " + "[" * levels + "]" * levels), encoding="utf-8")
    with pytest.raises(ValueError, match=r"mine\.yaml(:3)?: ") as refused:
        spec_files.read(str(file))
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "name: x\nsummary: y\nblocks: []\n", "name: x\nsummary: y\n"])
def test_a_file_without_blocks_is_refused(file, text):
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"mine\.yaml.*blocks"):
        spec_files.read(str(file))


def test_an_unknown_name_is_refused_with_its_near_miss_and_a_missing_file_by_its_path(tmp_path):
    with pytest.raises(ValueError, match=r"'to_tune_or_nto'.*Did you mean to_tune_or_not"):
        spec_files.read("to_tune_or_nto")
    with pytest.raises(ValueError, match=r"absent\.yaml: file not found.*table_4"):
        spec_files.read(str(tmp_path / "absent.yaml"))


def test_every_shipped_file_is_named_as_it_names_itself_and_is_plain_json():
    assert spec_files.shipped()
    for name in spec_files.shipped():
        found = spec_files.read(name)
        assert found.name == name
        assert json.loads(found.model_dump_json())
        assert len({block.name for block in found.blocks}) == len(found.blocks), "a message names a block"
        assert set(found.folders) <= set(found.words("encoders"))
