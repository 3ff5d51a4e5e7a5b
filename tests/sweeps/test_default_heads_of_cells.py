"""The head of a cell where none is named: by the encoder's own files, also where the hub has them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from meltpoint.adapters import encoders, modes
from meltpoint.adapters.families.huggingface import files
from meltpoint.adapters.settings import complete
from meltpoint.reports.commands.search import demo_spec
from meltpoint.sweeps.specification.cells import OpenCell, cell_space, open_cells
from meltpoint.sweeps.specification.sweep_spec import Block, SweepSpec
from meltpoint.sweeps.worker.retrain import named_head
from meltpoint.tasks import get

FROZEN = "feature_extraction"
MODULES = [
    {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{name}"}
    for place, (path, name) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")])
]


@pytest.fixture
def pooled(tiny_encoder: str, tmp_path: Path) -> Path:
    """A copy of the tiny encoder with the files of a sentence encoder beside it."""
    folder = Path(shutil.copytree(tiny_encoder.removeprefix("hf:"), tmp_path / "pooled"))
    (folder / "modules.json").write_text(json.dumps(MODULES))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    return folder


@pytest.fixture
def on_hub(pooled: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same encoder as one of the hub's, which is downloaded when it is opened."""
    monkeypatch.setattr(files, "snapshot", lambda reference: pooled)
    return "hf:some/encoder"


def opened(
    encoder: str, task: Path, mode: str = FROZEN, head: str | None = None, *overrides: str, space: Path | None = None
) -> OpenCell:  # fmt: skip
    block = Block(encoders=(encoder,), modes=(mode,), tasks=(str(task),), head=head, overrides=overrides)
    (cell,) = open_cells(SweepSpec(name="tiny", blocks=(block,), space=None if space is None else str(space)))
    return cell


@pytest.mark.parametrize("where", ["folder", "hub"])
def test_a_sentence_encoder_gets_its_own_pooling_and_plan_can_say_why(
    where: str, pooled: Path, on_hub: str, tiny_task: Path
):
    cell = opened(f"hf:{pooled}" if where == "folder" else on_hub, tiny_task)
    assert cell.head == "pooling"
    assert cell.head_source.startswith("the encoder's own pooling under a linear classifier: Reimers & Gurevych 2019")
    first = cell.space.first()
    assert (first["pooling.kind"], first["feature_extraction.layers"]) == ("encoder", "top")
    assert cell.space.sources["learning_rate"] == "feature_extraction.pooled.yaml"


@pytest.mark.parametrize("where", ["folder", "hub"])
def test_a_sentence_encoder_with_a_module_more_is_a_plain_one_and_the_cell_says_so(
    where: str, pooled: Path, on_hub: str, tiny_task: Path
):
    dense = {"idx": 3, "name": "3", "path": "3_Dense", "type": "sentence_transformers.models.Dense"}
    (pooled / "modules.json").write_text(json.dumps([*MODULES, dense]))
    encoder = f"hf:{pooled}" if where == "folder" else on_hub
    cell = opened(encoder, tiny_task)
    assert cell.head == "bcn"
    assert cell.notes[0].startswith(f"{encoder} is read as a plain encoder: its modules.json")
    with pytest.raises(ValueError, match=r"ships no mean, cls or max pooling that Meltpoint reads .*kind=mean"):
        opened(encoder, tiny_task, FROZEN, "pooling", "pooling.kind=encoder")


def test_what_compares_a_pair_is_neither_searched_nor_shown_for_single_sentences(
    pooled: Path, tiny_task: Path, tmp_path: Path
):
    pairs = {"pooling": "pooling.pair", "sentence_vectors": "sentence_vectors.pair"}
    for head, name in pairs.items():
        cell = opened(f"hf:{pooled}", tiny_task, FROZEN, head)
        assert name not in cell.space.parameters
        assert name not in complete(cell.space.first(), FROZEN, head, cell.task.kind)
        assert name in complete({}, FROZEN, head, "pair_classification")
        with pytest.raises(ValueError, match=f"{name} is not possible here: it belongs to head {head} on pairs"):
            opened(f"hf:{pooled}", tiny_task, FROZEN, head, f"{name}=kiros")
    exported = tmp_path / "exported.yaml"  # as before 2026-11-27, or of pairs
    exported.write_text("parameters: {pooling.pair: kiros, pooling.kind: max}\nprovenance: {head: pooling}\n")
    cell = opened(f"hf:{pooled}", tiny_task, FROZEN, "pooling", space=exported)
    assert dict(cell.space.first()) == {"pooling.kind": "max", "max_pieces": cell.length.max_pieces}


def test_the_native_head_of_words_is_not_said_to_have_a_pooler(tiny_encoder: str, tiny_task: Path):
    heads = modes.get("fine_tuning").default_heads
    reference = encoders.resolve(tiny_encoder, "sequence_labelling")
    assert "pooler" in opened(tiny_encoder, tiny_task, "fine_tuning").head_source
    found = heads.of(reference, "sequence_labelling")
    assert (found.name, "pooler" in found.source) == ("native", False)


def test_an_encoder_that_ships_none_gets_the_papers_head(tiny_encoder: str, tiny_task: Path):
    cell = opened(tiny_encoder, tiny_task)
    assert (cell.head, cell.head_source.rpartition(": ")[2]) == ("bcn", "Peters, Ruder & Smith 2019, A.1")


def test_a_named_head_comes_before_it_with_its_own_ranges(on_hub: str, tiny_task: Path):
    cell = opened(on_hub, tiny_task, FROZEN, "bcn")
    assert (cell.head, cell.head_source) == ("bcn", "--head")
    assert cell.space.sources["learning_rate"] == "feature_extraction.bcn.yaml"
    assert cell.space.sources["weight_decay"] == "feature_extraction.yaml"


def test_a_users_space_that_names_no_pooling_gets_the_encoders_own_with_the_default_head(
    on_hub: str, tiny_task: Path, tmp_path: Path
):
    space = tmp_path / "mine.yaml"
    space.write_text("parameters: {epochs: {choice: [1, 2]}}")
    assert opened(on_hub, tiny_task, space=space).space.first()["pooling.kind"] == "encoder"
    assert "pooling.kind" not in opened(on_hub, tiny_task, FROZEN, "pooling", space=space).space.first()
    assert (
        opened(on_hub, tiny_task, FROZEN, None, "pooling.kind=max", space=space).space.first()["pooling.kind"] == "max"
    )


@pytest.mark.parametrize(("mode", "head"), [("fine_tuning", "native"), ("stack_and_finetune", "highway_lstm")])
def test_the_other_modes_heads_stay_those_of_the_papers(mode: str, head: str, on_hub: str, tiny_task: Path):
    assert opened(on_hub, tiny_task, mode).head == head


def test_a_parameter_of_another_head_is_refused_once_the_hubs_files_say_which_head_it_is(on_hub: str, tiny_task: Path):
    with pytest.raises(ValueError, match=r"bcn\.hidden_size.* it belongs to head bcn; choose that head with --head"):
        opened(on_hub, tiny_task, FROZEN, None, "bcn.hidden_size=8")


def test_a_setting_without_a_head_is_trained_with_that_head(on_hub: str, tiny_encoder: str, tiny_task: Path):
    cell = {"mode": FROZEN, "task": str(tiny_task)}
    assert named_head({**cell, "encoder": on_hub}) == "pooling"
    assert named_head({**cell, "encoder": tiny_encoder}) == "bcn"


def test_only_an_encoder_of_the_hub_keeps_its_pooling_until_it_is_there(on_hub: str, tiny_encoder: str):
    words = ("minilm", "bert-base", tiny_encoder, on_hub)
    known = [encoders.knows_pooling(encoders.resolve(word, "sentence_classification")) for word in words]
    assert known == [True, True, True, False]
    assert [encoders.traits(word).has_pooling for word in words] == [True, False, False, False]


def test_the_demo_names_its_heads_and_their_ranges_stay():
    (frozen, tuned) = demo_spec("demo").blocks
    assert [frozen.head, tuned.head] == ["bilstm", "linear"]
    task = get("demo_similarity")
    space = cell_space(demo_spec("demo"), frozen, "minilm", FROZEN, task, frozen.head or "", has_pooling=True)
    assert (space.sources["learning_rate"], space.first()["epochs"]) == ("feature_extraction.demo.yaml", 40)
