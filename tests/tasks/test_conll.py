"""Column files: training, `new-task` and `predict` read the same sentences; what is not clear is refused."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities

from meltpoint.sweeps.results.text_files import read_pieces
from meltpoint.tasks.core.conll import ConllLayout, read_conll, to_iob2
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec
from meltpoint.tasks.core.user_task import read_task_file
from meltpoint.tasks.inspection.draft import draft_of
from meltpoint.tasks.inspection.splits import counted_rows

TASK = """\
name: own
kind: KIND
files: {train: train.conll, dev: train.conll}
format: conll
columns: {words: WORD, tags: TAG}
labels: [LABELS]
"""
TAGS = ("O", "B-PER", "I-PER", "B-NEW YORK", "X", "#")


def written(folder: Path, data: str | bytes, columns: tuple[int, int] = (0, -1), labels: tuple[str, ...] = TAGS) -> str:
    """A task file beside its data."""
    kind = "sequence_labelling" if set(labels) <= {"O", "B-PER", "I-PER"} else "word_tagging"
    (folder / "train.conll").write_bytes(data if isinstance(data, bytes) else data.encode())
    quoted = ", ".join(f'"{label}"' for label in labels)
    text = TASK.replace("KIND", kind).replace("WORD", str(columns[0])).replace("TAG", str(columns[1]))
    (folder / "task.yaml").write_text(text.replace("LABELS", quoted), encoding="utf-8")
    return str(folder / "task.yaml")


Tagged = list[tuple[tuple[str, ...], tuple[str, ...]]]


def trained(file: str) -> Tagged:
    task = read_task_file(file)
    return [(e.words, tuple(task.labels[tag] for tag in e.label)) for e in task.readers["train"](Path(task.folder))]


def looked_at(file: str) -> Tagged:
    layout = read_task_file(file).readers["train"].keywords["layout"]
    return [(words, tuple(tags)) for _, words, tags in counted_rows(Path(file).parent / "train.conll", layout)]


def predicted(file: str) -> list[tuple[str, ...]]:
    """The words that `predict` reads, by the columns that an exported model keeps of its task."""
    word, tag = read_task_file(file).conll_columns
    pieces = read_pieces(Path(file).parent / "train.conll", 2, ConllLayout(word, tag, needs_tag=False))
    return [tuple(words) for piece in pieces for words in piece[str(word % len(piece.columns))]]


def all_three(file: str) -> Tagged:
    found = trained(file)
    assert looked_at(file) == found
    assert predicted(file) == [words for words, _ in found]
    return found


READ = {
    "a space inside a token, between tabs": ("New York\tB-PER\n1 000\tO\n", [("New York", "1 000")]),
    "a no-break space inside a token, between spaces": ("1\u00a0000 O\nU\u2003S\u2028A\u0085 O\n",
                                                        [("1\u00a0000", "U\u2003S\u2028A\u0085")]),
    "spaces around tabs and at the end": ("Ann \t B-PER  \nran\tO \n", [("Ann", "ran")]),
    "tabs at the end": ("Ann\tB-PER\t\nran\tO\n", [("Ann", "ran")]),
    "a tab at the end, behind spaces": ("Ann B-PER\nran O \t\n", [("Ann", "ran")]),
    "several spaces between columns": ("Ann   NNP  B-PER\nran   VB   O\n", [("Ann", "ran")]),
    "a tag with a space": ("York\tB-NEW YORK\n", [("York",)]),
    "carriage returns alone": ("Ann B-PER\rran O\r\rHe O\r", [("Ann", "ran"), ("He",)]),
    "carriage returns and line feeds": ("Ann B-PER\r\nran O\r\n\r\nHe O\r\n", [("Ann", "ran"), ("He",)]),
    "a byte order mark": ("\ufeffAnn B-PER\n", [("Ann",)]),
    "no line end at the end": ("Ann B-PER\n\nran O", [("Ann",), ("ran",)]),
    "lines of white space between sentences": ("Ann B-PER\n \t\nran O\n\u00a0\nHe O\n\f\nleft O\n\n\n",
                                               [("Ann",), ("ran",), ("He",), ("left",)]),
    "-DOCSTART- without blank lines, with tabs, twice, at the end": (
        "Ann B-PER\n-DOCSTART-\t-X-\tO\nran O\n-DOCSTART-\n-DOCSTART- (1 testa)\nHe O\n-DOCSTART- O\n",
        [("Ann",), ("ran",), ("He",)]),
    "comments as CoNLL-U has them": ("# sent_id = 0\n# text = Ann ran\nAnn B-PER\nran O\n# newpar\n\n#x = 1\nHe O\n",
                                     [("Ann", "ran"), ("He",)]),
    "a comment of as many columns as words have": ("# sent_id = 0\nAnn NN x B-PER\n", [("Ann",)]),
    "MultiCoNER's comments": ("# id 5239d8-aa3b\tdomain=en\nAnn _ _ B-PER\nran _ _ O\n", [("Ann", "ran")]),
    "GermEval's comments": ("#\thttp://a.org/x [2009-10-17]\nAnn\tB-PER\tO\nran\tO\tO\n", [("Ann", "ran")]),
    "# as a token": ("# O\n1 O\n\nNo O\n# #\n", [("#", "1"), ("No", "#")]),
    "# as a token between tabs": ("# x = 3\n#\tO\n#tag\tO\n# 1\tO\n", [("#", "#tag", "# 1")]),
    "# in words that look like comments' names": ("#a=\tO\n#newdoc\tO\nnewpar\tO\n", [("#a=", "#newdoc", "newpar")]),
    "# as the only tokens": ("#\tO\n#a\tX\n", [("#", "#a")]),
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_what_is_clear_is_read_alike_by_training_new_task_and_predict(case, tmp_path):
    contents, wanted = READ[case]
    assert [words for words, _ in all_three(written(tmp_path, contents))] == wanted


SPANS = ("O", "B-PER", "I-PER")
REFUSED = {
    "a tag alone": ("Ann B-PER\nO\n", "line 2: 1 column, not 2 as in line 1"),
    "tags alone": ("B-PER\nO\n", "line 1: 1 column, not at least 2"),
    "a tag behind a tab": ("Ann\tB-PER\n\tO\n", "line 2: the word is empty"),
    "a word before a tab": ("Ann\tB-PER\nran\t\n", "line 2: 1 column, not 2 as in line 1"),
    "a word alone among tabs": ("Ann\tB-PER\nNew York\n", "line 2: 1 column, not 2 as in line 1. Tabs separate"),
    "spaces among tabs": ("Ann\tB-PER\nran O\n", "line 2: 1 column, not 2 as in line 1. Tabs separate"),
    "a space inside a token, between spaces": ("Ann B-PER\nNew York O\n", "line 2: 3 columns, not 2 as in line 1"),
    "other numbers of columns in sentences": ("Ann NN O\n\nran O\n", "line 3: 2 columns, not 3 as in line 1"),
    "a tab too many": ("Ann\tO\nran\t\tO\n", "line 2: 3 columns, not 2 as in line 1"),
    "a comment inside a sentence": ("Ann O\n# what of this\nran O\n", "line 2: neither a word with the columns of the"),
    "# without a tag": ("Ann O\n\n#\n", "line 3: neither a word"),
    "a hashtag without a tag": ("Ann O\n\n#tag\n", "line 3: neither a word"),
    "# with a column less": ("Ann NN O\n\n# NN\nran NN O\n", "line 3: neither a word"),
    "no sentence": ("-DOCSTART- O\n\n# a = b\n", "holds no sentence"),
    "numbers for words": ("1\tAnn\tB-PER\n2\tran\tO\n", "the word column has CoNLL-U's numbers 1, 2, 3"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_clear_is_refused_with_its_line_by_all_three(case, tmp_path):
    contents, wanted = REFUSED[case]
    file = written(tmp_path, contents, labels=SPANS)
    readers = [trained, looked_at]
    if case != "tags alone":  # for `predict` they are words without tags
        readers.append(predicted)
    for read in readers:
        with pytest.raises(ValueError, match=wanted) as refused:
            read(file)
        assert "train.conll" in str(refused.value)
        assert "\n" not in str(refused.value)


BLANKS = st.sampled_from(["", " ", "\t", "\u3000", "-DOCSTART- O", "# newdoc id = 3", "# sent_id = 1\n# text = a\tb"])
CHARACTERS = st.sampled_from(["a", "#", "-", "1", "=", "\u00a0", "\u2028", "\x85", "é", ".", "O"])
WORDS = st.text(CHARACTERS, min_size=1, max_size=4).filter(lambda word: word.strip())
SENTENCES = st.lists(st.lists(st.tuples(WORDS, st.sampled_from(TAGS)), min_size=1, max_size=4), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(
    sentences=SENTENCES, gaps=st.lists(BLANKS, min_size=5, max_size=5), separator=st.sampled_from(["\t", " ", "  "]),
    end=st.sampled_from(["\n", "\r\n", "\r"]), mark=st.booleans(), more=st.integers(0, 2), inner=st.booleans(),
)  # fmt: skip
def test_any_file_as_it_was_written_is_read_alike_by_all_three(
    tmp_path_factory, sentences, gaps, separator, end, mark, more, inner
):
    has_tabs = separator == "\t"
    wanted = [
        [(f"{word} {word}" if inner and has_tabs else word, tag if has_tabs else tag.split()[0]) for word, tag in one]
        for one in sentences
    ]
    lines = [gaps[0]]
    for number, sentence in enumerate(wanted, 1):
        lines += [separator.join([word, *(["x"] * more), tag]) for word, tag in sentence]
        lines += ["", gaps[number]] if gaps[number].startswith("# sent") else [gaps[number]]
    text = ("\ufeff" if mark else "") + end.join(lines).replace("\n", end if end != "\r\n" else "\n")
    folder = tmp_path_factory.mktemp("own")
    file = written(folder, text.replace("\r\n", "\n").replace("\n", end), labels=(*TAGS, "B-NEW"))
    assert [list(zip(words, tags, strict=True)) for words, tags in all_three(file)] == wanted


UNIVERSAL = """\
# newdoc id = a
# sent_id = 1
# text = Du vin
1-2\tDu\t_\t_
1\tDe\tde\tADP
2\tle\tle\tDET
3\tvin\tvin\tNOUN
3.1\tgap\t_\tVERB

1\t#\t#\tSYM
# newdoc
1\tvin\tvin\tNOUN
"""


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["a", "#", " ", "\t", "\n", "\r", "O", "X", "-DOCSTART-", "1", "\u00a0", "\f", "="])))
def test_of_any_text_all_three_read_the_same_or_training_refuses_it(tmp_path_factory, parts):
    file = written(tmp_path_factory.mktemp("own"), "".join(parts))
    found = None
    with suppress(ValueError):
        found = trained(file)
    assert found is None or all_three(file) == found


def test_conll_us_multi_word_lines_empty_nodes_comments_and_documents_are_known_and_said(tmp_path):
    file = written(tmp_path, UNIVERSAL, (1, 3), ("ADP", "DET", "NOUN", "SYM"))
    assert all_three(file) == [
        (("De", "le", "vin"), ("ADP", "DET", "NOUN")), (("#",), ("SYM",)), (("vin",), ("NOUN",)),
    ]  # fmt: skip
    data = load_training_data(DataSpec(file))
    assert data.notes[0] == "train: 2 lines of multi-word tokens and empty nodes (1-2, 1.1) left out"
    assert [example.group for example in data.train] == ["1", "1", "2"]
    assert all_three(written(tmp_path, "1 X\n1-0 X\n1.1 O\n"))[0][0] == ("1", "1-0", "1.1"), "words that look like them"
    assert all_three(written(tmp_path, "2003-04 a X\n1-2 b O\n", (1, -1)))[0][0] == ("a", "b")
    data = load_training_data(DataSpec(written(tmp_path, "# by hand, in 2020\nAnn O\n\n# id = 3\nran O\n")))
    assert data.notes == ("train: 1 line with # read as a comment", "dev: 1 line with # read as a comment")
    (tmp_path / "a.conll").write_text("Ann O\n-DOCSTART- O\nBob O\n\nran O\n-DOCSTART- O\n\nHe O\n", "utf-8")
    found = read_conll(tmp_path / "a.conll", ["O"], ConllLayout())
    assert [(example.words[0], example.group) for example in found] == [
        ("Ann", ""), ("Bob", "1"), ("ran", "1"), ("He", "2"),
    ]  # fmt: skip


def test_sentences_may_have_numbers_of_columns_of_their_own_where_both_are_counted_from_the_start(tmp_path):
    file = written(tmp_path, "a X * *\nb O * *\n\nc X *\n", (0, 1))
    assert [words for words, _ in all_three(file)] == [("a", "b"), ("c",)]
    with pytest.raises(ValueError, match="line 2: 3 columns, not 4 as in line 1"):
        trained(written(tmp_path, "a X * *\nb O *\n", (0, 1)))
    for columns in ((0, 0), (1, -1), (-2, 0)):
        both = r"train\.conll, line 1: words and tags are both column \d\. Correct columns"
        with pytest.raises(ValueError, match=both):
            trained(written(tmp_path, "Ann O\n", columns))


# --- schemes ---

PREFIXES = {"iob1": "BI", "bioes": "BIES", "bilou": "BILU"}


@pytest.mark.parametrize("scheme", PREFIXES)
@given(data=st.data())
def test_the_entities_of_any_tags_are_seqevals_before_and_after_the_conversion(scheme, data):
    names = ["O", *(f"{prefix}-{type_}" for prefix in PREFIXES[scheme] for type_ in ("A", "B"))]
    tags = data.draw(st.lists(st.sampled_from(names), max_size=8))
    converted = to_iob2(tags, scheme)
    spelled = [{"L": "E", "U": "S"}.get(tag[0], tag[0]) + tag[1:] for tag in tags]  # seqeval's chunks know BIOES alone
    assert get_entities(converted) == get_entities(spelled)
    assert {tag[0] for tag in converted} <= {"O", "B", "I"}
    assert to_iob2(converted, "iob1") == converted, "every entity begins with B-"


@pytest.mark.parametrize(
    ("data", "scheme"),
    [("Ann S-PER\nran O\n", "bioes"), ("Ann U-PER\nran O\n", "bilou"), ("Ann I-PER\nBob B-PER\n", "iob1")],
)
def test_other_schemes_are_found_converted_and_said(tmp_path, data, scheme):
    file = Path(written(tmp_path, data, labels=SPANS))
    draft = draft_of([tmp_path / "train.conll"], tmp_path)
    assert draft.keys["tag_scheme"] == scheme
    assert draft.keys["labels"] == list(SPANS)
    assert draft.remarks["tag_scheme"] == [f"the tags are {scheme} in the files, converted to IOB2"]
    file.write_text(file.read_text("utf-8") + f"tag_scheme: {scheme}\n", encoding="utf-8")
    read = load_training_data(DataSpec(str(file)))
    assert read.notes == (f"tags are {scheme} in the files, converted to IOB2",)
    assert SPANS[read.train[0].label[0]] == "B-PER"
    for prefix, other in (("S", "bioes"), ("E", "bioes"), ("U", "bilou"), ("L", "bilou")):
        with pytest.raises(ValueError, match=rf"line 1, the tag's column: Unknown tag .* Set tag_scheme: {other}\."):
            trained(written(tmp_path, f"Ann {prefix}-PER\n", labels=SPANS))
    odd = load_training_data(DataSpec(written(tmp_path, "Ann I-PER\nBob B-PER\n\nHe O\n", labels=SPANS)))
    assert odd.notes[0].startswith("train: 1 entity without B- at the first word, as in IOB1; tag_scheme: iob1")
    file = Path(written(tmp_path, "Ann X\n"))
    text = file.read_text("utf-8")
    for more, wanted in (
        ("tag_scheme: bioes\n", "tag_scheme: only spans have one, of kind: sequence_labelling"),
        ("metric: span_f1\n", "metric: Unknown metric of word_tagging 'span_f1'. Choose from: word_accuracy"),
    ):
        file.write_text(text + more, encoding="utf-8")
        with pytest.raises(ValueError, match=wanted):
            read_task_file(str(file))


# --- tags that are no spans ---


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("train.txt", "He PRP\nruns VBZ\n\nShe PRP\nruns VBZ\n", {"words": 0, "tags": -1}),
        ("train.conll", "He PRP\nruns VBZ\n", {"words": 0, "tags": -1}),
        ("train.tsv", "He\tx\tPRP\nruns\ty\tVBZ\n\nShe\tx\tPRP\nruns\ty\tVBZ\n", {"words": 0, "tags": -1}),
        ("train.conllu", "".join(f"{n}\t{w}\t_\t{t}\t_\t_\t0\t_\t_\t_\n" for n, w, t in ((1, "He", "PRP"),
                                                                                       (2, "runs", "VBZ"))),
         {"words": 1, "tags": 3}),
    ],
)  # fmt: skip
def test_new_task_takes_tags_without_prefixes_for_classes_of_words(tmp_path, name, text, columns):
    (tmp_path / name).write_text(text, encoding="utf-8")
    draft = draft_of([tmp_path / name], tmp_path)
    assert {key: draft.keys[key] for key in ("kind", "format", "columns", "labels")} == {
        "kind": "word_tagging", "format": "conll", "columns": columns, "labels": ["PRP", "VBZ"],
    }  # fmt: skip
    assert "tag_scheme" not in draft.keys
    (tmp_path / "table.tsv").write_text("text\tlabel\na fine film\tgood\na dull one\tbad\nso so\tbad\n", "utf-8")
    assert draft_of([tmp_path / "table.tsv"], tmp_path).keys["format"] != "conll"


def test_lists_of_words_and_tags_have_their_kind_and_scheme(tmp_path):
    for tags, kind, scheme in (
        (["NOUN", "VERB"], "word_tagging", None), (["B-X", "O"], "sequence_labelling", "iob2"),
        (["S-X", "O"], "sequence_labelling", "bioes"),
    ):  # fmt: skip
        row = f'{{"tokens": ["Ann", "ran"], "tags": ["{tags[0]}", "{tags[1]}"]}}\n'
        (tmp_path / "train.jsonl").write_text(row * 3, encoding="utf-8")
        draft = draft_of([tmp_path / "train.jsonl"], tmp_path)
        assert (draft.keys["kind"], draft.keys.get("tag_scheme")) == (kind, scheme)
