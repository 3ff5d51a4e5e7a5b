"""The shipped specifications: every word is known, every space opens, and what is searched is what the papers tuned."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from meltpoint import tasks
from meltpoint.adapters import encoders, heads, modes
from meltpoint.reports import papers
from meltpoint.search_spaces.space import Space
from meltpoint.sweeps.command_line.spec_from_options import asked_spec
from meltpoint.sweeps.specification import spec_files
from meltpoint.sweeps.specification.cells import cell_space, data_spec
from meltpoint.sweeps.specification.spec_files import FileBlock
from meltpoint.sweeps.specification.sweep_options import SweepOptions
from meltpoint.sweeps.specification.sweep_spec import Block, SweepSpec, check

BLOCKS = [(name, block) for name in spec_files.shipped() for block in spec_files.read(name).blocks]
EACH = pytest.mark.parametrize(("name", "block"), BLOCKS, ids=[f"{name}: {block.name}" for name, block in BLOCKS])
FOLDERS = {"elmo": "elmo=elmo:/models/elmo", "skipthoughts": "skipthoughts=skipthoughts:/models/skipthoughts"}

COMMON = {"learning_rate", "dropout", "weight_decay", "epochs"}
TRICKS = {"schedule", "gradual_unfreezing", "discriminative_rates"}
OF_TRICKS = {"gradual_unfreezing.epochs_per_group", "discriminative_rates.factor"}
"""What Peters, Ruder & Smith 2019, appendix A, tuned; and a trick's own numbers, which act only where it is on."""
BOTH_WORLDS = {"learning_rate", "epochs"}
FROZEN_BOTH_WORLDS = {"learning_rate"}


@cache
def shipped(name: str) -> SweepSpec:
    """A shipped specification with a folder for every encoder that wants one; the folders are not opened."""
    wanted = [FOLDERS[word] for word in spec_files.read(name).folders]
    return asked_spec(SweepOptions(spec=name, replacing=wanted))


def is_task(word: str) -> bool:
    try:
        return tasks.get(word).name == word
    except ValueError:
        return False


def searched(space: Space) -> set[str]:
    return {name for name, found in space.parameters.items() if found.count != 1}


@cache
def spaces(block: Block) -> dict[tuple[str, ...], Space]:
    """Each cell's space; a head or task that is not there yet is skipped, and fails the test of the words."""
    if block.head not in heads.names() or not all(map(is_task, block.tasks)):
        pytest.skip(f"{block.head} or one of {', '.join(block.tasks)} is not there")
    spec = SweepSpec(name="any", blocks=(block,))
    found = {}
    for encoder, mode, task in (key[:3] for key in block.keys()):  # noqa: SIM118
        opened = tasks.get(task)
        heads.get(block.head or "", opened.kind)
        found[encoder, mode, task] = cell_space(spec, block, encoder, mode, opened, block.head or "")
    return found


def block_of(name: str, block: FileBlock) -> Block:
    return next(own for own in shipped(name).blocks if own.name == block.name)


@pytest.mark.parametrize("name", spec_files.shipped())
def test_every_word_of_a_specification_is_known(name):
    file = spec_files.read(name)
    unknown = [block.head for block in file.blocks if block.head not in heads.names()]
    unknown += [word for word in file.words("tasks") if not is_task(word)]
    unknown += [word for word in file.words("modes") if word not in modes.names()]
    unknown += [word for word in file.words("encoders") if word not in {*encoders.names(), *file.folders}]
    assert unknown == []


@pytest.mark.parametrize("name", spec_files.shipped())
def test_no_two_blocks_of_a_specification_have_one_cell(name):
    check(shipped(name))


@EACH
def test_the_space_of_every_cell_of_a_block_opens(name, block):
    for space in spaces(block_of(name, block)).values():
        assert space.first()


@EACH
def test_what_is_searched_is_what_the_paper_tuned(name, block):
    for (encoder, mode, _), space in spaces(block_of(name, block)).items():
        if name == "best_of_both_worlds":
            assert searched(space) == (FROZEN_BOTH_WORLDS if mode == "feature_extraction" else BOTH_WORLDS)
            assert space.first()["dropout"] == 0.1
            assert space.first()["optimiser"] == "bert_adam"
            continue
        if encoder.startswith("skipthoughts"):  # quoted: the paper did not tune it
            assert searched(space) <= COMMON
            continue
        tricks = TRICKS | OF_TRICKS if mode == "fine_tuning" else set()
        # Frozen encoders train until dev stops improving, and keep the best epoch: that is every number of epochs.
        tuned = COMMON - {"epochs"} if mode == "feature_extraction" else COMMON
        assert tuned <= searched(space) <= tuned | tricks, f"{encoder} {mode}"
        assert ("patience" in space.parameters) == (mode == "feature_extraction")


def test_finetune_only_and_stack_and_finetune_have_equal_searches_and_the_tables_say_where_epochs_are_not():
    spec = shipped("best_of_both_worlds")
    both = ("fine_tuning", "stack_and_finetune")
    blocks = [block for block in spec.blocks if block.modes[0] in both]
    assert {block.modes[0] for block in blocks} == set(both)
    assert len({(block.trials, block.seeds) for block in blocks}) == 1
    ranges = [space.parameters for block in blocks for space in spaces(block).values()]
    for name in BOTH_WORLDS:
        assert len({repr(replace(own[name], source="")) for own in ranges}) == 1, name
    assert any("epochs are not equal" in note for note in spec.notes)


@pytest.mark.parametrize("name", spec_files.shipped())
def test_all_cells_of_a_specification_have_equal_searches(name):
    spec = shipped(name)
    (search,) = {(block.trials, spec.searcher_of(block)) for block in spec.blocks}
    modes_of = {mode for block in spec.blocks for mode in block.modes}
    if modes_of == {"feature_extraction"}:
        assert search == (65, "random"), "the published setting, and 64 random ones for exact bands"
    else:
        assert search == (16, "gp")


def test_the_small_specification_is_table_2_on_a_sample_of_the_training_examples_and_nothing_else():
    whole, small = shipped("to_tune_or_not"), shipped("to_tune_or_not_small")
    assert small == whole.model_copy(update={"name": "to_tune_or_not_small", "max_train_examples": 10_000})
    assert asked_spec(SweepOptions(spec="to_tune_or_not_small", max_train_examples=50)).max_train_examples == 50


@pytest.mark.parametrize("name", [name for name in spec_files.shipped() if name.startswith(("table_", "figure_"))])
def test_what_the_paper_shows_on_dev_leaves_test_closed(name):
    spec = shipped(name)
    assert spec.split == "dev"
    assert {data_spec(spec, task).is_test_closed for task in spec.task_words()} == {True}
    assert not any(shipped(other).split == "dev" for other in ("to_tune_or_not", "best_of_both_worlds"))


@pytest.mark.parametrize("name", ["table_3", "table_4", "table_5", "table_6"])
def test_each_delta_of_a_papers_table_is_of_two_rows_of_its_specification_with_seeds_for_an_interval(name):
    spec, paper = shipped(name), papers.read(name)
    cells = {(block.encoders[0].partition(":")[0], block.modes[0], block.variant): block for block in spec.blocks}
    assert paper.differences
    for row in paper.gaps():
        sides = [(row.encoder, side.mode, side.variant) for side in (row.upper, row.lower)]
        assert all(cells[side].seeds >= 2 for side in sides)
        if name != "table_6":  # which prints Δ and no ❄
            of = {(one.encoder, one.of): one.scores for one in paper.rows}
            upper, lower = (of[row.encoder, side] for side in (row.upper, row.lower))
            assert row.scores == {column: round(upper[column] - lower[column], 1) for column in upper}


def test_the_first_specification_is_the_papers_matrix_with_five_seeds_for_ner():
    spec = shipped("to_tune_or_not")
    cells = {key[:3]: block for block in spec.blocks for key in block.keys()}  # noqa: SIM118
    columns = ("conll2003", "sst2_subtrees", "mnli", "sick_e", "sick_r", "mrpc", "stsb")
    for encoder in ("bert-base", "elmo:/models/elmo"):
        for mode in ("feature_extraction", "fine_tuning"):
            assert {key[2] for key in cells if key[:2] == (encoder, mode)} == set(columns)
    assert {block.seeds for key, block in cells.items() if key[2] == "conll2003"} == {5}
    assert {block.seeds for key, block in cells.items() if key[2] != "conll2003"} == {1}
    heads_of = {(key[0].partition(":")[0], key[1], key[2]): block.head for key, block in cells.items()}
    frozen, tuned = "feature_extraction", "fine_tuning"
    assert heads_of["bert-base", frozen, "conll2003"] == "bilstm"
    assert heads_of["elmo", frozen, "conll2003"] == "bilstm_crf"
    assert {heads_of[word, frozen, "sst2_subtrees"] for word in ("bert-base", "elmo")} == {"bcn"}
    assert {heads_of[word, frozen, task] for word in ("bert-base", "elmo") for task in columns[2:]} == {"esim"}
    assert [heads_of["bert-base", tuned, task] for task in columns] == ["linear", *["native"] * 6], "Devlin's pooler"
    assert [heads_of["elmo", tuned, task] for task in columns] == ["crf", "pooling", *["bi_attention"] * 5]


NER = {"batch_size": 64, "gradient_clip": 5.0, "patience": 25, "epochs": 75, "dropout": 0.5, "learning_rate": 1e-3}
ALLENNLP = {
    "bcn": {
        "batch_size": 100, "gradient_clip": 5.0, "patience": 5, "epochs": 40, "dropout": 0.25, "learning_rate": 1e-3,
        "schedule": "constant", "bcn.hidden_size": 300, "bcn.pool_size": 4,
    },
    "esim": {
        "batch_size": 32, "gradient_clip": 10.0, "patience": 5, "epochs": 75, "dropout": 0.5, "learning_rate": 4e-4,
        "schedule": "reduce_on_plateau", "reduce_on_plateau.factor": 0.5, "reduce_on_plateau.patience": 0,
        "esim.activation": "relu", "esim.hidden_size": 300,
    },
    "bilstm": NER | {"schedule": "constant", "bilstm.hidden_size": 200, "bilstm.layers": 2},
    "bilstm_crf": NER | {"schedule": "constant", "bilstm.hidden_size": 200, "bilstm.layers": 2},
    "crf": NER | {"schedule": "constant"},
}  # fmt: skip
"""biattentive_classification_network.jsonnet (its ELMo form has embedding_dropout 0.5), esim_elmo.jsonnet and
ner_elmo.jsonnet in allenai/allennlp, training_config: read 2026-11-26. Rates and dropout are tuned: the first ones."""


@pytest.mark.parametrize("name", ["to_tune_or_not", "table_4", "table_5", "table_6"])
def test_a_frozen_cell_begins_with_allennlps_configuration_of_its_head(name):
    for block in shipped(name).blocks:
        if block.modes != ("feature_extraction",) or block.head not in ALLENNLP:
            continue
        wanted = ALLENNLP[block.head]
        for space in spaces(block).values():
            first = space.first()
            assert {own: first[own] for own in wanted} == wanted, block.name
            tuned = {"learning_rate", "dropout"}
            assert all(space.parameters[own].count == 1 for own in wanted.keys() - tuned), block.name


def test_bert_reads_pairs_together_and_documents_whole_elmo_each_sentence_alone():
    said = {block.name: set(block.overrides) for block in shipped("to_tune_or_not").blocks}
    assert 'pairing="joint"' in said["BERT ❄ pairs"]
    assert 'context="document"' in said["BERT ❄ NER"]
    assert 'pairing="separate"' in said["ELMo ❄ pairs"]
    assert 'context="sentence"' in said["ELMo ❄ NER"]


@pytest.mark.parametrize(
    ("name", "key", "values"),
    [
        ("table_3", "bi_attention.attend", {"bi-attention": "true", "no-bi-attention": "false"}),
        ("table_4", "pairing", {"joint": '"joint"', "separate": '"separate"'}),
    ],
)
def test_the_two_sides_of_a_comparison_differ_in_one_key(name, key, values):
    first, second = shipped(name).blocks
    assert (first.head, first.tasks, first.seeds) == (second.head, second.tasks, second.seeds)
    assert {block.variant: f"{key}={values[block.variant]}" in block.overrides for block in (first, second)} == (
        dict.fromkeys(values, True)
    )
    assert {*first.overrides} ^ {*second.overrides} == {f"{key}={value}" for value in values.values()}
