"""A sweep of blocks: cells that differ in their variant only are apart in the ledger, the tables and the exports."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from meltpoint.search_spaces import files
from meltpoint.sweeps.driver import plan
from meltpoint.sweeps.driver.start import differences, header, settle_specification
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import Trial
from meltpoint.sweeps.results.export import export_cells
from meltpoint.sweeps.results.summary import summarise
from meltpoint.sweeps.results.sweep_file import SweepFile, read_sweep
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import cell_name, open_cells
from meltpoint.sweeps.specification.provenance import code_version
from meltpoint.sweeps.specification.sweep_options import Resources
from meltpoint.sweeps.specification.sweep_spec import Block, SweepSpec, check
from meltpoint.sweeps.tracking.run_contents import cell_tags
from meltpoint.sweeps.worker.retrain import load_point
from meltpoint.tests.reports.stored_sweeps import render
from meltpoint.tests.sweeps.planning import note_of

FAST = ("epochs=1", "batch_size=8", "learning_rate={choice: [0.001, 0.01]}", "dropout=0.1")


@pytest.fixture
def blocks(tiny_encoder: str, tiny_task: Path, quick_space: Path) -> SweepSpec:
    """Three cells of one encoder, mode and task, told apart by their variants, and one without."""
    common = {"encoders": (tiny_encoder,), "tasks": (str(tiny_task),)}
    frozen = {**common, "modes": ("feature_extraction",), "seeds": 1, "trials": 2}
    return SweepSpec(
        name="tiny", space=str(quick_space),
        blocks=(
            Block(name="one", **frozen, head="linear", variant="one", overrides=FAST),
            Block(name="two", **frozen, head="linear", variant="two", overrides=FAST),
            Block(name="mlp", **frozen, head="mlp", variant="mlp", overrides=(*FAST, "mlp.hidden_size=4")),
            Block(name="tuned", **common, modes=("fine_tuning",), head="linear", trials=3, seeds=2, overrides=FAST[:2]),
        ),
    )  # fmt: skip


def drive(spec: SweepSpec, ledger: Ledger, make_record) -> Planner:
    """Every trial of a sweep as the planner asks for it, in a real ledger, with scores made up from its number."""
    opened = open_cells(spec)
    settle_specification(ledger, spec, opened)
    planner = Planner(spec, opened, ledger.records())
    while not isinstance(proposal := planner.next(), str):
        planner.begin(proposal)
        head_start = 0.1 * len(proposal.variant) + 0.01 * proposal.number
        said = {"test": {"accuracy": 0.25 + head_start}} if proposal.role == "final" else {}
        record = make_record(proposal, (0.5 + head_start,), **said)
        ledger.write(record)
        planner.end(record)
    return planner


def test_each_block_opens_with_its_own_head_space_and_counts(blocks):
    opened = open_cells(blocks)
    assert [(c.variant, c.head, c.trials, c.seeds) for c in opened] == [
        ("one", "linear", 2, 1), ("two", "linear", 2, 1), ("mlp", "mlp", 2, 1), ("", "linear", 3, 2),
    ]  # fmt: skip
    assert len({cell.key for cell in opened}) == 4
    tags = [cell_tags("tiny", cell, "", "cell", "running") for cell in opened]
    assert [one.get("meltpoint.variant") for one in tags] == ["one", "two", "mlp", None]
    assert "mlp.hidden_size" in opened[2].space.parameters
    assert len(list(opened[0].space.points())) == 2
    assert not opened[3].space.is_finite


def test_variants_stay_apart_from_the_ledger_to_the_tables_and_the_exports(blocks, tmp_path, make_record):
    ledger = Ledger(tmp_path / "tiny")
    drive(blocks, ledger, make_record)
    assert Planner(blocks, open_cells(blocks), ledger.records()).is_complete()
    kept = [json.loads(path.read_text(encoding="utf-8")) for path in ledger.trials.glob("*.json")]
    assert sorted(record["variant"] for record in kept) == ["", *[""] * 4, *["mlp"] * 3, *["one"] * 3, *["two"] * 3]

    summary = summarise(ledger)
    assert summary.state == "done"
    assert [summary.seeds_of(cell) for cell in summary.cells] == [1, 1, 1, 2]
    assert [len(cell.finals) for cell in summary.cells] == [1, 1, 1, 2]
    said = summary.as_json()["cells"]
    assert [cell.get("variant") for cell in said] == ["one", "two", "mlp", None]
    assert "variant" not in said[3]

    report = render(summary)
    rows = [line for line in report["report.md"].splitlines() if line.startswith("| ❄")]
    assert [row.split("|")[1].strip() for row in rows] == [
        "❄ feature_extraction · one", "❄ feature_extraction · two", "❄ feature_extraction · mlp",
    ]  # fmt: skip
    lines = list(csv.DictReader(io.StringIO(report["report.csv"])))
    assert [line["variant"] for line in lines] == ["one", "two", "mlp", ""]
    assert len({line["best_trial"] for line in lines}) == 4

    written = export_cells(summary, tmp_path / "out")
    stem = cell_name(*summary.cells[3].header.key)[: -len("fine_tuning.tiny_reviews")]
    assert [path.name for path in written] == [
        *(f"{stem}feature_extraction.tiny_reviews.{word}.yaml" for word in ("one", "two", "mlp")),
        f"{stem}fine_tuning.tiny_reviews.yaml",
    ]  # fmt: skip
    for path, cell in zip(written, summary.cells, strict=True):
        point = load_point(str(path))
        assert point.provenance["trial"] == cell.best.id
        assert point.provenance.get("variant", "") == cell.header.variant
        assert files.read_cell(path)["head"] == cell.header.head
    (one,) = export_cells(summary, tmp_path / "one", only=written[1].stem)
    assert one.name == written[1].name


def test_a_trial_that_was_cut_off_goes_on_in_the_cell_of_its_variant(blocks):
    frozen = blocks.model_copy(update={"blocks": blocks.blocks[:3]})
    opened = open_cells(frozen)
    first = Planner(frozen, opened, []).next()
    order = note_of(first)
    planner = Planner(frozen, opened, [])

    def again() -> list[Trial]:
        return [proposal for progress in planner.cells.values() for proposal in progress.again]

    planner.recall([order])
    assert [proposal.variant for proposal in again()] == [first.variant]
    planner.recall([{**order, "variant": ""}])
    assert len(again()) == 1, "another cell's order is nobody's"


def test_plan_prices_each_block_and_names_variants_only_where_there_are_any(blocks, tmp_path):
    spec = blocks.model_copy(update={"left_out": ("elmo",)})
    planned = plan.plan_sweep(spec, Resources(storage=str(tmp_path)))
    document = planned.as_json()
    assert [cell["trials"] for cell in document["cells"]] == [2 + 1, 2 + 1, 2 + 1, 3 + 2]
    assert [cell.get("variant", None) for cell in document["cells"]] == ["one", "two", "mlp", None]
    assert all(cell["estimated_seconds"] > 0 for cell in document["cells"])
    assert document["left_out"] == ["elmo"]
    assert any("elmo" in note for note in planned.notes)
    assert "left_out" not in plan.plan_sweep(blocks, Resources(storage=str(tmp_path))).as_json()


def test_two_blocks_with_one_cell_are_refused_with_both_names_and_the_remedy(blocks):
    same = blocks.blocks[0].model_copy(update={"name": "same", "head": "mlp"})
    with pytest.raises(ValueError, match=r"'one' and 'same' both have the cell .*\.one; give one.*variant"):
        check(blocks.model_copy(update={"blocks": (*blocks.blocks, same)}))


@pytest.mark.parametrize("word", ["a b", "a.b", "-a", "ä"])
def test_a_variant_that_a_file_name_cannot_hold_is_refused(blocks, word):
    odd = blocks.blocks[0].model_copy(update={"variant": word})
    with pytest.raises(ValueError, match="block 'one': variant"):
        check(blocks.model_copy(update={"blocks": (odd,)}))


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"head": "bilstmm"}, ("block 'one'", "Did you mean bilstm")),
        ({"overrides": ("dropuot=0.1",)}, ("block 'one'", "dropuot", "Did you mean dropout")),
        ({"overrides": ("mlp.hidden_size=4",)}, ("block 'one'", "mlp.hidden_size", "belongs to head mlp")),
    ],
)
def test_a_mistake_in_a_block_names_the_block(blocks, changes, parts):
    wrong = blocks.blocks[0].model_copy(update=changes)
    with pytest.raises(ValueError, match=r".") as refused:
        open_cells(blocks.model_copy(update={"blocks": (wrong,)}))
    for part in parts:
        assert part in str(refused.value)


def test_cells_of_an_encoder_that_was_left_out_join_later_and_nothing_else_may(blocks, tmp_path, tiny_encoder):
    before = blocks.model_copy(update={"left_out": ("elmo",), "origin": "mine"})
    joining = blocks.blocks[0].model_copy(update={"name": "elmo", "encoders": ("elmo:/somewhere",)})
    said = {"blocks": (*blocks.blocks, joining), "left_out": ()}
    after = before.model_copy(update={**said, "replaced": ("elmo=elmo:/somewhere",)})
    assert after.differences(before) == []
    assert any("is gone" in line for line in before.differences(after))
    other = before.model_copy(update={**said, "replaced": ()})
    assert any("is new" in line for line in other.differences(before))
    changed = tuple(block.model_copy(update={"trials": 9}) for block in blocks.blocks)
    assert before.model_copy(update={"blocks": changed}).differences(before) == ["trials 2 → 9", "trials 3 → 9"]


def test_what_joined_is_written_down(blocks, tmp_path):
    ledger = Ledger(tmp_path / "tiny")
    less = blocks.model_copy(update={"blocks": blocks.blocks[:3], "left_out": ("elmo",)})
    settle_specification(ledger, less, open_cells(less))
    joined = blocks.blocks[3].encoders[0]
    more = blocks.model_copy(update={"replaced": (f"elmo={joined}",)})
    with pytest.raises(ValueError, match="would grow") as refused:  # its encoder was there before
        settle_specification(ledger, blocks, open_cells(blocks))
    assert "is new" in str(refused.value)
    settle_specification(ledger, more, open_cells(more))
    assert [cell.variant for cell in read_sweep(ledger).cells] == ["one", "two", "mlp", ""]
    now = SweepFile(spec=more, code=code_version(), cells=tuple(header(cell) for cell in open_cells(more)))
    assert differences(read_sweep(ledger), now) == []


FILE = """\
name: whole
summary: "two heads on one task"
trials: 2
seeds: 1
blocks:
  - {{name: "linear", encoders: tiny, modes: feature_extraction, tasks: "{task}", head: linear, variant: linear,
     set: {set}}}
  - {{name: "mlp", encoders: tiny, modes: feature_extraction, tasks: "{task}", head: mlp, variant: mlp,
     set: {set}}}
"""


@pytest.mark.slow
def test_a_specification_runs_whole_through_ray_and_mlflow_and_trains_again(tiny_encoder, tiny_task, tmp_path):
    path = tmp_path / "whole.yaml"
    values = "{epochs: 1, batch_size: 8, learning_rate: {choice: [0.001, 0.01]}}"
    path.write_text(FILE.format(task=tiny_task, set=values), encoding="utf-8")
    door = [sys.executable, "-m", "meltpoint.launch"]
    words = [*door, "sweep", "--spec", str(path), "--with", f"tiny={tiny_encoder}", "--storage", str(tmp_path)]
    words += ["--no-default-finals"]
    done = subprocess.run(words, capture_output=True, encoding="utf-8", timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    summary = summarise(Ledger(tmp_path / "whole"))
    assert (summary.state, [cell.counts["finished"] for cell in summary.cells]) == ("done", [2, 2])

    from mlflow.tracking import MlflowClient  # slow to import, and no other test here needs it

    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("whole")
    runs = client.search_runs([experiment.experiment_id])
    tags = [(run.data.tags["meltpoint.role"], run.data.tags["meltpoint.variant"]) for run in runs]
    assert Counter(tags) == {
        (role, variant): count for role, count in (("cell", 1), ("search", 2), ("final", 1))
        for variant in ("linear", "mlp")
    }  # fmt: skip
    parents = {run.info.run_id: run.data.tags["meltpoint.variant"] for run in runs if "mlflow.parentRunId" not in
               run.data.tags}  # fmt: skip
    for run in runs:
        parent = run.data.tags.get("mlflow.parentRunId")
        assert parent is None or parents[parent] == run.data.tags["meltpoint.variant"]

    for cell in summary.cells:
        (exported,) = (tmp_path / "whole" / "exports").glob(f"*.{cell.header.variant}.yaml")
        again = subprocess.run(
            [*door, "train", str(exported), "--json"], capture_output=True, encoding="utf-8", check=True
        )
        assert json.loads(again.stdout)["dev"] == cell.best.dev
