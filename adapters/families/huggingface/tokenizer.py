"""An encoder's tokenizer without its weights, for counting the pieces of a task's examples."""

from __future__ import annotations

from meltpoint.adapters.data.tokenising import PieceTokenizer
from meltpoint.adapters.families.huggingface import sizes
from meltpoint.adapters.families.huggingface.location import locate
from meltpoint.adapters.families.huggingface.pretrained import quiet, read_tokenizer
from meltpoint.adapters.families.huggingface.sentence_files import read_prompts
from meltpoint.adapters.families.huggingface.supported import supported_config
from meltpoint.adapters.families.reference import EncoderReference


def load(reference: EncoderReference) -> PieceTokenizer:
    """The tokenizer of an encoder's folder, downloaded first if necessary; it gives no segments.

    Its longest input is also that of a configuration that leaves out `max_position_embeddings`, for which transformers
    has a default.

    Raises:
        ValueError: the files are not available, or cannot be read; one line with the remedy.
    """
    folder, _ = locate(reference)
    with quiet():
        tokenizer = read_tokenizer(folder, reference.word)
        config = supported_config(folder, reference.word)
    named = sizes.longest_input(folder)
    positions = int(getattr(config, "max_position_embeddings", sizes.UNKNOWN_LENGTH))
    longest = positions if named is None else min(named, positions)
    return PieceTokenizer(tokenizer, longest, token_types=False, prompts=read_prompts(folder))
