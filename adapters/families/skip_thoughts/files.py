"""Files of the released skip-thoughts models, and their variants.

`uni_skip.npz` and `bi_skip.npz` hold the parameters by name, `utable.npy` and `btable.npy` one word vector per row, in
the order of `dictionary.txt`. The published options (`*.npz.pkl`) are never read: unpickling can run any code, and the
arrays already give the sizes in them.
"""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meltpoint.tasks.core.files import expanded, is_file, is_folder

FAMILY = "skipthoughts"
MODELS = {"uni": ("uni",), "bi": ("bi",), "combine": ("uni", "bi")}
"""Name → the models whose vectors are concatenated, in the order of the authors' `encode`."""
COMBINE, EOS = "combine", "eos"
FILE = "variant.txt"
"""The encoder's variant; Meltpoint writes this file next to the published ones when it saves an encoder."""


@dataclass(frozen=True)
class Variant:
    """The vectors of one model or of both, with or without the end-of-sentence token.

    Attributes:
        name: a key of `MODELS`.
        eos: whether `<eos>` is appended to every text; training did so, but the authors' default for computing vectors
            does not.
    """

    name: str = COMBINE
    eos: bool = False

    @classmethod
    def parse(cls, source: str) -> tuple[Variant, Path]:
        """(variant, absolute folder) of `FOLDER`, `FOLDER#NAME` or `FOLDER#NAME+eos`.

        Raises:
            ValueError: the part after `#` is not a variant.
        """
        named, mark, text = source.rpartition("#")
        folder = expanded(named if mark else source).resolve()
        if not mark:
            text = (folder / FILE).read_text(encoding="utf-8").strip() if is_file(folder / FILE) else COMBINE
        name, plus, token = text.partition("+")
        if name not in MODELS or (plus and token != EOS):
            choices = ", ".join(MODELS)
            raise ValueError(f"'skipthoughts:{source}': after # write {choices}, optionally with +eos; not '{text}'.")
        return cls(name, bool(plus)), folder

    def __str__(self) -> str:
        return self.name + f"+{EOS}" * self.eos

    @property
    def models(self) -> tuple[str, ...]:
        """The models that its vectors are computed with."""
        return MODELS[self.name]


Array = NDArray[np.float32]
DICTIONARY = "dictionary.txt"
PARAMETERS = {"uni": "uni_skip.npz", "bi": "bi_skip.npz"}
TABLES = {"uni": "utable.npy", "bi": "btable.npy"}
DIRECTIONS = {"uni": ("encoder",), "bi": ("encoder", "encoder_r")}
"""Model → the prefixes of its GRUs' parameters: left to right, right to left."""
NAMES = ("W", "b", "U", "Wx", "bx", "Ux")
"""The arrays of a GRU with h units on word vectors of size d: the gates' (d, 2h), (2h), (h, 2h), and the candidate's
(d, h), (h), (h, h)."""
UNREADABLE = (OSError, EOFError, ValueError, TypeError, zipfile.BadZipFile, zlib.error)
"""The errors of NumPy for damaged archives, pickled objects, and a file with one array."""
ORIGIN = "github.com/ryankiros/skip-thoughts says where to download it"


def used_files(folder: Path, variant: Variant) -> list[Path]:
    """The files that a variant reads."""
    names = [files[model] for model in variant.models for files in (PARAMETERS, TABLES)]
    return [folder / name for name in (*names, DICTIONARY)]


def check_folder(folder: Path, variant: Variant) -> Path:
    """Return the folder if it holds a variant's files.

    Raises:
        ValueError: a file is missing; the message names it and the remedy.
    """
    if not is_folder(folder):
        raise ValueError(
            f"There is no folder {folder}; name the folder of the published files, as in skipthoughts:FOLDER."
        )
    absent = [path.name for path in used_files(folder, variant) if not path.is_file()]
    if absent:
        raise ValueError(f"{folder} holds no {absent[0]}; {ORIGIN}.")
    return folder


def read_directions(folder: Path, model: str) -> list[dict[str, Array]]:
    """Read the arrays of a model's GRUs, one dictionary per direction: name → float32 array, with shapes checked.

    Raises:
        ValueError: an array is missing, is not of numbers, or does not fit the others.
    """
    path = folder / PARAMETERS[model]
    try:
        with np.load(path, allow_pickle=False) as archive:
            grus = [
                {name: np.asarray(archive[f"{prefix}_{name}"], dtype=np.float32) for name in NAMES}
                for prefix in DIRECTIONS[model]
            ]
    except KeyError as error:
        raise ValueError(f"{path}: {error.args[0]}; {ORIGIN}.") from error
    except UNREADABLE as error:
        raise ValueError(f"{path} cannot be read as NumPy's .npz of a model's numbers; {ORIGIN}.") from error
    for prefix, gru in zip(DIRECTIONS[model], grus, strict=True):
        _check_shapes(gru, prefix, path)
    if len({gru["Ux"].shape for gru in grus} | {gru["Wx"].shape for gru in grus}) > 2:
        raise ValueError(f"{path}: its two directions differ in size; {ORIGIN}.")
    return grus


def _check_shapes(arrays: dict[str, Array], prefix: str, path: Path) -> None:
    """Refuse a GRU's arrays that do not fit one another."""
    words, units = arrays["Wx"].shape if arrays["Wx"].ndim == 2 else (0, 0)
    wanted = {
        "W": (words, 2 * units), "b": (2 * units,), "U": (units, 2 * units),
        "Wx": (words, units), "bx": (units,), "Ux": (units, units),
    }  # fmt: skip
    for name, shape in wanted.items():
        if arrays[name].shape != shape:
            raise ValueError(f"{path}: {prefix}_{name} is {arrays[name].shape}, not {shape}; {ORIGIN}.")


@lru_cache
def sizes(folder: Path, variant: Variant) -> tuple[int, int]:
    """The size of a variant's vectors, and the number of elements of all matrices of its GRUs.

    Raises:
        ValueError: an archive cannot be read.
    """
    grus = [gru for model in variant.models for gru in read_directions(folder, model)]
    weights = sum(array.size for gru in grus for array in gru.values() if array.ndim > 1)
    return sum(len(gru["bx"]) for gru in grus), weights
