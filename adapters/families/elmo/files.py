"""The files of an ELMo folder, found and checked before any weight is read. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path

from meltpoint.adapters.families.elmo import options

WEIGHTS = "weights.hdf5"
NAMES = (WEIGHTS, "lm_weights.hdf5")
"""What ELMo's own code calls its weights, wherever they lie."""


def check_folder(folder: Path) -> Path:
    """The folder, if it holds an ELMo as released: `options.json` and its weights.

    Raises:
        ValueError: no such folder, or a file is missing or broken; the message names it and the remedy.
    """
    if not folder.is_dir():
        raise ValueError(f"There is no folder {folder}; pass the folder of an ELMo, as elmo:FOLDER.")
    if not (folder / options.FILE).is_file():
        raise ValueError(f"{folder} holds no {options.FILE}; an ELMo folder has {options.FILE} and {WEIGHTS}.")
    options.read(folder / options.FILE)
    weights_file(folder)
    return folder


def weights_file(folder: Path) -> Path:
    """`weights.hdf5` or `lm_weights.hdf5`, or else the folder's only HDF5 file (releases put the sizes into its name).

    Raises:
        ValueError: there is none, or there are several.
    """
    found = [folder / name for name in NAMES if (folder / name).is_file()]
    if found:
        return found[0]
    found = sorted(folder.glob("*.hdf5"))
    if len(found) == 1:
        return found[0]
    named = f"several *.hdf5 ({found[0].name}, {found[1].name}), none of them" if found else "no"
    raise ValueError(f"{folder} holds {named} {WEIGHTS}; put ELMo's weights there under that name.")


def digested(folder: Path) -> list[Path]:
    """What an ELMo's states depend on: the weights, and the options, which say how to multiply by them."""
    return [folder / options.FILE, weights_file(folder)]
