"""Files of examples, plain and compressed: read strictly, refused in one line."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import zipfile

import pytest

from meltpoint.tasks.core.files import is_compressed, without_suffix
from meltpoint.tasks.core.readers import data_bytes, read_lines, read_table, read_text
from meltpoint.tasks.sst2 import parse_tree, read_roots, read_sentences, read_subtrees


def write(tmp_path, data, name="data.txt"):
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def message(function, *args, **kwargs):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (every test below matches the text itself)
        function(*args, **kwargs)
    text = str(caught.value)
    assert "\n" not in text
    return text


def rows_of(*args, **kwargs):
    return list(read_table(*args, **kwargs))


@pytest.mark.parametrize("data", [b"", b"\n\n  \n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_refused(tmp_path, data):
    assert "is empty" in message(read_text, write(tmp_path, data))


@pytest.mark.parametrize(("start", "byte"), [(b"", 9), (b"\xef\xbb\xbf", 12)])
def test_bytes_that_are_not_utf8_are_named_by_line_and_position(tmp_path, start, byte):
    path = write(tmp_path, start + b"good\n1\tba\xe9d\n")
    assert f"{path}, line 2: byte {byte} (0xe9) is not UTF-8" in message(read_text, path)


def test_a_row_that_a_line_break_cut_in_pieces_is_one_row_again(tmp_path):
    path = write(tmp_path, 'id\ta\tb\n1\t"x\n\n"\ty\n2\tz\tw\n')
    rows = list(read_table(path, ["id", "a", "b"], header=True, broken_rows=True))
    assert [row.fields for row in rows] == [["1", '"x\n\n"', "y"], ["2", "z", "w"]]
    assert [row.line for row in rows] == [4, 5]
    assert "line 2: 2 fields, not 3" in message(rows_of, path, ["id", "a", "b"], header=True)


@pytest.mark.parametrize(("tail", "fields"), [("3\tz\n4\tz\tw\n", 4), ("3\tz\n", 2)])
def test_pieces_that_make_no_whole_row_are_refused(tmp_path, tail, fields):
    path = write(tmp_path, f"id\ta\tb\n1\tx\ty\n{tail}")
    text = message(rows_of, path, ["id"], header=True, broken_rows=True)
    assert f"line {3 + tail.count(chr(10)) - 1}: {fields} fields, not 3" in text


def test_damaged_characters_become_the_mark_of_one_where_a_file_is_known_to_have_them(tmp_path):
    path = write(tmp_path, b"1\tbought for \xe2\x82500 \xe2\x82\xb9\n")
    (row,) = read_table(path, ["label", "text"], header=False, damaged=True)
    assert row.text("text") == "bought for \ufffd500 \u20b9"
    assert "is not UTF-8" in message(rows_of, path, ["label", "text"], header=False)


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        ("a\rb\r", ["a", "b"]), ("a\r\nb", ["a", "b"]), ("a\rc\nb\n", ["a\rc", "b"]), ("\ufeffa\n\nb", ["a", "", "b"]),
        ("\ufeffa\u0085b\r\nc\u2028d\x0ce\u0012\nf", ["a\u0085b", "c\u2028d\x0ce\u0012", "f"]),
    ],
)  # fmt: skip
def test_lines_end_in_carriage_returns_only_where_there_are_no_line_feeds(tmp_path, data, lines):
    assert list(read_lines(write(tmp_path, data))) == lines


def csv_rows(path):
    found = rows_of(path, ["label", "text"], header=False, separator=",", quoted=True)
    return [(row.line, list(row.fields)) for row in found]


def test_cells_of_csv_keep_their_line_ends(tmp_path):
    path = write(tmp_path, '\ufeff"1","one, ""1""\r\ntwo\u2028"\r\n2,\u00e9\u0085\n')
    assert csv_rows(path) == [(2, ["1", 'one, "1"\r\ntwo\u2028']), (3, ["2", "\u00e9\u0085"])]


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "is empty"),
        (b"1,a\n1,a,b\n", "line 2: 3 fields, not 2. Repair or remove the row."),
        (b'1,"a\n', "line 1: broken row (unexpected end of data). Close every quote"),
        (b'1,"a"b\n', "line 1: broken row"),
        (b"\xef\xbb\xbf1,a\n1,\xe9\n", "line 2: byte 9 (0xe9) is not UTF-8"),
        (b"\xef\xbb\xbf1,\xe9\n", "line 1: byte 5 (0xe9) is not UTF-8"),
    ],
)
def test_a_broken_csv_is_refused_with_its_line(tmp_path, data, part):
    path = write(tmp_path, data)
    text = message(csv_rows, path)
    assert text.startswith(str(path))
    assert part in text


OUTSIDE = ("7.5", "5.0000001", "-1e-9", "5.000000000000001", "inf", "-inf")


@pytest.mark.parametrize("score", [*OUTSIDE, "many", "nan", ""])
def test_a_score_is_a_finite_number_within_its_range_and_shown_as_it_is_written(tmp_path, score):
    row = rows_of(write(tmp_path, f"ok\tx\n{score}\tx\n"), ["score", "text"], header=False)[1]
    said = f"the score {score} is outside 0 to 5" if score in OUTSIDE else f"'{score}' is not a number"
    assert f"line 2, field 1 (score): {said}" in message(row.score, "score", (0.0, 5.0))


def test_treebank_sentences_are_split_at_the_ascii_space_alone(tmp_path):
    path = write(tmp_path, "1 a -lrb- 2\u00a01\\/2 -rrb- \\*\\*\n0 no\n")
    examples = read_sentences(path)
    assert examples[0].texts == ("a ( 2\u00a01/2 ) **",)
    assert [example.label for example in examples] == [1, 0]
    assert "line 2: no sentence after the label" in message(read_sentences, write(tmp_path, "1 good\n0\n"))
    assert "line 1, field 1 (label)" in message(read_sentences, write(tmp_path, "2 good\n"))


def test_subtrees_are_the_nodes_that_are_not_neutral(tmp_path):
    path = write(tmp_path, "(3 (2 It) (4 (2 's) (4 (3 -LRB-) (1 Fun))))\n")
    phrases = {(example.texts[0], example.label) for example in read_subtrees(path)}
    assert phrases == {("It 's ( Fun", 1), ("'s ( Fun", 1), ("( Fun", 1), ("(", 1), ("Fun", 0)}


def test_the_roots_of_trees_are_the_whole_sentences_that_are_not_neutral(tmp_path):
    path = write(tmp_path, "(3 (2 It) (4 works))\n(2 (2 So) (1 what))\n(0 (2 -LRB-) (0 No))\n")
    assert [(one.id, one.texts, one.label) for one in read_roots(path)] == [
        ("0", ("It works",), 1), ("2", ("( No",), 0),
    ]  # fmt: skip


@pytest.mark.parametrize("line", ["(3 (2 It)", "3 It", "(5 It)", "(3 )", "()", "(3 a) b", ")"])
def test_a_broken_tree_is_named(tmp_path, line):
    assert "trees.txt, line 7: not a tree" in message(parse_tree, tmp_path / "trees.txt", 7, line)


TEXT = "ein Text\nnoch ein é\n".encode()


def zipped(**files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, contents in files.items():
            archive.writestr(name, contents)
    return out.getvalue()


PACKED = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zip": lambda data: zipped(a=data)}


@pytest.mark.parametrize("suffix", PACKED)
def test_a_compressed_file_reads_as_its_contents(suffix, tmp_path):
    path = tmp_path / f"data.csv{suffix}"
    path.write_bytes(PACKED[suffix](TEXT))
    assert list(read_lines(path)) == ["ein Text", "noch ein é"]
    assert is_compressed(path)
    assert without_suffix(path) == tmp_path / "data.csv"
    path.write_bytes(PACKED[suffix](b"a\n\xe9\n"))
    with pytest.raises(ValueError, match=r"line 2: byte 2 \(0xe9\) is not UTF-8"):
        read_text(path)


@pytest.mark.parametrize("suffix", PACKED)
def test_a_damaged_file_is_one_line(suffix, tmp_path):
    path = tmp_path / f"data{suffix}"
    whole = PACKED[suffix](os.urandom(5000))
    for damage in (whole[: len(whole) // 2], b"no such thing", whole[:200] + b"\0" * 50 + whole[250:]):
        path.write_bytes(damage)
        with pytest.raises(ValueError, match=r"cannot be unpacked \(.*Replace it with the complete file") as caught:
            data_bytes(path)
        assert "\n" not in str(caught.value)


def test_an_archive_has_one_file(tmp_path):
    path = tmp_path / "a.zip"
    path.write_bytes(zipped(**{"folder/": b"", "folder/a.csv": TEXT, "__MACOSX/folder/._a.csv": b"x"}))
    assert data_bytes(path) == TEXT
    for files in ({"a": b"1", "b": b"2"}, {}):
        path.write_bytes(zipped(**files))
        with pytest.raises(ValueError, match=r"holds \d files? .*Unpack it, and name one file"):
            data_bytes(path)
