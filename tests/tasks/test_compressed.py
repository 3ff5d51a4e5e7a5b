"""Compressed files: read like others, bounded, and refused in one line where they are damaged."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import zipfile
from pathlib import Path

import pytest

from meltpoint.tasks.core import files as compressed
from meltpoint.tasks.core.files import MOST_GROWTH, is_compressed, read_data_bytes, without_suffix
from meltpoint.tasks.core.readers import read_lines, read_text

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
    assert read_lines(path) == ["ein Text", "noch ein é"]
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
            read_data_bytes(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", PACKED)
def test_what_unpacks_to_more_than_text_would_is_refused_before_it_fills_the_memory(suffix, tmp_path, monkeypatch):
    monkeypatch.setattr(compressed, "MOST_DOCUMENT_BYTES", 2**20)
    path = tmp_path / f"bomb{suffix}"
    path.write_bytes(PACKED[suffix](b"\0" * 2**24))
    assert path.stat().st_size * MOST_GROWTH < 2**24
    with pytest.raises(ValueError, match=r"unpacks to more than .* Unpack it, and name the unpacked file"):
        read_data_bytes(path)


def test_the_limit_of_a_file_holds_for_what_it_unpacks_to(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"x" * 100))
    assert len(read_data_bytes(path, 100)) == 100
    with pytest.raises(ValueError, match="unpacks to more"):
        read_data_bytes(path, 99)


def test_an_archive_has_one_file(tmp_path):
    path = tmp_path / "a.zip"
    path.write_bytes(zipped(**{"folder/": b"", "folder/a.csv": TEXT, "__MACOSX/folder/._a.csv": b"x"}))
    assert read_data_bytes(path) == TEXT
    for files in ({"a": b"1", "b": b"2"}, {}):
        path.write_bytes(zipped(**files))
        with pytest.raises(ValueError, match=r"holds \d files? .*Unpack it, and name the file in it"):
            read_data_bytes(path)


def test_a_missing_compressed_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"a\.gz is missing"):
        read_text(Path(tmp_path / "a.gz"))
