"""Skip-thought vectors (Kiros et al. 2015), named `skipthoughts:FOLDER`.

The folder holds the files that github.com/ryankiros/skip-thoughts publishes. `skipthoughts:FOLDER` is combine-skip, the
concatenated vectors of both models; `FOLDER#uni` and `FOLDER#bi` are the vectors of one model, and the suffix `+eos`
(`FOLDER#combine+eos`) appends the end-of-sentence token to every text. The authors advise it only for texts that do not
end in punctuation, as in SICK.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from meltpoint.adapters.families import EncoderReference
from meltpoint.adapters.families.skip_thoughts.files import FAMILY, Variant, check_folder, sizes, used_files
from meltpoint.adapters.files import file_digest
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.task import Kind

if TYPE_CHECKING:
    from meltpoint.adapters.data.input_format import Tokenizer
    from meltpoint.adapters.encoder import Encoder

TRAITS = EncoderReference(f"{FAMILY}:", "", joins_pairs=False, has_words=False)
"""The traits of every Skip-thoughts model, wherever its files are."""

FORMAT = 1
"""Increase this when vectors from the same files change, so that older cached features are not read."""


def reference(source: str, kind: Kind) -> EncoderReference:
    """Check the folder after `skipthoughts:` and return its location, without reading the files.

    Raises:
        ValueError: no folder, a missing file, or a task that labels words.
    """
    if not source.strip():
        raise ValueError(f"'{FAMILY}:' needs a folder after it, as in {FAMILY}:models/skip-thoughts.")
    if kinds.get(kind).labels_words:
        raise ValueError(
            "Skip-thoughts has one vector per sentence and none per word; leave out tasks that label words."
        )
    variant, folder = Variant.parse(source)
    return replace(TRAITS, word=f"{FAMILY}:{check_folder(folder, variant)}#{variant}", source=str(folder))


def load(reference: EncoderReference) -> Encoder:
    """Load the models; tables of word vectors are memory-mapped if they are plain arrays.

    Raises:
        ValueError: a file is damaged or of another format; one line with the remedy.
    """
    from meltpoint.adapters.families.skip_thoughts import encoder  # imported here because torch is slow to import

    return encoder.load(Path(reference.source), _variant(reference), fingerprint(reference))


def fingerprint(reference: EncoderReference) -> str:
    """sha256 (first 16 hex digits) of the files that the vectors are computed from, and of the variant.

    Raises:
        ValueError: a file is missing.
    """
    variant = _variant(reference)
    folder = check_folder(Path(reference.source), variant)
    digests = [file_digest(path) for path in used_files(folder, variant)]
    return hashlib.sha256("\n".join([f"{FAMILY} {FORMAT} {variant}", *digests]).encode()).hexdigest()[:16]


def weights_without_embeddings(reference: EncoderReference) -> int:
    """The number of weights that a forward pass multiplies a word vector by."""
    return sizes(Path(reference.source), _variant(reference))[1]


def load_tokenizer(reference: EncoderReference) -> Tokenizer:
    """A tokenizer with an empty dictionary, for counting words."""
    from meltpoint.adapters.families.skip_thoughts.encoder import END, UNKNOWN, SkipThoughtsTokenizer

    return SkipThoughtsTokenizer((UNKNOWN, END), _variant(reference).eos)


def state_size(reference: EncoderReference) -> int:
    """The size of a vector."""
    return sizes(Path(reference.source), _variant(reference))[0]


def _variant(reference: EncoderReference) -> Variant:
    """The variant in a reference's name."""
    return Variant.parse(reference.word.partition(":")[2])[0]
