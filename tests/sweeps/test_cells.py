"""Cells: the word of each task, names, refused lengths, and the declared size of a test split."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import transformers

from meltpoint.sweeps.specification.cells import OpenCell, cell_name, declared_test_examples, open_cells, word_of
from meltpoint.sweeps.specification.sweep_spec import SweepSpec, check
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


def test_cells_of_different_variants_have_different_names():
    names = {cell_name("minilm", "fine_tuning", f"yahoo{rest}") for rest in ("", ":health+sports", ":health+sports+x")}
    assert len(names) == 3


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


@pytest.mark.parametrize("name", ["cached", "mlflow", "default", "a.b-c_d"])
def test_names_near_those_are_free(name):
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
