"""`report --format json`: strict JSON that its schema describes, with the figures of the summary and the table."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from meltpoint.reports.report import document_text
from meltpoint.reports.results import SweepResults, results_of
from meltpoint.sweeps.search.selection import Spread, spread
from meltpoint.tests.fixed_comparer import FixedComparer
from meltpoint.tests.reports.test_ensembles import made

MODES = ("feature_extraction", "fine_tuning", "stack_and_finetune")


def parsed(results: SweepResults) -> dict[str, Any]:
    """The document, which has to be strict."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    found: dict[str, Any] = json.loads(document_text(results), parse_constant=refuse)
    return found


@pytest.fixture(scope="module")
def validator(request: pytest.FixtureRequest) -> Draft202012Validator:
    """Of the schema in the documents, in which every field of an object has to be described."""
    schema = json.loads((Path(__file__).parents[2] / "docs" / "report.schema.json").read_text(encoding="utf-8"))
    for one in (schema, *schema["$defs"].values()):
        if "properties" in one:
            one["additionalProperties"] = False
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.fixture
def results(make_cell, make_sweep) -> SweepResults:
    """Finished, hidden, failed and running cells, a published setting, an ensemble, a second metric, a variant."""
    ice, fire = (
        make_cell(mode, "mrpc", finals=[(0.8, mean), (0.8, mean + 0.02)], columns=("f1",), beside={"f1": mean},
                  task_parameters=770, notes=("test = train[-100:]",))
        for mode, mean in zip(MODES, (0.70, 0.80), strict=False)
    )  # fmt: skip
    default = [
        final.model_copy(update={"id": f"default{final.seed}", "setting": final.setting | {"learning_rate": 1.0}})
        for final in fire.finals
    ]
    fire = replace(fire, default_finals=default, default_dev=spread([0.8, 0.8]), default_test=spread([0.78, 0.79]))
    others = [
        make_cell(MODES[2], "mrpc", search=(), failed=["nan"], columns=("f1",)),
        make_cell(MODES[1], "mnli", finals=[(0.7, "hidden")], variant="crf"),
        make_cell(MODES[1], "sst2", search=(), planned=4, running=2),
        make_cell(MODES[0], "sst2", finals=[(0.7, None)]),
    ]
    sweep = replace(make_sweep(ice, fire, *others, state="running"), ensembles=[made(task="mrpc", test=())])
    return results_of(sweep, comparer=FixedComparer(0.012))


def test_the_document_is_what_the_schema_says_which_refuses_what_is_not_described(results, validator):
    document = parsed(results)
    validator.validate(document)
    document["deltas"][0]["low"] = None
    assert not validator.is_valid(document), "no interval, and no reason"
    document = parsed(results)
    document["cells"][0]["more"] = 1
    assert not validator.is_valid(document)


def test_every_cell_has_the_figures_of_the_summary(results):
    cells = parsed(results)["cells"]
    for shown, cell in zip(cells, results.summary.cells, strict=True):
        key = tuple(shown[name] for name in ("encoder", "mode", "task", "variant"))
        assert key == (*cell.header.key, "")[:4]
        assert shown["trials"] == cell.counts
        assert shown["dev_mean"] == (cell.dev.mean if cell.dev else None)
        assert shown["test_std"] == (cell.test.std if cell.test else None)
        assert len(shown["seeds"]) == len(shown["dev_scores"]) == len(shown["test_scores"])
        assert shown["setting"] == (cell.best.setting if cell.best else None)
    ice, fire, broken, hidden, running, unscored = cells
    assert fire["test_scores"] == pytest.approx([0.80, 0.82])
    assert fire["default_test_mean"] == pytest.approx(0.785)
    assert fire["default_seeds"] == [0, 1]
    assert fire["tuning"] == {
        "split": "test", "delta": pytest.approx(0.025), "low": pytest.approx(0.013), "high": pytest.approx(0.037),
        "p": 0.001, "seeds": 5, "words": "tuning bought +2.5 [+1.3, +3.7]",
    }  # fmt: skip
    assert ice["tuning"]["delta"] is None
    assert ice["tuning"]["words"] == "the published setting has no finals"
    assert broken["tuning"] is running["tuning"] is None
    assert hidden["test_scores"] == unscored["test_scores"] == [None]
    assert hidden["variant"] == "crf"


def test_the_differences_are_those_of_the_table_and_the_family_is_marked(results):
    own, f1 = parsed(results)["deltas"]
    assert (own["task"], own["a"], own["b"]) == ("mrpc", "fine_tuning", "feature_extraction")
    assert [(one["metric"], one["in_family"], one["p_holm"]) for one in (own, f1)] == [
        ("accuracy", True, 0.001), ("f1", False, None),
    ]  # fmt: skip
    assert (own["delta"], own["low"], own["high"]) == pytest.approx((0.1, 0.088, 0.112))
    assert own["words"] == "fine-tuning is better than feature extraction"


def test_a_score_that_is_no_number_is_null_and_a_sweep_that_has_just_begun_has_a_document(
    make_cell, make_sweep, validator
):
    cell = make_cell(finals=[(0.8, 0.7), (0.8, 0.7)])
    finals = [cell.finals[0].model_copy(update={"test": {"accuracy": math.nan}}), cell.finals[1]]
    cell = replace(cell, finals=finals, test=Spread(math.nan, math.inf, 2))
    document = parsed(results_of(make_sweep(cell), comparer=FixedComparer()))
    validator.validate(document)
    assert document["cells"][0]["test_scores"] == [None, 0.7]
    assert document["cells"][0]["test_mean"] is document["cells"][0]["test_std"] is None
    begun = make_sweep(*(make_cell(mode, search=(), planned=4) for mode in MODES), state="running")
    document = parsed(results_of(begun))
    validator.validate(document)
    assert (document["state"], document["deltas"]) == ("running", [])
