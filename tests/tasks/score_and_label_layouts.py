"""Data sets of scores, of several labels and of ordered classes of single texts in their original layouts.

A few rows each, written by hand; no row is of the data sets themselves.
"""

from __future__ import annotations

from meltpoint.tests.tasks.layout import Layout, json_lines

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
