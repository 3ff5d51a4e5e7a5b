"""The default of `max_pieces`: a percentile of the task's lengths, the encoder's most in documents, and what is cut."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from meltpoint import tasks
from meltpoint.adapters import encoders, settings
from meltpoint.adapters.data import lengths
from meltpoint.adapters.data.input_format import InputFormat
from meltpoint.adapters.data.tokenising import encode_split
from meltpoint.sweeps.driver.plan import plan_sweep
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.search.study import Study
from meltpoint.sweeps.specification.cells import OpenCell, length_lines, open_cells
from meltpoint.sweeps.specification.sweep_options import Resources
from meltpoint.sweeps.specification.sweep_spec import Block, SweepSpec
from meltpoint.tests.adapters.conftest import save_tiny_elmo

MODES = ("feature_extraction", "fine_tuning", "stack_and_finetune")
TASK = """\
name: {name}
kind: {kind}
files: {{train: {name}.{suffix}, dev: {name}.{suffix}}}
format: {format}
columns: {columns}
labels: {labels}
"""
Write = Callable[..., str]


def word_counts(count: int, longest: int) -> list[int]:
    """Numbers of words of texts, most of them short."""
    draw = random.Random(1)
    return [min(longest, 1 + int(draw.expovariate(0.15))) for _ in range(count)]


@pytest.fixture
def texts(tmp_path: Path) -> Write:
    """Writes a task of texts with so many words each, and returns its file."""

    def write(counts: list[int], name: str = "texts") -> str:
        rows = [f"{'film ' * count}\t{('bad', 'good')[number % 2]}" for number, count in enumerate(counts)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
        path = tmp_path / f"{name}.yaml"
        columns, labels = "{text: text, label: label}", "[bad, good]"
        kind = "sentence_classification"
        document = TASK.format(name=name, kind=kind, suffix="tsv", format="tsv", columns=columns, labels=labels)
        path.write_text(document, encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def documents(tmp_path: Path) -> str:
    """A task of sentences to label in documents: one of 50 words in five sentences, one of four words."""
    lines = ["-DOCSTART- O", ""]
    for sentence in range(5):
        lines += [*("film B-X\nmeal O" for _ in range(5)), ""]
        lines += ["-DOCSTART- O", "", "hotel O\nstory B-X\nthe O\nwas O", ""] if sentence == 4 else []
    (tmp_path / "words.conll").write_text("\n".join(lines) + "\n", encoding="utf-8")
    path = tmp_path / "words.yaml"
    path.write_text(
        TASK.format(
            name="words", kind="sequence_labelling", suffix="conll", format="conll",
            columns='{words: "0", tags: "1"}', labels="[O, B-X]",
        )
    )  # fmt: skip
    return str(path)


def spec_of(encoder: str, *words: str, modes: tuple[str, ...] = MODES[:1], **more: object) -> SweepSpec:
    return SweepSpec(name="lengths", encoders=(encoder,), modes=modes, tasks=words, **more)  # type: ignore[arg-type]


def length_of(cell: OpenCell) -> int:
    return int(settings.complete(cell.space.first(), cell.mode, cell.head)["max_pieces"])


# --- the default ---


@pytest.mark.parametrize("count", [1, 7, 199, 200, 201, 1000])
def test_the_percentile_is_the_smallest_length_that_995_of_1000_do_not_exceed(count: int):
    drawn = word_counts(count, 400)
    enough = [length for length in drawn if 1000 * sum(other <= length for other in drawn) >= 995 * count]
    assert lengths.percentile(drawn) == min(enough)


def test_the_default_is_the_percentile_of_the_task_s_lengths_in_the_encoder_s_pieces(minilm, texts: Write):
    counts = [9 * count for count in word_counts(300, 50)]
    (cell,) = open_cells(spec_of("minilm", texts(counts), modes=MODES[1:2]))  # whose own pooling ends at 256
    pieces = sorted(count + 2 for count in counts)  # one piece a word, [CLS] and [SEP]
    expected = next(n for n in pieces if sum(other <= n for other in pieces) >= 0.995 * len(pieces))
    assert 128 < expected < pieces[-1]
    assert length_of(cell) == -(-expected // 8) * 8
    assert cell.length.source == "the 99.5th percentile of 300 training examples"


@pytest.mark.parametrize(
    ("longest", "expected", "source"),
    [
        (1, 8, "the longest of 300 training examples"),
        (101, 104, "the longest of 300 training examples"),
        (126, 128, "the longest of 300 training examples"),
        (127, 128, "inputs of up to 128 stay whole; the 99.5th percentile of 300 training examples is 3"),
        (300, 128, "inputs of up to 128 stay whole; the 99.5th percentile of 300 training examples is 3"),
    ],
)
def test_inputs_of_up_to_128_pieces_stay_whole(minilm, texts: Write, longest: int, expected: int, source: str):
    (cell,) = open_cells(spec_of("minilm", texts([1] * 299 + [longest])))
    assert (length_of(cell), cell.length.source) == (expected, source)
    assert bool(cell.length.notes) == (longest > 126)


def test_only_a_sample_of_a_large_task_is_counted_and_the_same_each_time(tiny_encoder: str, texts: Write):
    spec = spec_of(tiny_encoder, texts(word_counts(3000, 60)))
    first, second = open_cells(spec)[0], open_cells(spec)[0]
    assert first.length == second.length
    assert first.length.examples == 2000
    assert first.space.fingerprint() == second.space.fingerprint()
    asked = spec.model_copy(update={"seed": 7})
    assert open_cells(asked)[0].length == first.length, "the sweep's seed has no part in it"


def test_the_own_pooling_of_a_sentence_encoder_reads_texts_up_to_their_makers_end(
    tiny_encoder: str, texts: Write, tmp_path: Path
):  # fmt: skip
    folder = Path(shutil.copytree(tiny_encoder.removeprefix("hf:"), tmp_path / "pooled"))
    types = [f"sentence_transformers.models.{name}" for name in ("Transformer", "Pooling")]
    parts = [{"path": path, "type": name} for path, name in zip(("", "1_Pooling"), types, strict=True)]
    (folder / "modules.json").write_text(json.dumps(parts))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean"}')
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    task = texts([3, 20, 20])
    own, *others = open_cells(spec_of(f"hf:{folder}", task, modes=MODES))
    assert (own.head, own.length.max_pieces) == ("pooling", 9)
    assert own.length.source == "the end of a text in the encoder's own pooling"
    assert {cell.length.max_pieces for cell in others} == {24}
    named = spec_of(f"hf:{folder}", task, overrides=("max_pieces=16",))
    assert [cell.length.max_pieces for cell in open_cells(named)] == [16]


def test_each_training_size_has_the_length_of_its_own_examples(tiny_encoder: str, texts: Write):
    task = texts([3] * 380 + [40] * 20)
    blocks = [
        Block(encoders=(tiny_encoder,), modes=MODES[:1], tasks=(task,), variant=str(size), train_examples=size)
        for size in (4, 8, 200)
    ]
    spec = spec_of(tiny_encoder, task)
    alone = [length_of(*open_cells(spec.model_copy(update={"blocks": (block,)}))) for block in blocks]
    assert list(map(length_of, open_cells(spec.model_copy(update={"blocks": tuple(blocks)})))) == alone
    assert len(set(alone)) > 1


def test_a_pair_counts_with_both_sentences_where_the_encoder_reads_them_together(minilm, tmp_path: Path):
    joint = open_cells(spec_of("minilm", "demo_entailment"))[0]
    data = tasks.get("demo_entailment").readers["train"](Path())
    tokenizer = encoders.load_tokenizer(joint.reference)
    pieces = [len(tokenizer.pair(*example.texts, 512)[0]) for example in data]
    assert length_of(joint) == -(-max(pieces) // 8) * 8 < 128
    elmo = f"elmo:{save_tiny_elmo(tmp_path / 'elmo')}"
    apart = open_cells(spec_of(elmo, "demo_entailment", head="pooling"))[0]
    words = [max(len(text.split()) for text in example.texts) for example in data]
    assert length_of(apart) == -(-max(words) // 8) * 8


def test_elmo_counts_the_words_of_the_rule_that_splits_its_texts(texts: Write, tmp_path: Path):
    path = Path(texts([1]))
    rows = ["text\tlabel", *["It was good, wasn't it?\tgood", "No!\tbad"] * 40]
    (path.parent / "texts.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    elmo = f"elmo:{save_tiny_elmo(tmp_path / 'elmo')}"
    spec = spec_of(elmo, str(path), head="pooling")
    (raw,) = open_cells(spec)
    (plain,) = open_cells(spec.model_copy(update={"overrides": ("word_tokenizer=whitespace",)}))
    assert (raw.length.keeps_all, plain.length.keeps_all) == (8, 5)


def test_an_encoder_s_tokenizer_without_its_weights_counts_as_the_loaded_encoder_does(minilm):
    reference = encoders.resolve("minilm", "pair_classification")
    alone, minilm_encoder = encoders.load_tokenizer(reference), encoders.load(reference)
    assert alone.max_pieces == minilm_encoder.max_pieces == 512
    for text in ("A quiet harbour, 3.5 percent.", "", "\u00a0"):
        assert alone.sentence(text, 512)[0] == minilm_encoder.tokenizer.sentence(text, 512)[0]


def test_longer_texts_than_the_encoder_takes_give_its_longest_input(tiny_encoder: str, texts: Write):
    (cell,) = open_cells(spec_of(tiny_encoder, texts([100] * 20)))
    assert length_of(cell) == 64
    assert cell.length.source == "the encoder's longest input, less than 102: the longest of 20 training examples"


def test_a_named_length_is_kept_and_null_takes_the_default(tiny_encoder: str, texts: Write):
    spec = spec_of(tiny_encoder, texts([20] * 20))

    def opened(value: str) -> OpenCell:
        return open_cells(spec.model_copy(update={"overrides": (f"max_pieces={value}",)}))[0]

    assert (length_of(opened("40")), length_of(opened("null"))) == (40, 24)
    assert opened("40").length.source == "--set max_pieces=40"
    searched = opened("{choice: [16, 40]}").length
    assert (searched.max_pieces, searched.largest, searched.examples_cut) == (16, 40, 1.0)


def test_a_length_that_not_every_setting_has_is_refused(tiny_encoder: str, texts: Write, quick_space: Path):
    spec = spec_of(tiny_encoder, texts([20] * 20), space=str(quick_space))
    entry = "max_pieces={choice: [16, 32], when: {dropout: 0.1}}"
    with pytest.raises(ValueError, match=r"max_pieces has conditions .*, but every setting needs it; remove them"):
        open_cells(spec.model_copy(update={"overrides": (entry,)}))


# --- document context ---


def test_in_document_context_the_default_is_the_encoder_s_longest_input(tiny_encoder: str, documents: str):
    spec = spec_of(tiny_encoder, documents, head="linear")
    (alone,) = open_cells(spec)
    for context in ("document", "{choice: [sentence, document]}"):
        (cell,) = open_cells(spec.model_copy(update={"overrides": (f"context={context}",)}))
        assert (length_of(alone), length_of(cell)) == (16, 64)
        assert cell.length.source == "document context: the encoder's longest input"


def test_a_word_of_a_short_document_sees_all_of_it(tiny_encoder: str, documents: str):
    spec = spec_of(tiny_encoder, documents, head="linear", overrides=("context=document",))
    (cell,) = open_cells(spec)
    examples = tasks.get(documents).readers["train"](Path(documents).parent)
    tokenizer = encoders.load_tokenizer(cell.reference)
    split = encode_split("sequence_labelling", examples, tokenizer, length_of(cell), InputFormat(context="document"))
    assert sorted({len(row.inputs[0]) for row in split.rows}) == [6, 52], "each whole document, [CLS] and [SEP]"
    assert (split.narrowed, cell.length.notes) == (0, ())
    (short,) = open_cells(spec.model_copy(update={"overrides": ("context=document", "max_pieces=32")}))
    assert short.length.notes[0].startswith(
        "5 of 6 sentences with only a part of their document in max_pieces = 32 (83.3 %"
    )
    assert short.length.notes[0].endswith("--set max_pieces=56 would keep all")


# --- what is said of it ---


def test_plan_says_what_is_cut_as_counted_by_hand(minilm, texts: Write, tmp_path: Path):
    counts = [5] * 990 + [180] * 8 + [190, 200]
    spec = spec_of("minilm", texts(counts))
    planned = plan_sweep(spec, Resources(storage=str(tmp_path / "runs"), gpus_per_trial=0.0))
    every = 7 * 990 + 182 * 8 + 192 + 202
    at_184, at_8 = (100 * lost / every for lost in (8 + 18, 8 * 174 + 184 + 194))
    assert planned.lengths == (
        "texts, minilm: max_pieces = 184 (the 99.5th percentile of 1 000 training examples): 2 of 1 000 examples "
        f"cut to max_pieces = 184 (0.2 %; {at_184:.3g} % of all pieces lost); --set max_pieces=208 would keep all",
    )
    (cell,) = planned.as_json()["cells"]
    assert cell["length"]["examples_cut"] == pytest.approx(0.002)
    assert cell["length"]["keeps_all"] == 202
    short = spec.model_copy(update={"overrides": ("max_pieces=8",)})
    (line,) = length_lines(open_cells(short))
    assert f"10 of 1 000 examples cut to max_pieces = 8 (1 %; {at_8:.3g} % of all pieces lost)" in line


# --- the identity of trials ---


def test_the_length_is_in_the_identity_and_a_named_one_of_the_same_number_is_the_same(tiny_encoder: str, texts: Write):
    spec = spec_of(tiny_encoder, texts([20] * 20))

    def trial(*overrides: str) -> str:
        own = spec.model_copy(update={"overrides": overrides})
        cells = open_cells(own)
        return Planner(own, cells, []).next().id  # type: ignore[union-attr]

    assert trial() == trial("max_pieces=24") != trial("max_pieces=64")


def test_a_setting_borrowed_of_another_task_gets_the_length_of_this_one(tiny_encoder: str, texts: Write):
    long, short = texts([40] * 20, "long"), texts([5] * 20, "short")
    first, second = open_cells(spec_of(tiny_encoder, long, short, head="linear"))
    won = settings.complete(first.space.first(), first.mode, first.head)
    borrowed = Study(second.space, "random", (0,), []).borrow(won, lambda setting: ("id", dict(setting)))
    assert borrowed is not None
    assert (won["max_pieces"], borrowed[1]["max_pieces"]) == (48, 8)
