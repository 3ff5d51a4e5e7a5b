"""Skip-thought vectors (Kiros et al. 2015): the encoders that go by `skipthoughts:FOLDER`.

The folder holds the files that github.com/ryankiros/skip-thoughts publishes. `skipthoughts:FOLDER` gives combine-skip,
the vectors of both models one after the other; `FOLDER#uni` and `FOLDER#bi` give one model's, and `+eos` behind either
(`FOLDER#combine+eos`) ends every text with the end-of-sentence token. The authors' advice is to leave it out where
texts end in punctuation, and to take it where they do not, as in SICK.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from meltpoint.adapters.families.reference import EncoderReference
from meltpoint.adapters.families.skip_thoughts.files import check_folder, matrix_weights, used_files, vector_size
from meltpoint.adapters.families.skip_thoughts.variant import FAMILY, Variant
from meltpoint.tasks.core.task import Kind

if TYPE_CHECKING:
    from meltpoint.adapters.encoder import Encoder

FORMAT = 1
"""Raised when the same files give other vectors than before: cached features of old ones are then never read."""


def reference(source: str, kind: Kind) -> EncoderReference:
    """Check the part behind `skipthoughts:` and say where the files lie, without reading them.

    Raises:
        ValueError: no folder, a file that is missing, or a task that has something to say about each word.
    """
    if not source.strip():
        raise ValueError(f"'{FAMILY}:' needs a folder behind it, as in {FAMILY}:models/skip-thoughts.")
    if kind == "sequence_labelling":
        raise ValueError("Skip-thoughts give one vector a sentence, nothing a word; leave out tasks of labelled words.")
    variant, folder = Variant.parse(source)
    return EncoderReference(
        f"{FAMILY}:{check_folder(folder, variant)}#{variant}", str(folder), joins_pairs=False, has_words=False
    )


def load(reference: EncoderReference) -> Encoder:
    """Load the models; the tables of word vectors are mapped where they can be.

    Raises:
        ValueError: a file that is not what it should be; one line with the remedy.
    """
    from meltpoint.adapters.families.skip_thoughts import encoder  # torch is slow to import: only who loads pays for it

    return encoder.load(Path(reference.source), _variant(reference), fingerprint(reference))


def fingerprint(reference: EncoderReference) -> str:
    """sha256 (hex, 16 characters) of the files that the vectors come from, and of which vectors they are.

    Raises:
        ValueError: a file is missing.
    """
    from meltpoint.adapters.families.huggingface.files import file_digest

    variant = _variant(reference)
    folder = check_folder(Path(reference.source), variant)
    digests = [file_digest(path) for path in used_files(folder, variant)]
    return hashlib.sha256("\n".join([f"{FAMILY} {FORMAT} {variant}", *digests]).encode()).hexdigest()[:16]


def weights_without_embeddings(reference: EncoderReference) -> int:
    """How many weights a forward pass multiplies a word vector by."""
    return matrix_weights(Path(reference.source), _variant(reference))


def longest_input(reference: EncoderReference) -> int:
    """How many words a text may have: more than a setting can ask for."""
    from meltpoint.adapters.families.skip_thoughts.tokenizer import UNBOUNDED  # with torch

    return UNBOUNDED


def state_size(reference: EncoderReference) -> int:
    """How many numbers a vector has."""
    return vector_size(Path(reference.source), _variant(reference))


def _variant(reference: EncoderReference) -> Variant:
    return Variant.parse(reference.word.partition(":")[2])[0]
