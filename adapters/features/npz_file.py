"""The output file of `meltpoint features`: each line's layers from an encoder, one state per word."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray

from meltpoint.adapters import encoders
from meltpoint.adapters.data.tokenising import encode_split
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.features.layout import feature_key
from meltpoint.adapters.features.reading import at_rest, encode
from meltpoint.adapters.files import replacing
from meltpoint.tasks.core.files import regular
from meltpoint.tasks.core.task import Example, Kind
from meltpoint.tasks.core.wording import some

KIND: Kind = "sequence_labelling"

SENTENCES_AT_ONCE = 2048
"""Sentences that are encoded together; bounds the memory for files of any length."""

MOST_PIECES = 512
"""The longest input, as in BERT; a longer sentence is cut into windows, with each word in one window."""


def write_features(word: str, text: Path, out: Path, layers: str = "all") -> str:
    """Encode a text with one sentence per line, and write an `.npz` file with the arrays `0`, `1`, … and `words`.

    `0`, `1`, … are the lines' states, (layers, words, dim) float32, bottom → top; a word of several pieces has the
    state of its first piece. `words` is (lines,) of str: each line's words, separated by one space. An empty line has
    an array without words, so array numbers equal line numbers, from 0.

    Args:
        word: the encoder, as on the command line.
        text: a UTF-8 file; words are separated by white space.
        out: the file to write; an existing one is replaced atomically.
        layers: "all", "top", or comma-separated indices from 0 (the embeddings).

    Returns:
        The contents in words: `3 sentences, 1 layer of 384`.

    Raises:
        ValueError: the encoder or the text cannot be read, or there is no such layer; one line with the remedy.
    """
    reference = encoders.resolve(word, KIND)
    lines = _lines(text)
    encoder = encoders.load(reference)
    chosen = _layers(layers, encoder)
    with replacing(out) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for number, states in enumerate(_states(encoder, lines, chosen)):
            _write(archive, str(number), states)
        _write(archive, "words", np.array([" ".join(words) for words in lines], dtype=np.str_))
    return f"{some(len(lines), 'sentence')}, {some(len(chosen), 'layer')} of {encoder.dim}"


def _lines(text: Path) -> list[list[str]]:
    """Each line's words."""
    try:
        # `splitlines` would also split at separators inside a line, and array numbers would no longer equal line
        # numbers.
        lines = regular(text).read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{text} is not UTF-8 (byte {error.start}); convert it first: iconv -t utf-8.") from None
    except OSError as error:
        raise ValueError(f"{text} cannot be read ({error.strerror}); name a text file with --input.") from None
    if not any(line.split() for line in lines):
        raise ValueError(f"{text} holds no word; write one sentence per line.")
    return [line.split() for line in lines]


def _layers(option: str, encoder: Encoder) -> list[int]:
    """The layer indices that `--layers` names."""
    if option in ("all", "top"):
        return list(range(encoder.layers)) if option == "all" else [encoder.layers - 1]
    try:
        indices = [int(part) for part in option.split(",")]
    except ValueError:
        indices = [-1]
    if not all(0 <= layer < encoder.layers for layer in indices):
        last = encoder.layers - 1
        raise ValueError(f"--layers {option!r}: write all, top, or numbers from 0 to {last}, for example 0,1.")
    return indices


def _states(encoder: Encoder, lines: Sequence[list[str]], layers: Sequence[int]) -> Iterator[NDArray[np.float32]]:
    """Yield each line's array, in the lines' order; the windows of a long sentence follow one another."""
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    with at_rest(encoder, device):
        for start in range(0, len(lines), SENTENCES_AT_ONCE):
            together = enumerate(lines[start : start + SENTENCES_AT_ONCE])
            examples = [Example(str(number), words=tuple(words)) for number, words in together]
            split = encode_split(KIND, examples, encoder.tokenizer, min(MOST_PIECES, encoder.max_pieces))
            key = feature_key(encoder, split, KIND, "fp32", "first")
            empty = torch.empty(len(layers), 0, encoder.dim)
            found = torch.cat([empty, *encode(encoder, split, KIND, range(len(split.rows)), layers, key, device)], 1)
            yield from np.split(found.numpy(), np.cumsum(split.word_counts)[:-1], axis=1)


def _write(archive: zipfile.ZipFile, name: str, array: NDArray[np.float32] | NDArray[np.str_]) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        npy.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
