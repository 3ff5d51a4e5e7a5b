"""Features as a file: what an encoder says of each word of a text, for whoever wants to look at it from outside."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray

from meltpoint.adapters import encoders
from meltpoint.adapters.data.tokenising import encode_split
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.features.encoding import at_rest, encode
from meltpoint.adapters.features.layout import ENCODING_BATCH, feature_key
from meltpoint.adapters.files import replacing
from meltpoint.tasks.core.counts import some
from meltpoint.tasks.core.task import Example, Kind

KIND: Kind = "sequence_labelling"

SENTENCES_AT_ONCE = 32 * ENCODING_BATCH
"""Encoded together, the longest first; what is in memory at a time, whatever the file's length."""

MOST_PIECES = 512
"""The longest input, as BERT has it: a longer sentence is read in windows, each word in one. ELMo has no limit."""


@dataclass(frozen=True)
class Written:
    """What a features file holds: so many sentences, arrays of `layers` × words × `dim`."""

    sentences: int
    layers: int
    dim: int

    def in_words(self) -> str:
        """`3 sentences, 1 layer of 384`."""
        return f"{some(self.sentences, 'sentence')}, {some(self.layers, 'layer')} of {self.dim}"


def write_features(word: str, text: Path, out: Path, layers: str = "all") -> Written:
    """Encode a text, a sentence a line, and write an `.npz` file: `0`, `1`, … and `words`.

    `0`, `1`, … are the lines' arrays, (layers, words, dim) float32, bottom → top; of a word in several pieces the
    first one's state stands for it. `words` is (lines,) of str: each line's words, one space between them. An empty
    line has an array of no words, so that arrays are numbered as the lines are.

    Args:
        word: the encoder's.
        text: a UTF-8 file; words are what white space divides.
        out: replaced if it is there; whole or not at all.
        layers: "all", "top", or numbers from 0, the embeddings, with commas between them.

    Raises:
        ValueError: the encoder, the text or the layers cannot be had; one line with the remedy.
    """
    reference = encoders.resolve(word, KIND)
    lines = _lines(text)
    encoder = encoders.load(reference)
    chosen = _layers(layers, encoder)
    with replacing(out) as beside, zipfile.ZipFile(beside, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for number, states in enumerate(_states(encoder, lines, chosen)):
            _write(archive, str(number), states)
        _write(archive, "words", np.array([" ".join(words) for words in lines], dtype=np.str_))
    return Written(len(lines), len(chosen), encoder.dim)


def _lines(text: Path) -> list[list[str]]:
    """Each line's words."""
    try:
        lines = text.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{text} is not UTF-8 (byte {error.start}); convert it first: iconv -t utf-8.") from None
    except OSError as error:
        raise ValueError(f"{text} cannot be read ({error.strerror}); name a text file with --input.") from None
    if not any(line.split() for line in lines):
        raise ValueError(f"{text} holds no word; write one sentence a line.")
    return [line.split() for line in lines]


def _layers(said: str, encoder: Encoder) -> list[int]:
    """The indices of the layers asked for."""
    if said in ("all", "top"):
        return list(range(encoder.layers)) if said == "all" else [encoder.layers - 1]
    try:
        found = [int(part) for part in said.split(",")]
    except ValueError:
        found = [-1]
    if not all(0 <= layer < encoder.layers for layer in found):
        raise ValueError(f"--layers {said!r}: write all, top, or numbers from 0 to {encoder.layers - 1}, as 0,1.")
    return found


def _states(encoder: Encoder, lines: Sequence[list[str]], layers: Sequence[int]) -> Iterator[NDArray[np.float32]]:
    """Each line's array, in the lines' order."""
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    with at_rest(encoder, device):
        for start in range(0, len(lines), SENTENCES_AT_ONCE):
            yield from _some_states(encoder, lines[start : start + SENTENCES_AT_ONCE], layers, device)


def _some_states(
    encoder: Encoder, lines: Sequence[list[str]], layers: Sequence[int], device: torch.device
) -> list[NDArray[np.float32]]:
    examples = [Example(str(number), words=tuple(words)) for number, words in enumerate(lines)]
    split = encode_split(KIND, examples, encoder.tokenizer, min(MOST_PIECES, encoder.max_pieces))
    order = sorted(range(len(split.rows)), key=lambda row: -len(split.rows[row].pieces))
    key = feature_key(encoder, split, KIND, "fp32", "first")
    found: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(order)
    batches = encode(encoder, split, KIND, order, layers, key, device)
    for start, batch in zip(range(0, len(order), ENCODING_BATCH), batches, strict=True):
        rows = order[start : start + ENCODING_BATCH]
        parts = batch.numpy().astype(np.float32, copy=False)
        ends = np.cumsum([len(split.rows[row].word_starts) for row in rows])
        for row, part in zip(rows, np.split(parts, ends[:-1], axis=1), strict=True):
            found[row] = part
    windows: list[list[NDArray[np.float32]]] = [[] for _ in lines]
    for window, states in zip(split.rows, found, strict=True):
        windows[window.example].append(states)
    empty = np.empty((len(layers), 0, encoder.dim), np.float32)
    return [np.concatenate(own, axis=1) if own else empty for own in windows]


def _write(archive: zipfile.ZipFile, name: str, array: NDArray[np.float32] | NDArray[np.str_]) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        npy.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
