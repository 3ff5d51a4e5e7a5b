"""`predict`: files of texts in every format, with a real exported model of each kind; whole or nothing written."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from meltpoint.adapters import encoders, exported_model
from meltpoint.adapters.data.tokenising import encode_split
from meltpoint.adapters.exported_model import ExportedModel, load_folder, save_folder
from meltpoint.adapters.model import Member, build
from meltpoint.adapters.settings import complete
from meltpoint.launch import app
from meltpoint.sweeps.results.export import model_folder
from meltpoint.sweeps.results.predicting import predict_file
from meltpoint.sweeps.results.text_files import FORMATS, read_pieces, writing
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.conll import ConllLayout
from meltpoint.tasks.core.task import KINDS, Example, Kind, Task
from meltpoint.tests.tiny_parts import BAD, GOOD, save_tiny_bert

LABELS = {"pair_regression": (), "sentence_regression": (), "sequence_labelling": ("O", "B-X", "I-X")}
ROWS = [("the film, was good", "a"), ('a "bad" meal', "b"), ("NA", "c"), ("crème brûlée 🙂", "d"), ("", "e")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Kind, Path]:
    """A random exported model of each kind."""
    bert = tmp_path_factory.mktemp("bert")
    save_tiny_bert(bert, [*GOOD, *BAD, "film", "meal", "the", "was"])
    found = {}
    for kind in KINDS:
        task = Task(
            name="t", kind=kind, metric="accuracy", folder="", readers={}, labels=LABELS.get(kind, ("no", "yes")),
            label_range=(0.0, 5.0) if kinds.get(kind).is_regression else None,
        )  # fmt: skip
        setting = complete({}, "fine_tuning", "linear")
        encoder = encoders.load(encoders.resolve(f"hf:{bert}", kind))
        model = build(encoder, task, "fine_tuning", "linear", [Member(setting, 0)], "cpu")
        found[kind] = tmp_path_factory.mktemp(kind)
        save_folder(found[kind], model, task, "fine_tuning", "linear", setting, "fp32", {})
    return found


@pytest.fixture(scope="module")
def classifier(folders: dict[Kind, Path]) -> ExportedModel:
    return load_folder(folders["sentence_classification"])


def written(path: Path) -> Path:
    """A file of `ROWS` in the format of its ending."""
    frame = pandas.DataFrame(ROWS, columns=["text", "source"])
    form = path.suffix[1:]
    if form == "csv":
        frame.to_csv(path, index=False)
    elif form == "tsv":
        path.write_text("text\tsource\n" + "".join(f"{text}\t{source}\n" for text, source in ROWS), encoding="utf-8")
    elif form == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif form == "parquet":
        frame.to_parquet(path)
    else:
        path.write_text("".join(f"{text}\n" for text, _ in ROWS), encoding="utf-8")
    return path


@pytest.mark.parametrize("out", FORMATS)
@pytest.mark.parametrize("form", FORMATS)
def test_every_format_in_and_out_has_the_predictions_of_predict(classifier, tmp_path, form, out):
    source, target = written(tmp_path / f"in.{form}"), tmp_path / f"out.{out}"
    assert predict_file(classifier, source, target, rows=2) == len(ROWS)
    texts = [text for text, _ in ROWS]
    expected = [classifier.predict([text])[0] for text in texts]
    if out == "txt":
        assert target.read_text(encoding="utf-8").splitlines() == expected
        return
    (read,) = read_pieces(target, 100)
    assert list(read["prediction"]) == expected
    assert list(read["text"]) == texts
    if form != "txt":
        assert list(read["source"]) == [source for _, source in ROWS]


def test_probabilities_are_a_column_a_label_and_sum_to_one(classifier, tmp_path):
    target = tmp_path / "out.parquet"
    predict_file(classifier, written(tmp_path / "in.csv"), target, probabilities=True)
    read = pandas.read_parquet(target)
    shares = read[["probability.no", "probability.yes"]].to_numpy()
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, atol=1e-6)
    assert list(read["prediction"]) == [("no", "yes")[place] for place in shares.argmax(axis=1)]
    one = classifier.predict(["the film was good"], probabilities=True)
    assert one[0].keys() == {"no", "yes"}
    assert classifier.predict_proba([]).shape == (0, 2)


def test_pairs_scores_and_labels_of_words_are_predicted_too(folders, tmp_path):
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("sentence1,sentence2\nthe film,the meal\na,b\n", encoding="utf-8")
    scores = load_folder(folders["pair_regression"])
    predict_file(scores, pairs, tmp_path / "scores.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["prediction"] for line in lines] == pytest.approx(
        scores.predict([("the film", "the meal"), ("a", "b")])
    )
    words = tmp_path / "words.jsonl"
    words.write_text('{"tokens": ["the", "film"]}\n{"tokens": ["was", "good", "film"]}\n', encoding="utf-8")
    predict_file(load_folder(folders["sequence_labelling"]), words, tmp_path / "labels.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "labels.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [len(line["prediction"]) for line in lines] == [2, 3]
    predict_file(load_folder(folders["sequence_labelling"]), words, tmp_path / "labels.csv")
    assert len(pandas.read_csv(tmp_path / "labels.csv")["prediction"][1].split()) == 3


@pytest.mark.parametrize("kind", ["sequence_labelling", "word_tagging"])
def test_columns_of_words_are_predicted_from_the_columns_that_the_model_was_trained_on(folders, tmp_path, kind):
    source = tmp_path / "in.conllu"
    source.write_text("# sent_id = 0\n1\tNew film\tX\n2\twas\tX\n\n1\tgood\tX\n", encoding="utf-8")
    model = replace(load_folder(folders[kind]), task=replace(load_folder(folders[kind]).task, conll_columns=(1, -1)))
    tags = model.predict([["New film", "was"], ["good"]])
    assert predict_file(model, source, tmp_path / "out.conll", rows=1) == 2
    first, second = tags
    assert (tmp_path / "out.conll").read_text("utf-8") == (
        f"1\tNew film\tX\t{first[0]}\n2\twas\tX\t{first[1]}\n\n1\tgood\tX\t{second[0]}\n\n"
    )
    predict_file(model, source, tmp_path / "out.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]
    assert [(row["1"], row["prediction"]) for row in rows] == [(["New film", "was"], tags[0]), (["good"], tags[1])]
    (pieces,) = read_pieces(tmp_path / "out.conll", 9, ConllLayout(1, needs_tag=False))
    assert list(pieces["3"]) == tags
    predict_file(replace(model, task=replace(model.task, conll_columns=None)), source, tmp_path / "x.jsonl", ["1"])
    assert (tmp_path / "x.jsonl").read_bytes() == (tmp_path / "out.jsonl").read_bytes()


def of_columns(model: ExportedModel, *columns: tuple[str, ...], joiner: str = " ") -> ExportedModel:
    return replace(model, task=replace(model.task, text_columns=columns, joiner=joiner))


def test_texts_are_read_from_the_columns_that_the_model_was_trained_on(classifier, folders, tmp_path):
    rows = [
        {"text": "good", "words": 8, "title": "bad", "reviews": [{"body": "awful film"}]},
        {"text": "bad", "words": 9, "title": "", "reviews": [{"body": " great meal"}]},
    ]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    model = of_columns(classifier, ("title", "reviews.0.body"), joiner=" and ")

    def are_read(texts: list[str], reader: ExportedModel, file: Path, columns: Sequence[str] = ()) -> None:
        predict_file(reader, file, out, columns, probabilities=True)
        found = [json.loads(line)["probability.no"] for line in out.read_text(encoding="utf-8").splitlines()]
        assert found == pytest.approx(list(classifier.predict_proba(texts)[:, 0]))

    are_read(["bad and awful film", "great meal"], model, source)
    are_read(["good", "bad"], model, source, ["text"])
    are_read(["good and bad", "bad"], model, source, ["text", "title"])
    are_read(["8", "9"], of_columns(classifier, ("words",)), source)
    table = tmp_path / "in.csv"
    table.write_text("text,title\ngood,bad\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"trained on title \+ reviews.0.body\); name it with --text"):
        predict_file(model, table, out)
    are_read(["good"], of_columns(classifier, ("review",)), table)  # another name in the new file


def test_a_table_has_the_columns_of_its_first_rows_wherever_a_line_of_jsonl_has_them(classifier, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text('{"id": "a", "text": "good"}\n{"text": "bad", "id": "b"}\n{"text": "film"}\n', encoding="utf-8")
    predict_file(classifier, source, tmp_path / "out.csv", rows=1)
    found = pandas.read_csv(tmp_path / "out.csv")
    assert list(found["text"]) == ["good", "bad", "film"]
    assert list(found["id"].fillna("")) == ["a", "b", ""]
    source.write_text('{"text": "good"}\n{"text": "bad", "note": "late"}\n', encoding="utf-8")
    for form in ("csv", "parquet"):
        with pytest.raises(ValueError, match="have no note, and a table is written from them; write jsonl"):
            predict_file(classifier, source, tmp_path / f"new.{form}", rows=1)
    assert not (tmp_path / "new.csv").exists()
    assert predict_file(classifier, source, tmp_path / "new.txt", rows=1) == 2, "predictions alone have no columns"


def test_parquet_keeps_the_types_of_its_input_also_of_a_column_that_begins_with_nulls(classifier, tmp_path):
    table = pyarrow.table({"text": ["good", "bad"], "n": pyarrow.array([None, 3], "int64")})
    parquet.write_table(table, tmp_path / "in.parquet")
    predict_file(classifier, tmp_path / "in.parquet", tmp_path / "out.parquet", rows=1)
    found = parquet.read_table(tmp_path / "out.parquet")
    nested = pyarrow.table({"title": pyarrow.array([None, "bad"]), "reviews": [[{"body": "good"}], [{"body": "film"}]]})
    parquet.write_table(nested, tmp_path / "nested.parquet")
    model = of_columns(classifier, ("title", "reviews.0.body"))
    predict_file(model, tmp_path / "nested.parquet", tmp_path / "nested.csv", probabilities=True)
    shares = pandas.read_csv(tmp_path / "nested.csv")["probability.no"]
    assert list(shares) == pytest.approx(list(classifier.predict_proba(["good", "bad film"])[:, 0]))
    assert found.schema.field("n").type == pyarrow.int64()
    assert found["n"].to_pylist() == [None, 3]
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "good", "n": null}\n{"text": "bad", "n": 3}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"does not fit parquet .*write jsonl"):
        predict_file(classifier, source, tmp_path / "other.parquet", rows=1)


def test_a_tagger_in_documents_reads_the_documents_of_a_column_file(folders, tmp_path, monkeypatch):
    source = tmp_path / "in.conll"
    source.write_text("-DOCSTART- O\n\nthe O\nfilm O\n\nwas O\n\n-DOCSTART- O\n\ngood O\n\n", encoding="utf-8")
    model = load_folder(folders["sequence_labelling"])
    model = replace(model, input_format=replace(model.input_format, context="document"))
    seen: list[list[str]] = []

    def encoded(kind: Kind, examples: list[Example], *further: Any) -> Any:
        seen.append([example.group for example in examples])
        return encode_split(kind, examples, *further)

    monkeypatch.setattr(exported_model, "encode_split", encoded)
    predict_file(model, source, tmp_path / "out.jsonl", rows=1)
    assert seen == [["1", "1", "2"]]


def test_score_takes_labels_as_python_and_pandas_spell_them(classifier):
    model = replace(classifier, task=replace(classifier.task, labels=("false", "true")))
    texts = ["good", "bad film"]
    found = model.predict(texts)
    assert model.score(texts, [name == "true" for name in found]) == 1.0
    numbered = replace(classifier, task=replace(classifier.task, labels=("0", "1")))
    scores = [float(name) for name in numbered.predict(texts)]
    for labels in (scores, np.array(scores), pandas.Series(scores)):
        assert numbered.score(texts, labels) == 1.0
    with pytest.raises(ValueError, match="no label is one of the model's"):
        model.score(texts, ["a", "b"])


def test_columns_of_words_that_cannot_be_meant_are_refused_in_one_line(folders, tmp_path):
    words, texts = folders["sequence_labelling"], folders["sentence_classification"]
    columns = tmp_path / "in.conll"
    columns.write_text("# sent_id = 0\nthe O\nfilm S-X\n\nwas O\n", encoding="utf-8")
    assert "this model reads texts; use txt or csv" in refused(texts, columns)
    assert "write a column number of" in refused(words, columns, "--text", "words")
    assert "line 2: 2 columns, not at least 3" in refused(words, columns, "--text", "2")
    assert "conll is only for predictions per word" in refused(
        texts, written(tmp_path / "a.csv"), "--out", tmp_path / "o.conll"
    )
    assert not (tmp_path / "o.conll").exists()
    (tmp_path / "in.jsonl").write_text('{"words": ["a\\tb"]}\n', encoding="utf-8")
    assert "a word contains a tab" in refused(words, tmp_path / "in.jsonl", "--out", tmp_path / "o.conll")


def refused(*words: str | Path) -> str:
    result = CliRunner().invoke(app, ["predict", *map(str, words)])
    assert result.exit_code == 2, result.output
    lines = [line for line in result.stderr.splitlines() if not line.endswith(" rows")]
    assert len(lines) == 1, result.stderr
    return lines[0]


def test_a_wrong_file_column_or_model_is_refused_in_one_line(folders, tmp_path):
    model, table = folders["sentence_classification"], written(tmp_path / "in.csv")
    assert "missing" in refused(model, tmp_path / "none.csv")
    assert "jsonl" in refused(model, written(tmp_path / "in.csv").rename(tmp_path / "in.json"))
    table = written(tmp_path / "in.csv")
    assert "parquet" in refused(model, table, "--out", tmp_path / "out.xls")
    assert "Did you mean text" in refused(model, table, "--text", "txet")
    assert "reads 1 text" in refused(model, table, "--text", "text", "--text", "source")
    assert "neither a model folder nor a sweep in runs" in refused(tmp_path, table)
    assert "device" in refused(model, table, "--device", "tpu")
    assert "--probabilities" in refused(folders["pair_regression"], table, "--probabilities")
    assert "no known text column" in refused(folders["pair_classification"], table)
    (tmp_path / "mixed.csv").write_bytes("text\ncafé\nthé\nété\n".encode() + "né\n".encode("latin-1"))
    assert "line 5 is not UTF-8" in refused(model, tmp_path / "mixed.csv")
    (tmp_path / "one.csv").write_text("text;label\ngood\nbad\n", encoding="utf-8")
    assert "separated by semicolons" in refused(model, tmp_path / "one.csv")
    (tmp_path / "broken.csv").write_text('text,b\n"x,1\n', encoding="utf-8")
    assert "broken.csv" in refused(model, tmp_path / "broken.csv")
    (tmp_path / "empty.csv").write_text("", encoding="utf-8")
    assert "empty.csv" in refused(model, tmp_path / "empty.csv")


def test_columns_of_jsonl_come_out_as_they_went_in(classifier, tmp_path):
    rows = [
        {"text": "good", "id": 1, "long": 12345678901234567, "share": 0.1, "nested": {"a": [1, None]}, "none": None},
        {"text": "bad", "long": 2},
    ]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    predict_file(classifier, source, target)
    first, second = (json.loads(line) for line in target.read_text(encoding="utf-8").splitlines())
    assert json.dumps({name: first[name] for name in rows[0]}) == json.dumps(rows[0])
    assert (second["text"], second["long"], second["id"]) == ("bad", 2, None)


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ('{"text": null}', "row 2 has None instead of a text"),
        ('{"other": 1}', "row 2 has None instead of a text"),
        ('{"text": ["a"]}', "row 2 has ['a'] instead of a text"),
        ('{"text": "bad", "prediction": 1}', "already has a column prediction"),
    ],
)
def test_a_row_without_a_text_and_a_column_that_predictions_would_replace_are_refused(folders, tmp_path, row, fault):
    source = tmp_path / "in.jsonl"
    source.write_text(f'{{"text": "good"}}\n{row}\n', encoding="utf-8")
    assert fault in refused(folders["sentence_classification"], source, "--text", "text")


def test_one_column_is_not_taken_for_both_texts_of_a_pair(folders, tmp_path):
    source = tmp_path / "in.csv"
    source.write_text("a,b\none,two\n", encoding="utf-8")
    assert "--text names a twice" in refused(folders["pair_regression"], source, "--text", "a", "--text", "a")


@pytest.mark.parametrize(
    ("line", "fault"), [("[1]", "in.jsonl, line 2: not a JSON object"), ('{"text"', "in.jsonl, line 2: not JSON: ")]
)
def test_a_line_of_jsonl_that_cannot_be_read_is_named(folders, tmp_path, line, fault):
    source = tmp_path / "in.jsonl"
    source.write_text(f'{{"text": "good"}}\n{line}\n', encoding="utf-8")
    assert fault in refused(folders["sentence_classification"], source)


def test_a_file_that_fails_half_way_leaves_the_old_output_as_it_was(classifier, tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.csv"
    source.write_text('{"text": "good"}\n{"text": "bad"}\n{"text": \n', encoding="utf-8")
    target.write_text("old", encoding="utf-8")
    with pytest.raises(ValueError, match=r"in\.jsonl"):
        predict_file(classifier, source, target, rows=1)
    assert target.read_text(encoding="utf-8") == "old"


def test_without_an_output_file_json_lines_are_printed(folders, tmp_path):
    result = CliRunner().invoke(
        app, ["predict", str(folders["sentence_classification"]), str(written(tmp_path / "in.tsv"))]
    )
    assert result.exit_code == 0, result.output
    assert [json.loads(line)["text"] for line in result.stdout.splitlines()] == [text for text, _ in ROWS]


def test_a_text_of_a_hundred_thousand_lines_is_read_in_pieces(tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("a\n" * 100_000, encoding="utf-8")
    sizes = [len(piece) for piece in read_pieces(path, 1024)]
    assert sum(sizes) == 100_000
    assert max(sizes) == 1024
    with writing(tmp_path / "copy.tsv", sys.stdout) as write:
        for piece in read_pieces(path, 1024):
            write(piece.assign(prediction="x"))
    assert sum(1 for _ in (tmp_path / "copy.tsv").open(encoding="utf-8")) == 100_001


def test_a_text_of_several_lines_is_one_row_of_a_tsv_file(tmp_path):
    with writing(tmp_path / "out.tsv", sys.stdout) as write:
        write(pandas.DataFrame({"text": ["one\r\ntwo\tthree\nfour\rfive"], "prediction": ["x"]}))
    assert (tmp_path / "out.tsv").read_bytes() == b"text\tprediction\none two three four five\tx\n"


def test_a_sweep_that_kept_a_model_is_named_in_place_of_its_folder(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name / "exports" / "a.b.c.model").mkdir(parents=True)
        (tmp_path / name / "sweep.json").write_text("{}", encoding="utf-8")
    (tmp_path / "first" / "model").mkdir()
    (tmp_path / "first" / "model" / "meltpoint.json").write_text("{}", encoding="utf-8")
    kept = tmp_path / "first" / "model"
    assert model_folder("first", str(tmp_path)) == model_folder(str(kept), "elsewhere") == kept
    with pytest.raises(ValueError, match=r"second kept no model; name one of .*a\.b\.c\.model, or run "):
        model_folder("second", str(tmp_path))
    with pytest.raises(ValueError, match=r"third is neither a model folder nor a sweep in .* Such sweeps: first\."):
        model_folder("third", str(tmp_path))
