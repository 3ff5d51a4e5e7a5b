"""Data sets of pairs and tagged words in their original layouts: a few rows each, written by hand, odd ones too.

No row is of the data sets themselves.
"""

from __future__ import annotations

import lzma

from meltpoint.tests.tasks.layout import Layout, json_lines


def _snli(label: str, first: str, second: str) -> dict[str, object]:
    return {
        "annotator_labels": [label], "captionID": "1.jpg#0", "gold_label": label, "pairID": "1.jpg#0r1n",
        "sentence1": first, "sentence1_parse": "(ROOT)", "sentence2": second,
    }  # fmt: skip


SNLI = Layout(
    files={
        "snli_1.0/snli_1.0_train.jsonl": json_lines(
            _snli("neutral", "A person rides a horse.", "A person trains a horse."),
            _snli("-", "Two women talk.", "They argue."),
            _snli("entailment", "A “red” coat", "A coat."),
            _snli("contradiction", "Children smile.", "They are frowning."),
        ),
        "snli_1.0/snli_1.0_dev.jsonl": json_lines(
            _snli("contradiction", "A man runs.", "He sleeps."), _snli("-", "a", "b"), _snli("-", "c", "d")
        ),
        "snli_1.0/snli_1.0_test.jsonl": json_lines(_snli("entailment", "x", "y"), _snli("-", "x", "y")),
    },
    yaml="""\
name: snli
kind: pair_classification
files: {train: snli_1.0/snli_1.0_train.jsonl, dev: snli_1.0/snli_1.0_dev.jsonl, test: snli_1.0/snli_1.0_test.jsonl}
format: jsonl
columns: {text_a: sentence1, text_b: sentence2, label: gold_label}
labels: [entailment, neutral, contradiction]
skip_labels: ["-"]
""",
    train=[
        (("A person rides a horse.", "A person trains a horse."), "neutral"),
        (("A “red” coat", "A coat."), "entailment"), (("Children smile.", "They are frowning."), "contradiction"),
    ],
    dev=[(("A man runs.", "He sleeps."), "contradiction")],
    notes=("train: 1 row with the label '-' left out", "dev: 2 rows with the label '-' left out"),
    asked=("snli_1.0/snli_1.0_train.jsonl", "snli_1.0/snli_1.0_dev.jsonl", "snli_1.0/snli_1.0_test.jsonl"),
    guessed={
        "kind": "pair_classification", "format": "jsonl", "skip_labels": ["-"],
        "columns": {"text_a": "sentence1", "text_b": "sentence2", "label": "gold_label"},
    },
)  # fmt: skip

WIC = Layout(
    files={
        "WiC_dataset/train/train.data.txt": (
            b"carry\tV\t2-1\tYou must carry your camping gear .\tSound carries well over water .\n"
            b'go\tV\t2-6\tMessages must "go through channels .\tDo you think the sofa will go through ?\n'
        ),
        "WiC_dataset/train/train.gold.txt": b"F\nT\n",
        "WiC_dataset/dev/dev.data.txt": b"board\tN\t2-2\tRoom and board .\tHe nailed boards across the windows .\n",
        "WiC_dataset/dev/dev.gold.txt": b"F\n",
    },
    yaml="""\
name: wic
kind: pair_classification
files: {train: WiC_dataset/train/train.data.txt, dev: WiC_dataset/dev/dev.data.txt}
label_files: {train: WiC_dataset/train/train.gold.txt, dev: WiC_dataset/dev/dev.gold.txt}
format: tsv
header: false
columns: {text_a: [0, 3], text_b: [0, 4]}
joiner: ": "
labels: {F: different, T: same}
""",
    train=[
        (("carry: You must carry your camping gear .", "carry: Sound carries well over water ."), "different"),
        (('go: Messages must "go through channels .', "go: Do you think the sofa will go through ?"), "same"),
    ],
    dev=[(("board: Room and board .", "board: He nailed boards across the windows ."), "different")],
    asked=("WiC_dataset",),
    guessed={"format": "tsv", "header": "false"},
)


def _onto(document: str, *words: tuple[str, str]) -> bytes:
    rows = [
        f"{document}   0   {number}   {word}   NN  (TOP*  -  -  -  Speaker#1  {tag}  (ARG0*  -"
        for number, (word, tag) in enumerate(words)
    ]
    return "\n".join([f"#begin document ({document}); part 000", *rows, "", "#end document", ""]).encode()


ONTONOTES = Layout(
    files={
        "train/bc/a.gold_conll": _onto("bc/a", ("In", "*"), ("New", "(GPE*"), ("York", "*)"), ("two", "(CARDINAL)")),
        "train/nw/b.gold_conll": _onto("nw/b", ("#", "*"), ("Lee", "(PERSON)"), ("Kim", "(PERSON)")),
        "development/bc/c.gold_conll": _onto("bc/c", ("Paris", "(GPE)"), (".", "*")),
    },
    yaml="""\
name: ontonotes
kind: sequence_labelling
files: {train: train/**/*.gold_conll, dev: development/**/*.gold_conll}
format: conll
columns: {words: 3, tags: 10}
labels: [O, B-CARDINAL, I-CARDINAL, B-GPE, I-GPE, B-PERSON, I-PERSON]
tag_scheme: brackets
""",
    train=[
        (("In", "New", "York", "two"), ("O", "B-GPE", "I-GPE", "B-CARDINAL")),
        (("#", "Lee", "Kim"), ("O", "B-PERSON", "B-PERSON")),
    ],
    dev=[(("Paris", "."), ("B-GPE", "O"))],
    notes=("tags are brackets in the files, and converted to IOB2",),
    asked=("train", "development"),
    guessed={"kind": "sequence_labelling", "format": "conll", "tag_scheme": "brackets"},
)

SPLIT_COLUMN = Layout(
    files={
        "all.csv.xz": lzma.compress(
            b"split,q1,q2,score\ntraining,a b,c d,0.5\nvalidation,e f,g h,1\ntest,i j,k l,0\ntraining,m,n,0.25\n"
        ),
    },
    yaml="""\
name: all_in_one
kind: pair_regression
file: all.csv.xz
split_column: split
splits: {train: training, dev: validation, test: test}
format: csv
columns: {text_a: q1, text_b: q2, label: score}
range: [0, 1]
""",
    train=[(("a b", "c d"), 0.5), (("m", "n"), 0.25)],
    dev=[(("e f", "g h"), 1.0)],
    asked=("all.csv.xz",),
    guessed={"split_column": "split", "splits": {"train": "training", "dev": "validation", "test": "test"}},
)

STSB = Layout(
    files={
        "sts-train.csv": (
            b"main-captions\tMSRvid\t2012test\t0001\t5.000\tA plane is \"taking off.\tAn air plane is taking off.\n"
            b"main-news\tx\t2015\t0002\t0.500\tHe spoke.\tShe ran away.\thttp://a.example/1\thttp://b.example/2\n"
            b"main-news\tx\t2015\t0003\t2.25\tA vote is due.\tThe vote was held.\n"
        ),
        "sts-dev.csv": b"main-news\tx\t2015\t0004\t1.0\tOne more.\tAnd another one.\n",
    },
    yaml="""\
name: sts
kind: pair_regression
files: {train: sts-train.csv, dev: sts-dev.csv}
format: tsv
header: false
widths: [9]
columns: {text_a: 5, text_b: 6, label: 4}
range: [0, 5]
""",
    train=[
        (('A plane is "taking off.', "An air plane is taking off."), 5.0), (("He spoke.", "She ran away."), 0.5),
        (("A vote is due.", "The vote was held."), 2.25),
    ],
    dev=[(("One more.", "And another one."), 1.0)],
    asked=("sts-train.csv", "sts-dev.csv"),
    guessed={"kind": "pair_regression", "format": "tsv", "columns": {"text_a": "5", "text_b": "6", "label": "4"}},
)  # fmt: skip
