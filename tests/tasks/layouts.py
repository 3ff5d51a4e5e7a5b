"""All data sets in their original layouts, by name; here pairs, tagged words, scores, several labels, ordered classes.

A few rows each, written by hand, odd ones too; no row is of the data sets themselves.
"""

from __future__ import annotations

import lzma

from meltpoint.tests.tasks.sentence_layouts import IMDB, KAGGLE, NESTED, SEMICOLONS, TREC, Layout, json_lines


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
    notes=("tags are brackets in the files, converted to IOB2",),
    asked=("train/bc/a.gold_conll", "train/nw/b.gold_conll", "development/bc/c.gold_conll"),
    guessed={"kind": "sequence_labelling", "format": "conll", "tag_scheme": "brackets"},
)

SPLIT_COLUMN = Layout(
    files={
        "all.csv.xz": lzma.compress(
            b"split,q1,q2,score\ntraining,a b,c d,0.5\nvalidation,e f,g h,1\ntest,i j,k l,0\ntraining,m,n,0.25\n"
        )
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

POLITENESS = Layout(
    files={
        "wikipedia.annotated.csv": (
            b"Community,Id,Request,Score1,Score2,TurkId1,Normalized Score\n"
            b'Wikipedia,1,"Thanks a lot, could you look at <url>?",19,21,A1,1.12\n'
            b"Wikipedia,2,Why did you remove it?,9,7,A2,-0.75\n"
            b'Wikipedia,3,"Hi, nice work. May I ask a ""small"" thing?",23,22,A1,1.61\n'
            b"Wikipedia,4,Stop that.,4,5,A3,-1.9\n"
            b"Wikipedia,5,Where is the source?,12,13,A3,0.02\n"
        ),
    },
    yaml="""\
name: politeness
kind: sentence_regression
files: {train: wikipedia.annotated.csv}
dev_from: train[-2:]
format: csv
columns: {text: Request, label: Normalized Score}
range: [-3, 3]
metric: mse
""",
    train=[
        (("Thanks a lot, could you look at <url>?",), 1.12), (("Why did you remove it?",), -0.75),
        (('Hi, nice work. May I ask a "small" thing?',), 1.61),
    ],
    dev=[(("Stop that.",), -1.9), (("Where is the source?",), 0.02)],
    notes=("dev = train[-2:]",),
    asked=("wikipedia.annotated.csv",),
    guessed={"kind": "sentence_regression", "columns": {"text": "Request", "label": "Normalized Score"}},
)  # fmt: skip

GOEMOTIONS = Layout(
    files={
        "train.tsv": (
            b"My favourite food!\t2\tab1\n"
            b'Why, that is "odd"\t0,1\tab2\n'
            b"Hours of it\t1\tab3\n"
            b"No idea\t2\tab4\n"
        ),
        "dev.tsv": b"Is it so?\t1\tab5\nLovely and odd\t2,1\tab6\n",
        "test.tsv": b"Well\t0\tab7\n",
    },
    yaml="""\
name: goemotions
kind: multi_label_classification
files: {train: train.tsv, dev: dev.tsv, test: test.tsv}
format: tsv
header: false
columns: {text: 0, label: 1}
labels: {0: anger, 1: confusion, 2: joy}
metric: macro_f1
also: [micro_f1, average_precision]
""",
    train=[
        (("My favourite food!",), ("joy",)), (('Why, that is "odd"',), ("anger", "confusion")),
        (("Hours of it",), ("confusion",)), (("No idea",), ("joy",)),
    ],
    dev=[(("Is it so?",), ("confusion",)), (("Lovely and odd",), ("confusion", "joy"))],
    asked=("train.tsv", "dev.tsv", "test.tsv"),
    guessed={"kind": "multi_label_classification", "columns": {"text": "0", "label": "1"}, "labels": ["0", "1", "2"]},
)  # fmt: skip

GOEMOTIONS_COLUMNS = Layout(
    files={
        "goemotions_1.csv": (
            b"text,id,rater_id,anger,confusion,joy\n"
            b"That game hurt.,e1,37,0,0,0\n"
            b'"Why, of all things",e2,18,1,1,0\n'
            b"Lovely,e3,4,0,0,1\n"
            b"Odd but lovely,e4,4,0,1,1\n"
        ),
    },
    yaml="""\
name: goemotions_raw
kind: multi_label_classification
files: {train: goemotions_1.csv}
dev_from: train[-1:]
format: csv
columns: {text: text, label: [anger, confusion, joy]}
""",
    train=[
        (("That game hurt.",), ()), (("Why, of all things",), ("anger", "confusion")), (("Lovely",), ("joy",)),
    ],
    dev=[(("Odd but lovely",), ("confusion", "joy"))],
    notes=("dev = train[-1:]",),
    asked=("goemotions_1.csv",),
    guessed={"columns": {"text": "text", "label": ["anger", "confusion", "joy"]}},
)  # fmt: skip

TOPICS = Layout(
    files={
        "train.jsonl": json_lines(
            {"body": "grain up", "topics": ["grain", "trade"]}, {"body": "no news today", "topics": []},
            {"body": "ships sail", "topics": None}, {"body": "oil down", "topics": ["oil"]},
        ),
        "dev.jsonl": json_lines({"body": "oil and grain", "topics": ["oil", "grain"]}),
    },
    yaml="""\
name: topics
kind: multi_label_classification
files: {train: train.jsonl, dev: dev.jsonl}
format: jsonl
columns: {text: body, label: topics}
labels: [grain, oil, trade]
""",
    train=[
        (("grain up",), ("grain", "trade")), (("no news today",), ()), (("ships sail",), ()), (("oil down",), ("oil",)),
    ],
    dev=[(("oil and grain",), ("grain", "oil"))],
    asked=("train.jsonl", "dev.jsonl"),
    guessed={"kind": "multi_label_classification", "columns": {"text": "body", "label": "topics"}},
)  # fmt: skip

STARS = Layout(
    files={
        "train.jsonl": json_lines(
            {"text": "broke at once", "stars": 1}, {"text": "it is fine", "stars": 3}, {"text": "superb", "stars": 5},
        ),
        "dev.jsonl": json_lines({"text": "not bad", "stars": 4}, {"text": "poor", "stars": 2}),
    },
    yaml="""\
name: stars
kind: ordinal_classification
files: {train: train.jsonl, dev: dev.jsonl}
format: jsonl
columns: {text: text, label: stars}
labels: {1: "1 star", 2: "2 stars", 3: "3 stars", 4: "4 stars", 5: "5 stars"}
""",
    train=[(("broke at once",), "1 star"), (("it is fine",), "3 stars"), (("superb",), "5 stars")],
    dev=[(("not bad",), "4 stars"), (("poor",), "2 stars")],
    asked=("train.jsonl", "dev.jsonl"),
    guessed={"kind": "sentence_classification", "labels": ["1", "2", "3", "4", "5"]},
)  # fmt: skip

LAYOUTS = {
    "imdb": IMDB, "snli": SNLI,
    "ontonotes": ONTONOTES, "kaggle": KAGGLE, "semicolons": SEMICOLONS, "nested": NESTED, "trec": TREC,
    "split_column": SPLIT_COLUMN,
    "politeness": POLITENESS, "goemotions": GOEMOTIONS, "goemotions_columns": GOEMOTIONS_COLUMNS, "topics": TOPICS,
    "stars": STARS,
}  # fmt: skip
