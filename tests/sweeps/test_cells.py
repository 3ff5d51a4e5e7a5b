"""Cells: the word of each task, names, refused lengths, the declared size of a test split, and default heads."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import transformers

from meltpoint.adapters.families.huggingface import files
from meltpoint.adapters.settings import complete
from meltpoint.sweeps.specification.cells import OpenCell, declared_test_examples, open_cells, word_of
from meltpoint.sweeps.specification.sweep_spec import Block, SweepSpec, check
from meltpoint.sweeps.worker.retrain import named_head
from meltpoint.tasks import get
from meltpoint.tasks.core import carving, locked
from meltpoint.tasks.core.task import DataSpec, Example

MODES = ("feature_extraction",)


def own(folder: Path, name: str) -> str:
    """A task file in a folder of its own."""
    folder.mkdir()
    for split in ("train", "dev"):
        (folder / f"{split}.tsv").write_text("text\tlabel\nx\tno\ny\tyes\n")
    path = folder / "task.yaml"
    path.write_text(
        f"name: {name}\nkind: sentence_classification\nfiles: {{train: train.tsv, dev: dev.tsv}}\nformat: tsv\n"
        "columns: {text: text, label: label}\nlabels: [no, yes]\n"
    )
    return str(path)


def spec(*words: str) -> SweepSpec:
    return SweepSpec(name="x", encoders=("minilm",), modes=MODES, tasks=words)


def test_each_of_several_task_files_stands_for_its_own_task(tmp_path):
    first, second = own(tmp_path / "a", "first"), own(tmp_path / "b", "second")
    both = spec(first, "sst2", second)
    assert [word_of(both, name) for name in ("first", "second", "sst2")] == [first, second, "sst2"]


def test_a_task_file_that_is_gone_still_stands_for_the_only_task_that_has_one():
    assert word_of(spec("sst2", "/gone/task.yaml"), "mine") == "/gone/task.yaml"


def test_a_variant_stands_for_itself_in_whatever_order_its_words_were_given(tmp_path):
    words = spec("yahoo:sports+health", own(tmp_path / "a", "mine"))
    assert word_of(words, "yahoo:health+sports") == "yahoo:health+sports"


@pytest.mark.parametrize("words", [("yahoo:sports+health", "yahoo:health+sports"), None])
def test_two_words_for_one_task_are_refused(words, tmp_path):
    words = words or (own(tmp_path / "a", "same"), own(tmp_path / "b", "same"))
    with pytest.raises(ValueError, match="--task names the same task twice"):
        open_cells(spec(*words))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("65", "--set max_pieces=65: max_pieces is 65, but the longest input of {} is 64 pieces; set 64 or less."),
        ("{integer: [16, 2000]}", "max_pieces is up to 2000, but the longest input"),
        ("{choice: [16, 512]}", "max_pieces is up to 512, but the longest input"),
    ],
)
def test_a_length_that_the_encoder_cannot_read_is_refused_before_the_first_trial(tiny_encoder, tiny_task, value, said):
    asked = SweepSpec(name="x", encoders=(tiny_encoder,), modes=MODES, tasks=(str(tiny_task),))
    with pytest.raises(ValueError, match=re.escape(said.format(tiny_encoder))) as refused:
        open_cells(asked.model_copy(update={"overrides": (f"max_pieces={value}",)}))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("provenance", ["", "provenance: {seed: 0}\n"])
def test_a_length_of_a_file_or_of_an_exported_setting_is_refused_too(tiny_encoder, tiny_task, tmp_path, provenance):
    path = tmp_path / "exported.yaml"
    asked = SweepSpec(name="x", encoders=(tiny_encoder,), modes=MODES, tasks=(str(tiny_task),), space=str(path))
    path.write_text(f"parameters: {{max_pieces: 128}}\n{provenance}", encoding="utf-8")
    with pytest.raises(ValueError, match=r"exported.yaml: max_pieces is 128, but the longest input of .* is 64 pieces"):
        open_cells(asked)


@pytest.mark.parametrize("overrides", [(), ("max_pieces=64",), ("max_pieces={integer: [8, 64]}",)])
def test_the_default_length_and_what_the_encoder_can_read_are_not_refused(tiny_encoder, tiny_task, overrides):
    asked = SweepSpec(name="x", encoders=(tiny_encoder,), modes=MODES, tasks=(str(tiny_task),), overrides=overrides)
    assert len(open_cells(asked)) == 1


@pytest.mark.parametrize("value", ["task", "{choice: [none, task]}"])
def test_a_tasks_own_class_weights_are_refused_where_the_task_names_none(tiny_encoder, tiny_task, value):
    asked = SweepSpec(name="x", encoders=(tiny_encoder,), modes=MODES, tasks=(str(tiny_task),))
    with pytest.raises(ValueError, match=r"class_weights may be task, but .* names none; write balanced, or name them"):
        open_cells(asked.model_copy(update={"overrides": (f"class_weights={value}",)}))


def test_a_sweep_of_a_decoder_and_an_encoder_is_refused_with_the_line_that_says_what_the_decoder_is(
    tiny_encoder: str, tmp_path: Path
):
    decoder = shutil.copytree(tiny_encoder.removeprefix("hf:"), tmp_path / "decoder")
    transformers.GPT2Config(n_layer=1, n_embd=8, n_head=1).save_pretrained(decoder)
    for words in ((f"hf:{decoder}", tiny_encoder), (tiny_encoder, f"hf:{decoder}")):
        mixed = SweepSpec(name="x", encoders=words, modes=MODES, tasks=("demo_sentiment",))
        with pytest.raises(ValueError, match=f"^hf:{decoder}: GPT2 is a decoder, .* Name one of those.$"):
            open_cells(mixed)


@pytest.mark.parametrize(
    "name", ["cache", "Cache", "mlartifacts", "mlflow.db", "mlflow.db-wal", "MLflow.DB-shm", "Default", "x."]
)  # fmt: skip
def test_a_sweep_is_not_named_as_something_that_lies_in_the_storage_already(name):
    with pytest.raises(ValueError, match=rf"^--name {name}: that name is reserved by .* choose another\.$"):
        check(spec("sst2").model_copy(update={"name": name}))


@pytest.fixture(scope="module")
def cell(minilm) -> OpenCell:
    spec = SweepSpec(name="size", encoders=("minilm",), modes=("fine_tuning",), tasks=("demo_sentiment",))
    return open_cells(spec)[0]


def of(cell: OpenCell, task: str, test_from: str | None = None) -> int | None:
    return declared_test_examples(replace(cell, task=get(task), data=DataSpec(task, None, None, test_from)))


@pytest.mark.parametrize(
    ("task", "size"),
    [("sst2", 1821), ("conll2003", 3453), ("mrpc", 1725), ("cola", None), ("qqp", None), ("demo_sentiment", None)],
)
def test_the_size_is_what_the_task_declares_and_unknown_elsewhere(
    cell: OpenCell, task: str, size: int | None, monkeypatch
):
    monkeypatch.setattr(locked, "open_test", None)
    assert of(cell, task) == size


@pytest.mark.parametrize(
    ("slice_", "size"),
    [
        ("train[-1000:]", 1000), ("dev[:400]", 400), ("train[100:300]", 200), ("train[-300:-100]", 200),
        ("train[1000:]", None), ("dev[:-400]", None), ("train[10:-10]", None), ("train[-10:10]", None),
        ("train[:10%]", None), ("train[-10%:]", None), ("{from: train, fraction: 0.1, seed: 0}", None),
        ("{from: dev, fold: 0, of: 5, seed: 0}", None),
    ],
)  # fmt: skip
def test_a_slices_size_is_what_it_carves_off_a_long_split(cell: OpenCell, slice_: str, size: int | None):
    assert of(cell, "cola", slice_) == size
    own = replace(get("cola"), test_from=slice_)
    assert declared_test_examples(replace(cell, task=own, data=DataSpec("cola"))) == size, "of a task file"
    if size is not None:
        many = [Example(str(number)) for number in range(5000)]
        assert len(carving.parse_cut(slice_).positions(many)) == size


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
    shown = f"hf:{pooled.name}" if where == "folder" else on_hub  # notes are published with a model
    assert cell.notes[0].startswith(f"{shown} is read as a plain encoder: its modules.json")
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
