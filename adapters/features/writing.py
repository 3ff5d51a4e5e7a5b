"""Writing of frozen states."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from meltpoint.adapters import encoders
from meltpoint.adapters.data.batch import Batch, EncodedSplit
from meltpoint.adapters.data.batching import collate
from meltpoint.adapters.data.tokenising import encode_split
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.features.layout import ENCODING_BATCH, FeatureKey, feature_key
from meltpoint.adapters.files import replacing
from meltpoint.adapters.hardware import is_gpu_out_of_memory
from meltpoint.tasks.core.files import regular
from meltpoint.tasks.core.task import Example, Kind
from meltpoint.tasks.core.wording import some


def encode(
    encoder: Encoder, split: EncodedSplit, kind: Kind, rows: Sequence[int], layers: Sequence[int], key: FeatureKey,
    device: torch.device,
) -> Iterator[Tensor]:  # fmt: skip
    """Yield the hidden states of rows, batch by batch, without gradients or dropout.

    Args:
        encoder: in evaluation mode on the device (`at_rest`).
        rows: the rows of whole batches of `ENCODING_BATCH`, in the layout's order.
        layers: indices of the encoder's layers, bottom → top.

    Yields:
        (layers, positions of all rows of the batch, dim) in the key's type, on the CPU.
    """
    top = encoder.layers - 1

    def read(rows: Sequence[int]) -> Tensor:
        batch = collate(split.rows, rows, encoder.tokenizer.pad_piece, kind).to(device)
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=key.precision == "bf16"):
            found = {top: encoder.read_top(batch)} if tuple(layers) == (top,) else dict(enumerate(encoder.read(batch)))
        return torch.stack([_positions(found[layer], batch, key).to(key.dtype) for layer in layers]).cpu()

    for start in range(0, len(rows), ENCODING_BATCH):
        yield _in_parts(read, rows[start : start + ENCODING_BATCH])


def _in_parts(read: Callable[[Sequence[int]], Tensor], rows: Sequence[int]) -> Tensor:
    """The states that `read` gives of some rows, (layers, positions, dim); by halves where a GPU's memory is too small.

    Raises:
        RuntimeError: it is too small for one row (`is_gpu_out_of_memory`).
    """
    try:
        return read(rows)
    except RuntimeError as error:
        if not is_gpu_out_of_memory(error) or len(rows) == 1:
            raise
    if torch.cuda.is_available():  # here the error has let go of what the pass had taken
        torch.cuda.empty_cache()
    half = len(rows) // 2
    return torch.cat([_in_parts(read, rows[:half]), _in_parts(read, rows[half:])], 1)


@contextmanager
def at_rest(encoder: Encoder, device: torch.device) -> Iterator[None]:
    """Put the encoder in evaluation mode on a device; its mode and device are restored afterwards."""
    training, home = encoder.training, next(encoder.parameters()).device
    encoder.to(device).eval()
    try:
        yield
    finally:
        encoder.to(home).train(training)


def _positions(states: Tensor, batch: Batch, key: FeatureKey) -> Tensor:
    """(batch, pieces, dim) → (positions, dim): all real pieces, or the first ones (`batching.first_places`)."""
    if key.pieces == "all":
        return states[batch.piece_mask]
    if batch.word_starts is None or batch.word_mask is None:
        first = states[:, 0]
        if batch.cuts is None:
            return first
        second = states[torch.arange(len(batch), device=states.device), batch.cuts]
        return torch.stack([first, second], 1).flatten(0, 1)
    rows = torch.arange(len(batch), device=states.device)[:, None].expand_as(batch.word_starts)
    return states[rows[batch.word_mask], batch.word_starts[batch.word_mask]]


KIND: Kind = "sequence_labelling"

SENTENCES_AT_ONCE = 32 * ENCODING_BATCH
"""Sentences that are encoded together, the longest first; bounds the memory whatever the file's length."""

MOST_PIECES = 512
"""The longest input, as with BERT: a longer sentence is cut into windows, with each word in one."""


@dataclass(frozen=True)
class FeaturesFile:
    """The contents of a features file: the number of sentences, each an array of `layers` × words × `dim`."""

    sentences: int
    layers: int
    dim: int

    def in_words(self) -> str:
        """The contents as text: `3 sentences, 1 layer of 384`."""
        return f"{some(self.sentences, 'sentence')}, {some(self.layers, 'layer')} of {self.dim}"


def write_features(word: str, text: Path, out: Path, layers: str = "all") -> FeaturesFile:
    """Encode a text with one sentence per line, and write an `.npz` file with the arrays `0`, `1`, … and `words`.

    `0`, `1`, … are the lines' states, (layers, words, dim) float32, bottom → top; a word of several pieces has the
    state of its first piece. `words` is (lines,) of str: each line's words, separated by one space. An empty line has
    an array without words, so that the arrays' numbers are the lines' numbers, from 0.

    Args:
        word: the encoder, as on the command line.
        text: a UTF-8 file; words are separated by white space.
        out: the file to write; an existing one is replaced atomically.
        layers: "all", "top", or comma-separated indices from 0 (the embeddings).

    Raises:
        ValueError: the encoder or the text cannot be read, or there is no such layer; one line with the remedy.
    """
    reference = encoders.resolve(word, KIND)
    lines = _lines(text)
    encoder = encoders.load(reference)
    chosen = _layers(layers, encoder)
    with replacing(out) as beside, zipfile.ZipFile(beside, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for number, states in enumerate(_states(encoder, lines, chosen)):
            _write(archive, str(number), states)
        _write(archive, "words", np.array([" ".join(words) for words in lines], dtype=np.str_))
    return FeaturesFile(len(lines), len(chosen), encoder.dim)


def _lines(text: Path) -> list[list[str]]:
    """Each line's words."""
    try:
        # `splitlines` would also split at separators inside a line, and the arrays' numbers be no longer the lines'.
        lines = regular(text).read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{text} is not UTF-8 (byte {error.start}); convert it first: iconv -t utf-8.") from None
    except OSError as error:
        raise ValueError(f"{text} cannot be read ({error.strerror}); name a text file with --input.") from None
    if not any(line.split() for line in lines):
        raise ValueError(f"{text} holds no word; write one sentence a line.")
    return [line.split() for line in lines]


def _layers(option: str, encoder: Encoder) -> list[int]:
    """The layer indices that `--layers` asks for."""
    if option in ("all", "top"):
        return list(range(encoder.layers)) if option == "all" else [encoder.layers - 1]
    try:
        indices = [int(part) for part in option.split(",")]
    except ValueError:
        indices = [-1]
    if not all(0 <= layer < encoder.layers for layer in indices):
        raise ValueError(f"--layers {option!r}: write all, top, or numbers from 0 to {encoder.layers - 1}, as 0,1.")
    return indices


def _states(encoder: Encoder, lines: Sequence[list[str]], layers: Sequence[int]) -> Iterator[NDArray[np.float32]]:
    """Yield each line's array, in the lines' order."""
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    with at_rest(encoder, device):
        for start in range(0, len(lines), SENTENCES_AT_ONCE):
            yield from _some_states(encoder, lines[start : start + SENTENCES_AT_ONCE], layers, device)


def _some_states(
    encoder: Encoder, lines: Sequence[list[str]], layers: Sequence[int], device: torch.device
) -> list[NDArray[np.float32]]:
    """The arrays of lines that are encoded together, with the windows of long sentences joined."""
    examples = [Example(str(number), words=tuple(words)) for number, words in enumerate(lines)]
    split = encode_split(KIND, examples, encoder.tokenizer, min(MOST_PIECES, encoder.max_pieces))
    order = sorted(range(len(split.rows)), key=lambda row: -len(split.rows[row].pieces))
    key = feature_key(encoder, split, KIND, "fp32", "first")
    states_of_rows: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(order)
    batches = encode(encoder, split, KIND, order, layers, key, device)
    for start, batch in zip(range(0, len(order), ENCODING_BATCH), batches, strict=True):
        rows = order[start : start + ENCODING_BATCH]
        parts = batch.numpy().astype(np.float32, copy=False)
        ends = np.cumsum([len(split.rows[row].word_starts) for row in rows])
        for row, part in zip(rows, np.split(parts, ends[:-1], axis=1), strict=True):
            states_of_rows[row] = part
    windows: list[list[NDArray[np.float32]]] = [[] for _ in lines]
    for window, states in zip(split.rows, states_of_rows, strict=True):
        windows[window.example].append(states)
    empty = np.empty((len(layers), 0, encoder.dim), np.float32)
    return [np.concatenate(parts, axis=1) if parts else empty for parts in windows]


def _write(archive: zipfile.ZipFile, name: str, array: NDArray[np.float32] | NDArray[np.str_]) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        npy.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
