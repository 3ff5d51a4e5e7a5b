"""Word tables of skip-thoughts, and their tokenizer.

The authors split a text into sentences with NLTK's punkt, and sentences into words with NLTK's Treebank tokenizer; here
both are `word_tokenizer.words_of`. Nothing is lower-cased, since the dictionary and the authors' look-up are
case-sensitive.

The published tables are pickled NumPy arrays of Python objects, one small array per word. Unpickling can run any code,
so NumPy does not read them: the restricted unpickler below accepts only the names that such a table needs, maps them to
classes of this module that store shapes and bytes and call nothing, and refuses every other name. At worst, a malicious
file can request too much memory. A table saved as plain float32 is memory-mapped instead, with one copy for all
processes:

    python -c "import numpy; from meltpoint.adapters.families.skip_thoughts.tables import read_table; \
               numpy.save('utable.plain.npy', read_table('utable.npy'))"    # then replace utable.npy by it
"""

from __future__ import annotations

import math
import pickle
import tokenize
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from meltpoint.adapters.data.input_format import Prompts, Span
from meltpoint.adapters.data.word_tokenizer import words_of
from meltpoint.adapters.families.huggingface.files import first_line
from meltpoint.adapters.families.skip_thoughts.files import EOS

UNKNOWN, END = "UNK", f"<{EOS}>"
UNBOUNDED = 100_000
"""Longest input in pieces: a GRU can read texts of any length, so only a setting's `max_pieces` limits them."""


class SkipThoughtsTokenizer:
    """A `Tokenizer` with a dictionary of whole words: a word's piece id is its line number.

    Args:
        words: the dictionary's lines; for a repeated word the last line counts, as in the authors' code.
        eos: whether `<eos>` is appended to every text.

    Raises:
        ValueError: `UNK` or `<eos>` is not among the words.
    """

    joins_pairs = False
    prompts = Prompts()
    max_pieces = UNBOUNDED

    def __init__(self, words: Sequence[str], eos: bool) -> None:
        self.words = words
        self._lines = {word: number for number, word in enumerate(words)}
        absent = [word for word in (UNKNOWN, END) if word not in self._lines]
        if absent:
            raise ValueError(f"has no {absent[0]}; download it again")
        self._unknown, self._end = self._lines[UNKNOWN], self._lines[END]
        self._tail = [self._end] if eos else []
        self.pad_piece = self._end

    def sentence(self, text: str, limit: int) -> tuple[list[int], list[int], int]:
        """(pieces, [], number of words cut) of one sentence of at most `limit` words, including `<eos>`.

        A text without words becomes `<eos>` alone, like an empty sentence in training; the authors' code cannot encode
        it.
        """
        lines = [self._lines.get(word, self._unknown) for word in words_of(text)]
        room = limit - len(self._tail)
        return lines[:room] + self._tail or [self._end], [], max(0, len(lines) - room)

    def pair(self, first: str, second: str, limit: int) -> tuple[list[int], list[int], tuple[Span, Span], int]:
        """Never called: `joins_pairs` is false, so the sentences of a pair are encoded separately."""
        raise AssertionError("Skip-thoughts read one sentence at a time")

    def word(self, word: str) -> list[int]:
        """The line number of one word."""
        return [self._lines.get(word, self._unknown)]

    def frame(self, pieces: Sequence[int]) -> tuple[list[int], list[int], int]:
        """(the pieces, followed by `<eos>` if the variant has it, [], 0)."""
        return [*pieces, *self._tail], [], 0


WordVectors = NDArray[np.float32]
"""(words, dim), or (dim,) for one word."""

_BROKEN = (
    OSError, EOFError, ValueError, TypeError, LookupError, AttributeError, OverflowError, SyntaxError,
    pickle.PickleError, tokenize.TokenError,
)  # fmt: skip
"""The exceptions that damaged headers and pickles raise."""


def read_table(path: Path | str) -> WordVectors:
    """Read a table: (words, dim) float32. A plain float32 table is memory-mapped copy-on-write.

    Raises:
        ValueError: the file is not a table of word vectors; one line with the remedy.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            shape, dtype = _header(file)
            if dtype.hasobject:
                return _stacked(_TableReader(file, encoding="bytes").load(), shape, path)
        table: NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False)
    except MemoryError as error:
        raise ValueError(
            f"{path} does not fit into memory, or is damaged: a pickled table is read whole; convert it to a plain "
            f"table on a machine with more memory (docs/encoders.md), or download it again."
        ) from error
    except _BROKEN as error:
        raise ValueError(f"{path} is not a table of word vectors ({first_line(error)}); download it again.") from error
    if table.ndim != 2 or table.dtype.kind != "f":
        raise ValueError(
            f"{path} holds {table.dtype} of shape {table.shape}, not one vector per word; download it again."
        )
    return table if table.dtype == np.float32 else table.astype(np.float32)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Read shape and type from an `.npy` file's header; leaves the file positioned at the data."""
    readers = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(file)[0]
    if version not in readers:
        raise ValueError(f"version {version} of NumPy's format")
    shape, _, dtype = readers[version](file)
    return shape, dtype


class _Type:
    """A pickled `numpy.dtype`: float32 or float64 for the vectors, object for the table."""

    __slots__ = ("code", "order")

    def __init__(self, code: object = b"", *_: object) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else str(code)
        self.order = "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1]
        self.order = order.decode("latin1") if isinstance(order, bytes) else str(order)


class _Array:
    """A pickled `numpy.ndarray`: its shape, its type, and its bytes or items."""

    __slots__ = ("data", "shape", "type")

    def __init__(self, *_: object) -> None:
        self.shape: tuple[int, ...] = ()
        self.type: object = None
        self.data: object = b""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, self.shape, self.type, _, self.data = state

    def vector(self) -> WordVectors:
        """The elements of a vector of shape (1, dim), as from regression, or (dim,), as from training."""
        if not isinstance(self.type, _Type) or self.type.code not in ("f4", "f8") or self.type.order not in ("<", ">"):
            raise ValueError("a word's vector is not of floats")
        if not isinstance(self.data, bytes):
            raise ValueError("a word's vector has no bytes")
        numbers: NDArray[Any] = np.frombuffer(self.data, self.type.order + self.type.code)
        if math.prod(self.shape) != numbers.size:
            raise ValueError("a word's vector does not have its stated shape")
        return numbers.astype(np.float32)


_KNOWN: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
}
"""The names that a pickled table may contain → the classes to use for them; nothing of NumPy is called."""


class _TableReader(pickle.Unpickler):
    """Unpickles arrays as `_Array` and `_Type`; refuses any name that is not in `_KNOWN`."""

    def find_class(self, module: str, name: str) -> Any:
        """The class to use for a pickled name."""
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no table needs")
        return _KNOWN[module, name]


def _stacked(array: object, shape: tuple[int, ...], path: Path) -> WordVectors:
    """Stack the unpickled arrays of all words into one array."""
    items = array.data if isinstance(array, _Array) else None
    if not isinstance(items, list) or (len(items),) != shape or not all(isinstance(item, _Array) for item in items):
        raise ValueError("its objects are not one array per word")
    if not items:
        raise ValueError("it has no words")
    table = np.empty((len(items), items[0].vector().size), np.float32)
    for number, item in enumerate(items):
        vector = item.vector()
        if vector.size != table.shape[1]:
            raise ValueError(f"word {number + 1} has {vector.size} numbers, but the first has {table.shape[1]}")
        table[number] = vector
        item.data = b""  # frees memory: a table takes 2.3 GB
    return table


def read_words(path: Path) -> list[str]:
    """Read the words of `dictionary.txt`, one per line, stripped of white space as in the authors' code.

    Lines end at line feeds only, as in the authors' Python 2; `str.splitlines` would also split at other separators.

    Raises:
        ValueError: the file is not UTF-8.
    """
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8; download it again.") from error
    return [line.strip() for line in (lines if lines[-1] else lines[:-1])]
