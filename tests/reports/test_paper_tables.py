"""Published numbers: every row occurs in the paper's text, and belongs to a cell of its specification."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from meltpoint.reports import papers
from meltpoint.sweeps.specification import spec_files

PETERS = ["to_tune_or_not", "table_3", "table_4", "table_5", "table_6"]
COUNTS = {"to_tune_or_not": 47, "table_3": 8, "table_4": 8, "table_5": 5, "table_6": 10, "best_of_both_worlds": 5}
"""Numbers that each table prints, by hand: 5 + 4 · 7 + 2 · 7; 2 · 4; 2 · 4; 5; 2 · 5; the gains of A, B and C."""


@pytest.fixture(scope="module")
def peters(shared: Path) -> str:
    return text_of(shared, "to_tune_or_not_paper")


def text_of(shared: Path, name: str) -> str:
    """A paper's text; the gaps where its marks for frozen and tuned were lost count as one space, as others do."""
    lines = (shared / "papers" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return "".join(f"{' '.join(line.split())}\n" for line in lines)


def printed(scores: dict[str, float]) -> str:
    """A row as in the text, with one decimal per number."""
    return " ".join(f"{score:.1f}" for score in scores.values())


def test_the_tables_are_those_whose_numbers_were_counted_by_hand():
    assert papers.shipped() == sorted(COUNTS)
    for name, count in COUNTS.items():
        table = papers.read(name)
        assert sum(len(row.scores) for row in (*table.rows, *table.differences)) == count


@pytest.mark.parametrize("name", [name for name in PETERS if name != "table_5"])
def test_every_row_stands_in_the_paper_as_a_line_of_its_numbers_in_order(name, peters):
    table = papers.read(name)
    lines = [line.replace(" - ", " ") for line in peters.splitlines() if re.search(r"\d\.\d", line)]
    for row in (*table.rows, *(gap for gap in table.differences if gap.scores)):
        assert list(row.scores) == [column for column in table.columns if column in row.scores], "the columns' order"
        assert any(line.endswith(printed(row.scores)) for line in lines), f"{name}: {printed(row.scores)}"


def test_the_rows_of_table_5_stand_in_the_paper_by_their_configuration(peters):
    table = papers.read("table_5")
    lines = {
        ("feature_extraction", "bilstm-crf"): "+ BiLSTM + CRF 95.5", ("feature_extraction", "crf"): "+ CRF 91.9",
        ("fine_tuning", "crf-unfreezing"): "+ CRF + gradual unfreeze 95.5",
        ("fine_tuning", "bilstm-crf-unfreezing"): "+ BiLSTM + CRF + gradual unfreeze 95.2",
        ("fine_tuning", "crf"): "+ CRF 95.1",
    }  # fmt: skip
    assert {(row.mode, row.variant): row.scores["NER"] for row in table.rows} == {
        key: float(line.rpartition(" ")[2]) for key, line in lines.items()
    }
    for line in lines.values():
        assert f"\n{line}\n" in peters


def test_the_gains_of_the_second_paper_stand_in_its_text(shared):
    text = text_of(shared, "best_of_both_worlds_paper")
    gains = {row.metric: row.scores for row in papers.read("best_of_both_worlds").differences[:2]}
    assert gains == {"word_accuracy": {"CoNLL-2003": 0.99}, "span_f1": {"CoNLL-2003": 6.8}}
    phrases = ["accuracy of 0.99% for the accuracy and 0.068 on the F1 score", "0.72% improvements"]
    phrases += ["0.005 improvement for the F1", "out-performs BERT-only model by 4.7%"]
    assert [phrase for phrase in phrases if phrase not in text] == []
    values = {(row.metric, score) for row in papers.read("best_of_both_worlds").differences[2:]
              for score in row.scores.values()}  # fmt: skip
    assert values == {("accuracy", 0.72), ("f1", 0.5), ("accuracy", 4.7)}


def test_what_the_paper_quotes_is_marked_as_its_caption_says(peters):
    table = papers.read("to_tune_or_not")
    assert "Numbers for baseline methods are from respective papers, except for SST-2, MNLI, and STS-B" in peters
    assert "BERT fine-tuning results (except on SICK) are from Devlin et al. (2018)" in peters
    quoted = {(row.encoder, row.mode): row.quoted for row in table.rows}
    skip = quoted["skipthoughts", "feature_extraction"]
    glue = "Wang et al. 2018, GLUE's Skip-thoughts baseline"
    assert {column for column, whose in skip.items() if whose == glue} == {"SST-2", "MNLI", "STS-B"}
    assert skip["SICK-R"] == "Kiros et al. 2015, combine-skip+COCO"
    assert skip["MRPC"] == "Kiros et al. 2015, combine-skip + feats"
    assert set(skip) == {"SST-2", "MNLI", "STS-B", "SICK-R", "MRPC"}, "all of that row"
    tuned = quoted["bert-base", "fine_tuning"]
    assert set(tuned) == set(table.columns) - {"SICK-E", "SICK-R"}
    assert set(tuned.values()) == {"Devlin et al. 2018"}
    assert not any(quoted[key] for key in quoted if key[0] == "elmo" or key == ("bert-base", "feature_extraction"))


def test_the_printed_differences_are_those_of_the_printed_scores_but_for_the_one_that_is_noted():
    table = papers.read("to_tune_or_not")
    rows = {(row.encoder, row.mode): row.scores for row in table.rows}
    off = {
        (gap.encoder, column): round(rows[gap.encoder, gap.upper.mode][column]
                                     - rows[gap.encoder, gap.lower.mode][column] - printed_gap, 1)
        for gap in table.differences for column, printed_gap in gap.scores.items()
    }  # fmt: skip
    assert {key: gap for key, gap in off.items() if gap} == {("elmo", "SICK-E"): 0.3}
    assert any("SICK-E" in note for note in table.notes)


@pytest.mark.parametrize("name", sorted(set(papers.shipped()) & set(spec_files.shipped())))
def test_each_row_of_a_table_is_a_block_of_its_specification(name):
    """Encoders, modes, variants and tasks of the numbers, which must match cells of the specification."""
    table, file = papers.read(name), spec_files.read(name)
    cells = {
        (encoder, mode, block.variant, table.column(task))
        for block in file.blocks for encoder in block.encoders for mode in block.modes for task in block.tasks
    }  # fmt: skip
    for row in table.rows:
        assert {(row.encoder, row.mode, row.variant, column) for column in row.scores} <= cells
    for gap in table.differences:
        members = gap.upper.ensemble if isinstance(gap.upper, papers.PaperEnsemble) else (gap.upper,)
        for side in (*members, gap.lower):
            assert {(gap.encoder, side.mode, side.variant, column) for column in gap.scores} <= cells


def test_experiment_bs_ensemble_is_of_all_its_cells():
    """So `meltpoint ensemble NAME --task yahoo:…` without --cell combines the paper's three models."""
    table, file = papers.read("best_of_both_worlds"), spec_files.read("best_of_both_worlds")
    cells = {
        (mode, block.variant) for block in file.blocks if block.tasks[0].startswith("yahoo") for mode in block.modes
    }
    gaps = [gap.upper for gap in table.differences if "Yahoo" in gap.scores]
    assert len(gaps) == 2
    for upper in gaps:
        assert isinstance(upper, papers.PaperEnsemble)
        assert {(side.mode, side.variant) for side in upper.ensemble} == cells


def test_a_column_takes_the_tasks_that_stand_for_it_and_no_others():
    table, second = papers.read("to_tune_or_not"), papers.read("best_of_both_worlds")
    assert {table.column(task) for task in ("sst2", "sst2_phrases", "sst2_subtrees")} == {"SST-2"}
    assert (table.column("mnli"), table.column("mnli:slate"), table.column("qqp")) == ("MNLI", None, None)
    assert second.column("yahoo:sports+health") == "Yahoo"
    assert papers.read("table_6").column("mnli:slate") == "slate"
