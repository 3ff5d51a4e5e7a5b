"""Location of an encoder's files: a folder or the hub; its licence, its tokenizer, its configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import errors, model_info, snapshot_download
from torch import Tensor, nn

from meltpoint.adapters.data.batch import Row
from meltpoint.adapters.data.tokenising import PieceTokenizer
from meltpoint.adapters.families.huggingface import sentence_files, sizes
from meltpoint.adapters.families.huggingface.files import ADAPTER, BESIDE_WEIGHTS, check_folder
from meltpoint.adapters.families.huggingface.pretrained import quiet, read_tokenizer
from meltpoint.adapters.families.huggingface.sentence_files import read_prompts
from meltpoint.adapters.families.huggingface.supported import supported_config
from meltpoint.adapters.families.reference import EncoderReference
from meltpoint.tasks.core.files import parse_yaml, read_bytes


def locate(reference: EncoderReference) -> tuple[Path, str]:
    """The folder with an encoder's files, downloaded first if necessary, and its revision.

    Returns:
        (folder, revision): the revision is the folder's path, or `ID@COMMIT` for a hub encoder.

    Raises:
        ValueError: the files are not available; one line with the remedy.
    """
    if reference.is_folder:
        folder = check_folder(Path(reference.source))
        return folder, str(folder)

    folder = check_folder(snapshot(reference))
    return folder, f"{reference.source}@{folder.name}"


# Only the files that loading needs: a repository may also hold pickles, ONNX and TensorFlow copies of the weights.
# The encoder's own model card is read for its licence.
DOWNLOADED = (
    *BESIDE_WEIGHTS,
    *sentence_files.DOWNLOADED,
    ADAPTER,
    "*.safetensors",
    "*.safetensors.index.json",
    "README.md",
)

ASK_SECONDS = 20
"""Timeout of the request for the newest commit; downloads have the hub client's timeouts and retries."""


def snapshot(reference: EncoderReference) -> Path:
    """The folder of a hub encoder in the local cache, named by its commit.

    A cached copy of a given revision is used without network access. Without a revision the newest commit is looked up
    first, and the cached copy is used if the hub cannot be reached.

    Raises:
        ValueError: the files are not available; one line with the remedy.
    """
    cached = _cached(reference)
    if cached is not None and reference.revision is not None:
        return cached
    what = f"Encoder '{reference.word}': {reference.source}"
    try:
        # This request fails at once without a network, where a download would retry, and log it, for half a minute.
        commit = model_info(reference.source, revision=reference.revision, timeout=ASK_SECONDS).sha
        return Path(snapshot_download(reference.source, revision=commit, allow_patterns=list(DOWNLOADED)))
    except errors.GatedRepoError as error:
        raise ValueError(f"{what} is gated; accept its terms on the hub and set HF_TOKEN.") from error
    except errors.RepositoryNotFoundError as error:
        raise ValueError(f"{what} is not on the hub, or private; check the id, or set HF_TOKEN.") from error
    except errors.RevisionNotFoundError as error:
        raise ValueError(f"{what} has no revision '{reference.revision}' on the hub.") from error
    except errors.HFValidationError as error:
        raise ValueError(f"{what} is neither a hub id nor a folder.") from error
    except (errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]  # httpx's, whichever the hub uses
        if cached is not None:
            return cached
        raise ValueError(
            f"{what} is not in the local cache and the hub cannot be reached ({_reason(error)}); connect once, point "
            f"HF_HOME at a cache that holds it, or pass a folder as hf:FOLDER."
        ) from error


def _cached(reference: EncoderReference) -> Path | None:
    """The folder of a complete copy in the local cache, without network access; None if there is none."""
    try:
        folder = snapshot_download(
            reference.source, revision=reference.revision, allow_patterns=list(DOWNLOADED), local_files_only=True
        )
        return check_folder(Path(folder))
    except (errors.LocalEntryNotFoundError, errors.HFValidationError, ValueError):
        return None


def _reason(error: Exception) -> str:
    """The first line of an error's message, or its type."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


CARD = "README.md"
LONGEST = 100
"""Characters of a licence that are kept; identifiers of the hub have at most 30."""


def licence_of(folder: Path) -> str | None:
    """The licence in a folder's `README.md`: an identifier of the hub (`apache-2.0`), on one line; None for none."""
    try:
        front = parse_yaml(_front_matter(read_bytes(folder / CARD).decode()), yaml.BaseLoader)
    except (OSError, ValueError, yaml.YAMLError):
        return None
    stated = front.get("license") if isinstance(front, dict) else None
    return " ".join(stated.replace("`", "'").split())[:LONGEST] or None if isinstance(stated, str) else None


def _front_matter(text: str) -> str:
    """The YAML between the first two lines of three hyphens; empty where a text does not begin with such a line."""
    lines = text.lstrip("\ufeff").splitlines()
    if not lines or lines[0].strip() != "---":
        return ""
    ends = [number for number, line in enumerate(lines) if number and line.strip() == "---"]
    return "\n".join(lines[1 : ends[0]]) if ends else ""


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


UNBOUNDED = 100_000
"""transformers writes 1e30 as a tokenizer's longest input where it does not know it."""

_ODD_PIECES = 24
"""The most special pieces of the rows that are checked: those that embeddings take for padding, then the lowest."""


def _position_tables(model: nn.Module) -> list[nn.Embedding]:
    """The embeddings of absolute positions."""
    named = [module for name, module in model.named_modules() if name.endswith("position_embeddings")]
    return [module for module in named if isinstance(module, nn.Embedding)]


def position_padding(model: nn.Module) -> int | None:
    """The piece that RoBERTa's kin do not count when they number positions, from the next number on; None elsewhere."""
    return max((table.padding_idx for table in _position_tables(model) if table.padding_idx is not None), default=None)


def positions_after_padding(pieces: Tensor, padding: int) -> Tensor:
    """RoBERTa's positions, (batch, pieces): a literal padding piece within a text has none of its own either."""
    is_counted = (pieces != padding).long()
    return is_counted.cumsum(1) * is_counted + padding


def length_of_change(config: Any) -> int:
    """The length above which a family reads the whole batch in another way, as its short texts would not be alone."""
    if getattr(config, "attention_type", None) == "block_sparse":  # BigBird
        return int((5 + 2 * config.num_random_blocks) * config.block_size)
    ropes = getattr(config, "rope_parameters", None) or {}
    parts = [
        part for part in (ropes, *ropes.values()) if isinstance(part, dict) and part.get("rope_type") == "longrope"
    ]
    return min((int(part["original_max_position_embeddings"]) for part in parts), default=UNBOUNDED)


def longest_input(model: Any, tokenizer: Any) -> int:
    """The longest input in subword tokens: the position embeddings, less those that RoBERTa keeps for padding."""
    limit = int(getattr(model.config, "max_position_embeddings", UNBOUNDED))
    padding = position_padding(model)
    reserved = 0 if padding is None else padding + 1
    limit = min([limit, *(table.num_embeddings - reserved for table in _position_tables(model))])
    known = tokenizer.model_max_length  # whatever tokenizer_config.json has under that name
    is_length = isinstance(known, int | float) and 0 < known < UNBOUNDED
    return min(limit, int(known)) if is_length else limit


def rows_to_check(model: Any, pieces_of: PieceTokenizer, tokenizer: Any) -> list[Row]:
    """Rows of several lengths, one of them with every piece that a family may take for padding or count apart.

    Args:
        model: the encoder.
        pieces_of: its tokenizer as ours.
        tokenizer: its tokenizer as transformers'.
    """
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    padding = {table.padding_idx for table in tables if table.padding_idx is not None}
    odd = sorted({*range(5), *tokenizer.all_special_ids, *padding}, key=lambda piece: (piece not in padding, piece))
    known = model.get_input_embeddings().num_embeddings
    a, b = pieces_of.word("a"), pieces_of.word("b")
    special = [*a, *[piece for piece in odd if piece < known][:_ODD_PIECES], *b]
    rows = []
    for pieces in ([*a, *b], special, [*special, *a, *b], [*b, *a]):
        size = pieces_of.max_pieces - len(pieces_of.frame(())[0])
        framed, segments, _ = pieces_of.frame(pieces[:size])
        rows.append(Row(0, 0, tuple(framed), tuple(segments), (), None))
    return rows
