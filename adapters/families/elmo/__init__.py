"""ELMo (Peters et al. 2018), named `elmo:FOLDER`: a character CNN with bidirectional LSTMs on top.

The folder has the format in which ELMo was released: `options.json` and an HDF5 file of weights.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from meltpoint.adapters.families import EncoderReference
from meltpoint.adapters.families.elmo import files
from meltpoint.adapters.families.elmo.files import check_folder, weights_file
from meltpoint.adapters.families.huggingface.files import digest_of
from meltpoint.tasks.core.files import expanded
from meltpoint.tasks.core.task import Kind

if TYPE_CHECKING:
    from meltpoint.adapters.data.input_format import Tokenizer
    from meltpoint.adapters.encoder import Encoder


TRAITS = EncoderReference("elmo:", "", joins_pairs=False, has_sentence_state=False, reads_words=True)
"""The traits of every ELMo, wherever its files are."""


def reference(source: str, kind: Kind) -> EncoderReference:
    """Check the folder after `elmo:` and return its location, without reading the weights; it supports every kind.

    Raises:
        ValueError: no folder, or a missing or damaged file; one line with the remedy.
    """
    if not source.strip():
        raise ValueError("'elmo:' needs a folder after it, with ELMo's options.json and weights.hdf5.")
    folder = check_folder(expanded(source).resolve())
    return replace(TRAITS, word=f"elmo:{folder}", source=str(folder))


def load(reference: EncoderReference) -> Encoder:
    """Load an ELMo.

    Raises:
        ValueError: a file is missing or damaged, or a weight is missing or of a wrong shape; one line with the remedy.
    """
    from meltpoint.adapters.families.elmo import encoder  # torch and h5py are slow to import

    return encoder.load(check_folder(Path(reference.source)), fingerprint(reference))


def fingerprint(reference: EncoderReference) -> str:
    """sha256 (first 16 hex digits) of the weights and of the options, which determine the architecture.

    Raises:
        ValueError: a file is missing.
    """
    folder = check_folder(Path(reference.source))
    return digest_of([folder / files.FILE, weights_file(folder)])[:16]


def weights_without_embeddings(reference: EncoderReference) -> int:
    """The number of weights that a forward pass multiplies by: all matrices except the character embeddings."""
    from meltpoint.adapters.families.elmo import encoder  # imports h5py, which is needed for ELMo only

    return encoder.weights_without_embeddings(weights_file(Path(reference.source)))


def load_tokenizer(reference: EncoderReference) -> Tokenizer:
    """The tokenizer, which is the same for every ELMo."""
    from meltpoint.adapters.families.elmo.layers import ElmoTokenizer  # imports torch

    return ElmoTokenizer()


def state_size(reference: EncoderReference) -> int:
    """The size of a hidden state: the projections of both directions."""
    return 2 * files.read(Path(reference.source) / files.FILE).lstm.projection_dim
