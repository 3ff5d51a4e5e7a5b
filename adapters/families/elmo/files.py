"""The files of an ELMo folder, located and checked before any weight is read. Imports neither torch nor h5py."""

from __future__ import annotations

from pathlib import Path

from meltpoint.adapters.families.elmo import options
from meltpoint.tasks.core.files import is_folder

WEIGHTS = "weights.hdf5"
NAMES = (WEIGHTS, "lm_weights.hdf5")
"""The names of weights files that ELMo's code uses."""


def check_folder(folder: Path) -> Path:
    """Return the folder if it holds `options.json` and weights, as ELMo was released.

    Raises:
        ValueError: no such folder, or a file is missing or damaged; the message names it and the remedy.
    """
    if not is_folder(folder):
        raise ValueError(f"There is no folder {folder}; pass the folder of an ELMo, as elmo:FOLDER.")
    if not (folder / options.FILE).is_file():
        raise ValueError(f"{folder} holds no {options.FILE}; an ELMo folder has {options.FILE} and {WEIGHTS}.")
    options.read(folder / options.FILE)
    weights_file(folder)
    return folder


def weights_file(folder: Path) -> Path:
    """`weights.hdf5` or `lm_weights.hdf5`, or else the folder's only HDF5 file (released names contain the sizes).

    Raises:
        ValueError: there is none, or there are several.
    """
    paths = [folder / name for name in NAMES if (folder / name).is_file()]
    if paths:
        return paths[0]
    paths = sorted(folder.glob("*.hdf5"))
    if len(paths) == 1:
        return paths[0]
    named = f"several *.hdf5 ({paths[0].name}, {paths[1].name}), none of them" if paths else "no"
    raise ValueError(f"{folder} holds {named} {WEIGHTS}; put ELMo's weights there under that name.")


def digested(folder: Path) -> list[Path]:
    """The files that an ELMo's states depend on: options and weights."""
    return [folder / options.FILE, weights_file(folder)]
