"""Strict readers of text files; every error names the file, the line, the field and the remedy."""

from __future__ import annotations

import codecs
import csv
import io
import math
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from meltpoint.tasks.core import registry
from meltpoint.tasks.core.files import exists, opened
from meltpoint.tasks.core.task import Example, Label
from meltpoint.tasks.core.wording import some


def read_text(path: Path, encoding: str | None = None) -> str:
    """A file's text, unpacked if it is compressed and decoded; a byte order mark is dropped.

    Args:
        path: the file.
        encoding: the encoding that a task file declares; None for UTF-8.

    Raises:
        ValueError: the file is missing, unreadable, empty, or in another encoding (the line and byte are named).
    """
    return text_of(path, data_bytes(path), encoding)


def text_of(path: Path, data: bytes, encoding: str | None = None) -> str:
    """The text of a file's bytes; see `read_text` for arguments and errors."""
    text = decoded(path, data, encoding)
    if not text.strip():
        raise empty(path)
    if "\0" in text:
        raise null_character(path, text[: text.index("\0")].count("\n") + 1)
    return text


def data_bytes(path: Path) -> bytes:
    """A file's contents, unpacked if it is compressed.

    Raises:
        ValueError: the file is missing, unreadable or damaged.
    """
    try:
        with opened(path) as file:
            return file.read()
    except OSError as error:
        raise unreadable(path, error) from None


def decoded(path: Path, data: bytes, encoding: str | None = None) -> str:
    """The text of a file's bytes; see `read_text` for arguments and errors."""
    codec = _codec(encoding)
    try:
        return data.decode(codec)
    except UnicodeDecodeError as error:
        # `error.start` does not count the byte order mark.
        start = error.start + (3 if codec == "utf-8-sig" and data.startswith(BOM_UTF8) else 0)
        line = data[:start].decode(codec, "ignore").count("\n") + 1
        raise not_decodable(path, line, start, data[start], encoding) from None


def _codec(encoding: str | None) -> str:
    return "utf-8-sig" if encoding is None or is_utf8(encoding) else encoding


def is_utf8(encoding: str) -> bool:
    """True if an encoding is UTF-8, however it is spelled."""
    return codecs.lookup(encoding).name in {"utf-8", "utf-8-sig"}


def unreadable(path: Path, error: OSError) -> ValueError:
    """The error for a file that cannot be opened."""
    if isinstance(error, FileNotFoundError):
        return ValueError(f"{path} is missing. Put the file there, or check the folder's name.")
    return ValueError(f"{path} cannot be read ({error.strerror}). Make it a readable file.")


def not_decodable(path: Path, line: int, start: int, byte: int, encoding: str | None) -> ValueError:
    """The error for a byte, `start` bytes into the file, that an encoding does not have."""
    name, remedy = "UTF-8", "Convert the file to UTF-8, for example with iconv."
    if encoding is not None and is_utf8(encoding):
        remedy = f"{remedy[:-1]}, or name its encoding in the task file, as in encoding: latin-1."
    elif encoding is not None:
        name, remedy = encoding, "Correct encoding: in the task file, or convert the file to UTF-8."
    return ValueError(f"{path}, line {line}: byte {start} (0x{byte:02x}) is not {name}. {remedy}")


def empty(path: Path) -> ValueError:
    """The error for an empty file."""
    return ValueError(f"{path} is empty. Replace it with the complete file.")


def null_character(path: Path, line: int) -> ValueError:
    """The error for a null character, as in UTF-16 without a byte order mark."""
    remedy = "Name its encoding, as in encoding: utf-16-le, convert it to UTF-8, or remove the character."
    return ValueError(f"{path}, line {line}: a null character, which does not occur in text. {remedy}")


def with_line_feeds(text: str) -> str:
    """A text with line feeds instead of carriage returns, if its lines end in the latter only; others unchanged."""
    return text if "\n" in text else text.replace("\r", "\n")


def read_lines(path: Path, *, damaged: bool = False, encoding: str | None = None) -> Iterator[str]:
    r"""The lines of a text file, ended by `\n` or `\r\n`, or by `\r` where there is no `\n`; the last may lack its end.

    `str.splitlines` would also split at U+0085, U+2028 and others, which occur within real sentences.

    Args:
        path: the file.
        damaged: True if the file is known to contain bytes that are not UTF-8, which become U+FFFD.
        encoding: see `read_text`.
    """
    for number, line in enumerate(_pieces(path, "\n", encoding, damaged=damaged), 1):
        whole = line if number > 1 else with_line_feeds(line)
        yield from (part.removesuffix("\r") for part in whole.removesuffix("\n").split("\n"))


def _pieces(path: Path, newline: str, encoding: str | None, *, damaged: bool = False) -> Iterator[str]:
    """The pieces of a file with their ends, decoded; a byte order mark is dropped.

    Args:
        newline: as in `open`: "" for all three kinds of line ends, or the only kind.
    """
    number = 0
    try:
        with opened(path) as file:
            text = io.TextIOWrapper(file, _codec(encoding), "replace" if damaged else "strict", newline)
            for number, piece in enumerate(text, 1):
                if "\0" in piece and not damaged:
                    raise null_character(path, number)
                yield piece
    except UnicodeError as error:
        decoded(path, data_bytes(path), encoding)  # its error names the line and the byte
        raise ValueError(f"{path} is not {encoding} ({error}). Correct encoding: in the task file.") from None
    except OSError as error:
        raise unreadable(path, error) from None
    if not number:
        raise empty(path)


@dataclass(frozen=True, slots=True)
class Record:
    """One row of a table, with its position for error messages.

    Attributes:
        path: the file.
        line: the row's (last) line, counted from 1.
        fields: the cells.
        positions: column name → index in `fields`.
    """

    path: Path
    line: int
    fields: Sequence[str]
    positions: Mapping[str, int]

    def problem(self, column: str, what: str) -> ValueError:
        """The error for a wrong cell: file, line, field, and the problem."""
        return ValueError(f"{self.path}, line {self.line}, field {self.positions[column] + 1} ({column}): {what}")

    def cell(self, column: str) -> str:
        """The unchanged cell."""
        return self.fields[self.positions[column]]

    def text(self, column: str) -> str:
        """The cell without surrounding spaces; other white space, such as U+00A0, is part of the text.

        Raises:
            ValueError: the result is empty.
        """
        text = self.cell(column).strip(" ")
        if not text:
            raise self.problem(column, "the text is empty. Fill it in or remove the row.")
        return text

    def label(self, column: str, labels: Mapping[str, int] | Sequence[str], label: str | None = None) -> int:
        """The class id of the cell's label (or of one of its labels), by label → id or labels in the order of ids.

        Raises:
            ValueError: an unknown label; the known ones are listed.
        """
        cell = self.cell(column) if label is None else label
        if cell not in labels:
            raise self.problem(column, f"{registry.unknown(cell, 'label', labels)} Correct the file.")
        return labels[cell] if isinstance(labels, Mapping) else labels.index(cell)

    def score(self, column: str, label_range: tuple[float, float]) -> float:
        """The cell as a number within a range.

        Raises:
            ValueError: not a number, or outside the range.
        """
        low, high = label_range
        try:
            score = float(self.cell(column))
        except ValueError:
            score = math.nan
        if math.isnan(score):
            raise self.problem(
                column, f"'{self.cell(column)}' is not a number. Write a score from {shown(low)} to {shown(high)}."
            )
        if not low <= score <= high:
            ends = f"{shown(low)} to {shown(high)}"
            raise self.problem(column, f"the score {self.cell(column)} is outside {ends}. Correct it or the range.")
        return score


def examples_of(
    records: Iterable[Record], texts: Sequence[str], label: Callable[[Record], Label] = lambda record: None, *,
    id: Sequence[str] = (), group: str = "",
) -> list[Example]:  # fmt: skip
    """The examples of a table.

    Args:
        records: its rows.
        texts: the columns of the texts.
        label: a row's label; by default it is hidden.
        id: the columns of the id, which are joined by `-`; by default it is the row's index.
        group: the column of the group, or "".
    """
    return [
        Example(
            "-".join(map(record.cell, id)) if id else str(position), tuple(map(record.text, texts)),
            label=label(record), group=record.cell(group) if group else "",
        )
        for position, record in enumerate(records)
    ]  # fmt: skip


def shown(number: float) -> str:
    """A number with all its digits: `5`, `5.0000001`."""
    return str(int(number)) if number.is_integer() else str(number)


def read_table(
    path: Path, columns: Sequence[str] | None, *, header: bool, widths: Collection[int] = (), separator: str = "\t",
    quoted: bool = False, damaged: bool = False, broken_rows: bool = False, encoding: str | None = None,
) -> Iterator[Record]:  # fmt: skip
    """Read the rows of a file that separates cells by one character.

    Args:
        path: the file.
        columns: with a header, the columns that it must have; without, the names of the cells in order. None accepts
            any columns: those of the header, or "0", "1", … for the cells of the first row.
        header: True if the first line names the columns.
        widths: further allowed numbers of cells per row, if there is no header.
        separator: the character between two cells.
        quoted: True if cells may be in quotes and contain separators and line ends (RFC 4180).
        damaged: see `read_lines`.
        encoding: see `read_text`.
        broken_rows: True if a row with fewer cells than the first continues on the next line (a line break in a text).

    Raises:
        ValueError: the file cannot be read, lacks a column, has no rows, or a row has a wrong number of cells.
    """
    if quoted:
        return records(path, csv_rows(path, _pieces(path, "", encoding), separator), columns, header, widths, separator)
    lines = read_lines(path, damaged=damaged, encoding=encoding)
    numbered = ((number, line.split(separator)) for number, line in enumerate(lines, 1))
    rows = _joined(numbered) if broken_rows else numbered
    return records(path, rows, columns, header, widths, separator)


def _joined(rows: Iterable[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    """Join rows that line breaks have split, until they have as many cells as the first."""
    width, line = 0, 0
    cells: list[str] = []
    for line, fields in rows:
        cells = [*cells[:-1], f"{cells[-1]}\n{fields[0]}", *fields[1:]] if cells else fields
        width = width or len(cells)
        if len(cells) >= width:
            yield line, cells
            cells = []
    if cells:
        yield line, cells


csv.field_size_limit(2**31 - 1)  # a cell may hold a book; Python's own limit is 131 072 characters


def csv_rows(path: Path, lines: Iterable[str], separator: str = ",") -> Iterator[tuple[int, list[str]]]:
    """The rows of a csv file: (number of the last line, cells); lines without cells are left out.

    `lines` keep their ends and are split at each `\\n`, `\\r\\n` and lone `\\r`.

    Raises:
        ValueError: a broken row.
    """
    reader = csv.reader(lines, delimiter=separator, strict=True)
    line = 0
    try:
        for row in reader:
            line = reader.line_num
            if row:
                yield line, row
    except csv.Error as error:
        remedy = "Close every quote and double the quotes inside a cell, or set quoting: false."
        raise ValueError(f"{path}, line {line + 1}: broken row ({error}). {remedy}") from None


def is_in_quotes(cell: str) -> bool:
    """True for a cell that begins and ends with a quote."""
    return len(cell) > 1 and cell.startswith('"') and cell.endswith('"')


NAMED_TWICE = -1
"""The position of a column whose name is not unique."""


def records(
    path: Path, rows: Iterable[tuple[int, list[str]]], columns: Sequence[str] | None, header: bool,
    widths: Collection[int] = (), separator: str = ",",
) -> Iterator[Record]:  # fmt: skip
    """The records of numbered rows; see `read_table` for the other arguments and errors.

    A column without a name is named by its number. A column whose name is not unique is at `NAMED_TWICE`; requesting it
    is an error.
    """
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        raise empty(path)
    if columns is None and (hint := _other_separator(first[1], separator)):
        raise ValueError(f"{path}, line {first[0]}: 1 field, but a task needs two or more. {hint}")
    if header:
        wanted, columns, widths = columns or (), [name or str(at) for at, name in enumerate(first[1])], ()
    else:
        columns = [str(position) for position in range(len(first[1]))] if columns is None else columns
        wanted, rows = columns, chain([first], rows)
    positions: dict[str, int] = {}
    for position, column in enumerate(columns):
        positions[column] = NAMED_TWICE if column in positions else position
    for column in wanted:
        position_of(path, column, positions)
    allowed = {len(columns), *widths}
    is_empty = True
    for line, fields in rows:
        if len(fields) not in allowed:
            expected = " or ".join(str(width) for width in sorted(allowed))
            hint = _other_separator(fields, separator) or "Repair or remove the row."
            raise ValueError(f"{path}, line {line}: {some(len(fields), 'field')}, not {expected}. {hint}")
        yield Record(path, line, fields, positions)
        is_empty = False
    if is_empty:
        raise ValueError(f"{path} has no rows under its header. Replace it with the complete file.")


def position_of(path: Path, column: str, positions: Mapping[str, int]) -> int:
    """The index of a column by its name.

    Raises:
        ValueError: no column has the name, or several have it.
    """
    if column not in positions:
        raise no_column(path, 1, column, positions)
    if positions[column] == NAMED_TWICE:
        raise named_twice(f"{path}, line 1", column, ", or select one by its number from 0, as in columns: {text: 0}")
    return positions[column]


def named_twice(where: str, column: str, remedy: str = "") -> ValueError:
    """The error for two columns with the same name."""
    return ValueError(f"{where}: two columns are named '{column}'. Give each its own name{remedy}.")


SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
"""Common separators of tables, and their names."""


def _other_separator(fields: Sequence[str], separator: str) -> str:
    """The remedy for a row of one field that seems to have another separator; "" if it does not."""
    other = next((mark for mark in SEPARATORS if mark != separator and mark in fields[0]), None)
    if len(fields) > 1 or other is None:
        return ""
    remedies = {",": "Set format: csv.", "\t": "Set format: tsv."}
    remedy = remedies.get(other, f'Set delimiter: "{other}".')
    read_as = SEPARATORS.get(separator, f"'{separator}'")
    return f"It seems to be separated by {SEPARATORS[other]}, but is read as separated by {read_as}. {remedy}"


HEADER = "Name one of these, or restore the file's header."
"""The remedy for a missing column of a table."""


def no_column(path: Path, line: int, column: str, existing: Iterable[str], remedy: str = HEADER) -> ValueError:
    """The error for a missing column; the existing ones are listed."""
    return ValueError(
        f"{path}, line {line}: there is no column '{column}'. The columns are: {', '.join(existing)}. {remedy}"
    )


def first_present(folder: Path, names: str) -> Path:
    """The first of the files `a|b|c` that exists in the folder; the first name if none does."""
    candidates = [folder / name for name in names.split("|")]
    return next((path for path in candidates if exists(path)), candidates[0])
