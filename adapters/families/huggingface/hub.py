"""An encoder's files from the Hugging Face hub: from the local cache if they are complete, else downloaded."""

from __future__ import annotations

from pathlib import Path

from meltpoint.adapters.families.huggingface import sentence_files
from meltpoint.adapters.families.huggingface.files import ADAPTER, BESIDE_WEIGHTS, check_folder
from meltpoint.adapters.families.reference import EncoderReference

# Only the files that loading needs: a repository may also hold pickles, ONNX and TensorFlow copies of the weights.
# The encoder's own model card is read for its licence.
HUB_FILES = (
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
    import huggingface_hub  # slow to import
    from huggingface_hub import errors

    cached = _cached(reference)
    if cached is not None and reference.revision is not None:
        return cached
    what = f"Encoder '{reference.word}': {reference.source}"
    try:
        # This request fails at once without a network, where a download would retry, and log it, for half a minute.
        commit = huggingface_hub.model_info(reference.source, revision=reference.revision, timeout=ASK_SECONDS).sha
        folder = huggingface_hub.snapshot_download(
            reference.source, revision=commit, allow_patterns=list(HUB_FILES)
        )  # fmt: skip
        return Path(folder)
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
    import huggingface_hub
    from huggingface_hub import errors

    try:
        folder = huggingface_hub.snapshot_download(
            reference.source, revision=reference.revision, allow_patterns=list(HUB_FILES), local_files_only=True
        )
        return check_folder(Path(folder))
    except (errors.LocalEntryNotFoundError, errors.HFValidationError, ValueError):
        return None


def _reason(error: Exception) -> str:
    """The first line of an error's message, or its type."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
