"""ELMo (Peters et al. 2018): the encoders that go by `elmo:FOLDER`.

A character CNN, and above it LSTMs that read in both directions; the folder is laid out as ELMo was released.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from meltpoint.adapters.families.elmo import options
from meltpoint.adapters.families.elmo.files import check_folder, digested, weights_file
from meltpoint.adapters.families.huggingface.files import digest_of
from meltpoint.adapters.families.reference import EncoderReference
from meltpoint.tasks.core.task import Kind

if TYPE_CHECKING:
    from meltpoint.adapters.encoder import Encoder


def reference(source: str, kind: Kind) -> EncoderReference:
    """Check the part behind `elmo:` and say where the files lie, without reading the weights; it serves every kind.

    Raises:
        ValueError: no folder, or a file that is missing or broken; one line with the remedy.
    """
    if not source.strip():
        raise ValueError("'elmo:' needs a folder behind it, with ELMo's options.json and weights.hdf5 in it.")
    folder = check_folder(Path(source).expanduser().resolve())
    return EncoderReference(f"elmo:{folder}", str(folder), joins_pairs=False)


def load(reference: EncoderReference) -> Encoder:
    """Load an ELMo.

    Raises:
        ValueError: a file is missing or broken, or a weight is missing or of a wrong shape; one line with the remedy.
    """
    from meltpoint.adapters.families.elmo import (
        encoder,  # torch and h5py are slow to import: only who loads pays for them
    )

    return encoder.load(check_folder(Path(reference.source)), fingerprint(reference))


def fingerprint(reference: EncoderReference) -> str:
    """sha256 (hex, 16 characters) of the weights and of the options, which say how to multiply by them.

    Raises:
        ValueError: a file is missing.
    """
    return digest_of(digested(check_folder(Path(reference.source))))[:16]


def weights_without_embeddings(reference: EncoderReference) -> int:
    """How many weights a forward pass multiplies by: all matrices but the table of characters."""
    from meltpoint.adapters.families.elmo import weights  # h5py, which only who has an ELMo needs

    return weights.weights_without_embeddings(weights_file(Path(reference.source)))


def longest_input(reference: EncoderReference) -> int:
    """How many words an input may have."""
    from meltpoint.adapters.families.elmo.tokenizer import WordTokenizer  # with torch

    return WordTokenizer.max_pieces


def state_size(reference: EncoderReference) -> int:
    """How many numbers a state has: a projection of each direction."""
    return 2 * options.read(Path(reference.source) / options.FILE).lstm.projection_dim
