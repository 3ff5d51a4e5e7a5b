"""A data set in its original layout: its files, the task file that reads them, and the expected examples.

Sentences: a few rows each, written by hand, odd ones among them. No row is of the data sets themselves.
"""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Layout:
    """A data set as its authors publish it.

    Attributes:
        files: path → contents.
        yaml: the task file.
        train, dev: the expected examples: (texts or words, label's name or score or tags), in order; None where dev is
            drawn, and `train` then holds those of both.
        notes: the expected remarks.
        asked: the files that `new-task` is given; () if it cannot guess the format.
        guessed: what `new-task` has to find: keys of the task file with their values.
    """

    files: Mapping[str, bytes]
    yaml: str
    train: list[tuple[object, object]]
    dev: list[tuple[object, object]] | None = None
    notes: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    guessed: Mapping[str, object] | None = None

    def write(self, folder: Path) -> str:
        """Write the files and the task file; returns its path."""
        for name, contents in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents)
        task = folder / "task.yaml"
        task.write_text(self.yaml, encoding="utf-8")
        return str(task)


def json_lines(*rows: object) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def zipped(name: str, contents: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, contents)
    return out.getvalue()


IMDB = Layout(
    files={
        "aclImdb/train/neg/0_3.txt": b"Dull from the first scene.<br /><br />I left early.",
        "aclImdb/train/neg/10_1": b"From: a@b.example (M\xfcller)\n\nText \xa7 1\n",
        "aclImdb/train/neg/1_2.txt": b"No.",
        "aclImdb/train/pos/0_9.txt": b"Warm, quiet, lovely. \n",
        "aclImdb/train/pos/1_10.txt": b"I would see it again",
        "aclImdb/train/pos/2_8.txt": b"A small wonder.",
        "aclImdb/train/unsup/0_0.txt": b"Nobody knows.",
        "aclImdb/train/urls_pos.txt": b"http://example.org/1\n",
        "aclImdb/test/neg/0_2.txt": b"Cold.",
        "aclImdb/test/pos/0_10.txt": b"Fine.",
    },
    yaml="""\
name: imdb
kind: sentence_classification
files: {train: aclImdb/train, test: aclImdb/test}
dev_from: {from: train, fold: 0, of: 3, seed: 1}
format: folders
encoding: latin-1
labels: [neg, pos]
skip_labels: [unsup]
""",
    train=[
        (("Dull from the first scene.<br /><br />I left early.",), "neg"),
        (("From: a@b.example (Müller)\n\nText § 1",), "neg"), (("No.",), "neg"),
        (("Warm, quiet, lovely.",), "pos"), (("I would see it again",), "pos"), (("A small wonder.",), "pos"),
    ],
    notes=("dev = fold 0 (of 0 to 2) of train, stratified, seed 1",),
)  # fmt: skip


KAGGLE = Layout(
    files={
        "train.csv.zip": zipped("train.csv", (
            "\ufeffid,comment_text,target\n"
            '1,"So ""funny"" 😂, really\n\nline two",0\n2,"Go away, you 🤡!!",1\n3,   ,0\n4,plain words here,0\n'
            '5,"",1\n6,"ça va 👩‍👩‍👧",0\n7,never again you people,1\n'
        ).encode()),
    },
    yaml="""\
name: toxic
kind: sentence_classification
files: {train: train.csv.zip}
dev_from: train[-2:]
format: csv
columns: {text: comment_text, label: target}
labels: {0: fine, 1: toxic}
empty: skip
""",
    train=[
        (('So "funny" 😂, really\n\nline two',), "fine"), (("Go away, you 🤡!!",), "toxic"),
        (("plain words here",), "fine"),
    ],
    dev=[(("ça va 👩‍👩‍👧",), "fine"), (("never again you people",), "toxic")],
    notes=("train: 2 rows with an empty text left out", "dev = train[-2:]"),
    asked=("train.csv.zip",),
    guessed={
        "kind": "sentence_classification", "format": "csv", "columns": {"text": "comment_text", "label": "target"},
        "empty": "skip",
    },
)  # fmt: skip

SEMICOLONS = Layout(
    files={
        "avis.csv": (
            "texte;note\n\"Très bon; à refaire\";positif\nDéçu par l'hôtel;négatif\nCher, mais propre;positif\n"
            "Réveillé à 5 h;négatif\n"
        ).encode("latin-1"),
        "avis_dev.csv": "texte;note\nÇa ira;positif\nJamais plus, c'était trop;négatif\n".encode("latin-1"),
    },
    yaml="""\
name: avis
kind: sentence_classification
files: {train: avis.csv, dev: avis_dev.csv}
format: csv
delimiter: ";"
encoding: latin-1
columns: {text: texte, label: note}
labels: [négatif, positif]
""",
    train=[
        (("Très bon; à refaire",), "positif"), (("Déçu par l'hôtel",), "négatif"), (("Cher, mais propre",), "positif"),
        (("Réveillé à 5 h",), "négatif"),
    ],
    dev=[(("Ça ira",), "positif"), (("Jamais plus, c'était trop",), "négatif")],
    asked=("avis.csv", "avis_dev.csv"),
    guessed={"format": "csv", "delimiter": ";", "encoding": "cp1252", "columns": {"text": "texte", "label": "note"}},
)  # fmt: skip

NESTED = Layout(
    files={
        "reviews.jsonl.gz": gzip.compress(json_lines(
            {"id": 7, "reviews": [{"body": "Good shoes", "lang": "en"}], "meta": {"stars": 5.0}},
            {"id": 8, "reviews": [{"body": "Bad sole", "lang": "en"}, {"body": "?"}], "meta": {"stars": 1}},
            {"id": 9, "reviews": [{"body": "They hold", "lang": "en"}], "meta": {"stars": 4}},
            {"id": 10, "reviews": [{"body": "They leak a lot", "lang": "en"}], "meta": {"stars": 2}},
        )),
    },
    yaml="""\
name: shoes
kind: sentence_classification
files: {train: reviews.jsonl.gz}
dev_from: train[50%:]
format: jsonl
columns: {text: reviews.0.body, label: meta.stars}
labels: {1: bad, 2: bad, 4: good, 5: good}
""",
    train=[(("Good shoes",), "good"), (("Bad sole",), "bad")],
    dev=[(("They hold",), "good"), (("They leak a lot",), "bad")],
    notes=("dev = train[50%:]",),
    asked=("reviews.jsonl.gz",),
    guessed={"format": "jsonl", "columns": {"text": "reviews.0.body", "label": "meta.stars"}},
)  # fmt: skip

TREC = Layout(
    files={
        "train_5500.label": (
            "DESC:manner How did serfdom develop ?\nHUM:ind Who was Ren\xe9 : a : man ?\n"
            "LOC:city What is `` the '' capital ?\nHUM:gr Which team won ?\n"
        ).encode("latin-1"),
        "TREC_10.label": b"LOC:other Where is it ?\n",
    },
    yaml=r"""
name: trec
kind: sentence_classification
files: {train: train_5500.label, test: TREC_10.label}
dev_from: train[-2:]
format: lines
encoding: latin-1
pattern: '(?P<label>[A-Z]+):\S+ (?P<text>.+)'
labels: [DESC, HUM, LOC]
""".lstrip(),
    train=[(("How did serfdom develop ?",), "DESC"), (("Who was René : a : man ?",), "HUM")],
    dev=[(("What is `` the '' capital ?",), "LOC"), (("Which team won ?",), "HUM")],
    notes=("dev = train[-2:]",),
)
