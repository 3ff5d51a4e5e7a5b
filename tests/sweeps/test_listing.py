"""list: every plug-in there is has a row, in plain values, and the rows say what the plug-ins say."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
import typer

from meltpoint import tasks
from meltpoint.adapters import encoders, heads, modes, tricks
from meltpoint.search_spaces import documents
from meltpoint.sweeps.command_line.listing import ROWS, inventory, parameters_of_cell
from meltpoint.sweeps.machine.terminal import exit_on_error
from meltpoint.sweeps.specification.cells import cell_space
from meltpoint.sweeps.specification.sweep_spec import Block, SweepSpec

ONE_LINE = ("summary", "description")


def row(what: str, name: str) -> dict[str, object]:
    return next(row for row in inventory(what) if row["name"] == name)


@pytest.mark.parametrize("what", ROWS)
def test_every_row_is_plain_json_with_one_set_of_keys_and_its_name_first(what: str) -> None:
    rows = inventory(what)
    assert json.loads(json.dumps(rows)) == rows
    assert all(next(iter(row)) == "name" for row in rows)
    if what != "encoders":  # its last rows stand for whole families
        assert len({tuple(row) for row in rows}) == 1
    for row in rows:
        assert all("\n" not in str(value) for value in row.values())
        assert all(row.get(key) for key in ONE_LINE if key in row), row


@pytest.mark.parametrize(
    ("what", "names"),
    [("modes", modes.names), ("tasks", tasks.names), ("heads", heads.names), ("tricks", tricks.names)],
)
def test_every_plug_in_has_one_row(what: str, names: object) -> None:
    assert callable(names)
    assert [row["name"] for row in inventory(what)] == names()


def test_every_shipped_space_has_a_row_with_all_its_parameters() -> None:
    rows = {str(row["name"]): row["parameters"] for row in inventory("spaces")}
    assert set(rows) == {path.name for path in documents.SHIPPED.glob("*.yaml")}
    for name, shown in rows.items():
        lines = (documents.SHIPPED / name).read_text(encoding="utf-8").splitlines()
        keys = [line.strip().partition(":")[0] for line in lines if line.startswith("  ")]
        assert isinstance(shown, list)
        assert [text.partition(" ")[0] for text in shown] == keys
        assert Path(name).suffix == ".yaml"


def test_a_range_is_written_by_its_kind_and_a_fixed_value_as_itself() -> None:
    shown = row("spaces", "fine_tuning.yaml")["parameters"]
    assert isinstance(shown, list)
    assert "learning_rate log_uniform 1e-05…0.0001" in shown
    assert "epochs 2 | 3 | 4" in shown
    assert "discriminative_rates false | true" in shown
    assert "encoder_dropout 0.1" in shown


def test_a_task_says_its_metric_its_splits_and_whether_test_has_labels() -> None:
    found = row("tasks", "sst2")
    assert (found["metric"], found["splits"], found["test_labels"]) == ("accuracy", ["train", "dev", "test"], "public")
    assert row("tasks", "cola")["test_labels"] == "hidden"


@pytest.mark.parametrize("mode", modes.names())
def test_a_modes_default_heads_are_those_that_its_cells_get(mode: str) -> None:
    of = modes.get(mode).default_heads.of
    others = {"ELMo": encoders.traits("elmo"), "sentence encoders": encoders.traits("bge-base")}
    for line in row("modes", mode)["default_heads"]:  # type: ignore[attr-defined]
        kind, _, said = line.partition(": ")
        usual, _, rest = said.rstrip(")").partition(" (")
        differing = dict(part.split(": ") for part in rest.split("; ") if part)
        assert usual == of(encoders.TRANSFORMERS, kind).name
        for who, traits in others.items():
            assert differing.get(who, usual) == of(traits, kind).name, (kind, who)


def test_the_space_of_a_cell_names_every_parameter_with_its_file_and_source() -> None:
    found = {str(row["parameter"]): row for row in parameters_of_cell("stack_and_finetune", "elmo:anywhere", "sst2")}
    assert found["learning_rate"]["file"] == "stack_and_finetune.elmo.yaml"
    assert found["stack_and_finetune.largest_gap"]["file"] == "stack_and_finetune.yaml"
    assert all(row["source"] for row in found.values())
    assert [found[name]["searched"] for name in ("weight_decay", "gradual_unfreezing", "batch_size")] == [True] * 3
    assert found["gradual_unfreezing.epochs_per_group"]["searched"] is False


@pytest.mark.parametrize(
    ("encoder", "mode", "there"),
    [
        ("minilm", "feature_extraction", True),
        ("minilm", "fine_tuning", False),
        ("bert-base", "feature_extraction", False),
    ],
)
def test_the_ranges_of_pooled_vectors_follow_for_encoders_that_ship_a_pooling(
    encoder: str, mode: str, there: bool
) -> None:
    rows = parameters_of_cell(mode, encoder, "")
    pooled = [row for row in rows if row["file"] == "feature_extraction.pooled.yaml"]
    assert rows[len(rows) - len(pooled) :] == pooled
    assert ({"learning_rate", "pooling.kind"} <= {row["parameter"] for row in pooled}) == there


def test_the_space_of_a_cell_under_a_head_is_the_one_that_a_sweep_searches() -> None:
    for mode, encoder, task, head in (
        ("feature_extraction", "minilm", "sst2", "bcn"), ("feature_extraction", "minilm", "mrpc", "pooling"),
        ("fine_tuning", "elmo:anywhere", "mrpc", "bi_attention"),
        ("stack_and_finetune", "bert-base", "conll2003", "bilstm"),
    ):  # fmt: skip
        block = Block(encoders=(encoder,), modes=(mode,), tasks=(task,))
        spec = SweepSpec(name="any", blocks=(block,))
        space = cell_space(spec, block, encoder, mode, tasks.get(task), head, encoder == "minilm")
        rows = {str(row["parameter"]): row for row in parameters_of_cell(mode, encoder, task, head)}
        assert {name: row["file"] for name, row in rows.items()} == space.sources
        assert {name for name, row in rows.items() if row["searched"]} == {
            name for name, one in space.parameters.items() if one.count != 1
        }


def test_the_rows_of_files_that_one_head_reads_follow_where_no_head_is_named() -> None:
    found = [row for row in parameters_of_cell("feature_extraction", "bert-base", "") if row["parameter"] == "dropout"]
    assert [row["file"] for row in found] == ["feature_extraction.yaml", "feature_extraction.bcn.yaml"]
    assert [row["first"] for row in found] == ["0.5", "0.25"]


def test_a_probe_lists_no_parameter_of_gradient_steps() -> None:
    found = {row["parameter"] for row in parameters_of_cell("probe", "minilm", "")}
    assert {"probe.c", "probe.depth", "pooling.kind"} <= found
    assert not found & {"learning_rate", "epochs", "batch_size", "dropout"}


@pytest.mark.parametrize(
    ("words", "message"),
    [(("fine_tunning", "minilm", ""), "fine_tuning"), (("fine_tuning", "minlm", ""), "minilm"),
     (("fine_tuning", "minilm", "sst"), "sst2")],
)  # fmt: skip
def test_the_space_of_an_unknown_cell_is_refused_with_its_near_misses(
    words: tuple[str, str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=f"Did you mean .*{message}"):
        parameters_of_cell(*words)


@pytest.mark.parametrize("goes_on", [True, False])
def test_only_a_command_that_goes_on_promises_that_what_finished_is_kept(
    capsys: pytest.CaptureFixture[str], goes_on: bool
) -> None:
    with pytest.raises(typer.Exit) as ended, exit_on_error(goes_on):
        raise OSError(errno.ENOSPC, "No space left on device", "out.csv")
    assert ended.value.exit_code == 1
    kept = "; finished trials are kept, and the same command resumes it" if goes_on else ""
    assert capsys.readouterr().err == f"meltpoint: No space left on device (out.csv){kept}.\n"
