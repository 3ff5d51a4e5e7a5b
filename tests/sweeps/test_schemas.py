"""The schemas for editors: those of today's readers, which accept every file that a reader accepts."""

from __future__ import annotations

import copy
import itertools
import json
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from meltpoint.adapters import settings
from meltpoint.search_spaces.build import check_entry
from meltpoint.search_spaces.documents import SHIPPED, parse
from meltpoint.search_spaces.ranges import EXTRAS, RANGE_KINDS
from meltpoint.sweeps.specification import spec_files
from meltpoint.sweeps.specification.spec_files import SpecFile
from meltpoint.tasks.core.files import schema_line
from meltpoint.tasks.core.user_task import UserTask
from meltpoint.tests.house.test_docs import ROOT
from meltpoint.tests.house.test_documented_commands import blocks
from meltpoint.tests.sweeps import write_schemas
from meltpoint.tests.tasks.layouts import LAYOUTS
from meltpoint.tests.tasks.test_user_task import KEYS, NEEDED, PAIRS, SCORES, SENTENCES, TAGS
from meltpoint.tests.tiny_parts import TASK_YAML

CHECKS = {
    name.partition(".")[0]: jsonschema.Draft7Validator(json.loads(text)) for name, text in write_schemas.texts().items()
}
EVERY = {one.name: one for one in settings.all_parameters()}


def shown(name: str) -> list[str]:
    """The YAML that a guide shows."""
    return list(blocks((ROOT / "docs" / name).read_text(encoding="utf-8"), {"yaml"}))


TASKS = [SENTENCES, PAIRS, SCORES, TAGS, TASK_YAML, *(one.yaml for one in LAYOUTS.values()), *shown("tasks.md")]
SPECS = [
    *(path.read_text("utf-8") for path in sorted(spec_files.FOLDER.glob("*.yaml"))),
    *(path.read_text("utf-8") for path in sorted((ROOT / "docs" / "results").glob("*.yaml"))), *shown("papers.md"),
]  # fmt: skip
SPACES = [*(path.read_text("utf-8") for path in sorted(SHIPPED.glob("*.yaml"))), *shown("search_spaces.md")]
ALL = {"task": TASKS, "specification": SPECS, "space": SPACES}


def in_an_editor(text: str) -> Any:
    """A document with the types that YAML 1.1 gives its values, as JSON has them: an editor has no stranger ones."""
    return json.loads(json.dumps(yaml.safe_load(text), default=str))


def faults(kind: str, document: object) -> list[str]:
    return [error.message for error in CHECKS[kind].iter_errors(document)]


def test_the_shipped_schemas_are_those_of_todays_readers() -> None:
    kept = {path.name: path.read_text(encoding="utf-8") for path in write_schemas.FOLDER.iterdir()}
    assert kept == write_schemas.texts(), "run: python -m meltpoint.tests.sweeps.write_schemas"
    for check in CHECKS.values():
        check.check_schema(check.schema)


@pytest.mark.parametrize(
    ("kind", "text"),
    [(kind, text) for kind, texts in ALL.items() for text in texts],
    ids=lambda value: " ".join(value.split())[:40],
)  # fmt: skip
def test_every_file_that_is_shipped_or_shown_fits_its_schema(kind: str, text: str) -> None:
    is_task = kind == "task"
    for document in (yaml.load(text, Loader=yaml.BaseLoader), in_an_editor(text)) if is_task else (parse(text, "it"),):
        assert faults(kind, document) == []
        assert faults(kind, {**document, "oddity": 1}) != []


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("task", SENTENCES.replace("text: review", "txt: review")),
        ("task", SENTENCES.replace("format: tsv", "format: tvs")),
        ("task", SENTENCES.replace("sentence_classification", "sentiment")),
        ("task", SENTENCES + "dev_from: {form: train, fraction: 0.1}\n"),
        ("task", SENTENCES.replace("kind: sentence_classification\n", "")),
        ("specification", SPECS[0].replace("encoders:", "encoder:")),
        ("specification", "name: mine\nsummary: no blocks\n"),
        ("specification", "name: mine\nsummary: text\nbase: table_5\ntrials: many\n"),
        ("space", "parameters: {learning_rat: 1.0}"),
        ("space", "parameters: {learning_rate: {log_unform: [1.0e-5, 1.0e-4]}}"),
        ("space", "parameters: {learning_rate: {uniform: [0.1, 0.2], choice: [0.1]}}"),
        ("space", "parameters: {optimiser: adam}"),
        ("space", "early_stopping: {grace: 1}"),
        ("space", "modes: {fine_tune: {parameters: {}}}"),
    ],
)  # fmt: skip
def test_a_misspelled_key_or_word_is_marked(kind: str, text: str) -> None:
    assert faults(kind, in_an_editor(text)) != []


def test_a_task_that_is_read_fits_whatever_its_values_are() -> None:
    accepted = set()
    values = ("oddity", "3", "no", "null", "[a, b]", "{a: b}", "[0, 5]", "true", "tab", "train[-5:]", "utf-8", "iob1")
    read = {value: (yaml.load(value, Loader=yaml.BaseLoader), in_an_editor(value)) for value in values}
    tasks = [yaml.load(text, Loader=yaml.BaseLoader) for text in TASKS]
    for key, task, value in itertools.product(KEYS, tasks, values):
        document = copy.deepcopy(task)
        *outer, inner = key.split(".")
        place = document
        for part in outer:
            place = place.setdefault(part, {**NEEDED.get(part, {})})
        place[inner] = read[value][0]
        try:
            UserTask.model_validate(document)
        except ValidationError:
            continue
        accepted.add(key)
        place[inner] = read[value][1]
        assert faults("task", document) == [], (task["name"], key, value)
    assert len(accepted) > 25, accepted


VALUES = st.sampled_from(
    [0, 1, 2, 3, 0.5, 1e-4, 16, 512, True, False, "none", "adamw", "constant", "mean", "bf16", None]
)
RANGES = st.dictionaries(
    st.sampled_from([*RANGE_KINDS, *EXTRAS, "frist"]),
    st.one_of(VALUES, st.lists(VALUES, max_size=3), st.just("a source"), st.just({"schedule": ["constant"]})),
    max_size=3,
)  # fmt: skip


@given(st.sampled_from(sorted(EVERY)), st.one_of(VALUES, RANGES))
def test_an_entry_that_a_space_takes_fits(name: str, entry: object) -> None:
    try:
        check_entry(name, entry, EVERY, "here")
    except ValueError:
        return
    assert faults("space", {"parameters": {name: entry}}) == []


@given(
    st.fixed_dictionaries({}, optional={
        key: st.one_of(VALUES, st.lists(st.sampled_from(["minilm", "fine_tuning", 3]), max_size=2), st.just({"a": "b"}))
        for key in SpecFile.model_fields if key not in ("base", "blocks")
    })
)  # fmt: skip
def test_a_specification_that_is_read_fits(changes: dict[str, object]) -> None:
    document = {"name": "mine", "summary": "one", "blocks": [
        {"name": "a", "encoders": "minilm", "modes": ["fine_tuning"], "tasks": "sst2"}
    ], **changes}  # fmt: skip
    try:
        SpecFile.model_validate(document)
    except ValidationError:
        return
    assert faults("specification", document) == []


def test_a_written_file_names_a_schema_that_is_there() -> None:
    for path in write_schemas.FOLDER.iterdir():
        line = schema_line(path.name.partition(".")[0])
        assert line.endswith(f"/{path.relative_to(ROOT).as_posix()}")
        assert yaml.safe_load(line) is None
