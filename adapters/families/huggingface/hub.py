"""An encoder's files from the Hugging Face hub: out of the local cache where they are complete, else downloaded."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import errors, model_info, snapshot_download

from meltpoint.adapters.families.huggingface.files import BESIDE_WEIGHTS, check_folder
from meltpoint.adapters.families.reference import EncoderReference

# Only what loading needs: a hub folder may also hold pickles, ONNX and TensorFlow copies of the same weights.
DOWNLOADED = (*BESIDE_WEIGHTS, "*.safetensors", "*.safetensors.index.json")

ASK_SECONDS = 20
"""How long the hub may take to say which commit is meant; a download itself retries on its own."""


def snapshot(reference: EncoderReference) -> Path:
    """The cache's folder of a hub encoder, named by its commit.

    A pinned revision that lies in the cache is taken without asking the network; a branch is looked up first, and its
    cached copy is taken where the hub cannot be reached.

    Raises:
        ValueError: the files cannot be had; one line with the remedy.
    """
    cached = _cached(reference)
    if cached is not None and reference.revision is not None:
        return cached
    what = f"Encoder '{reference.word}': {reference.source}"
    try:
        # Asked first because it fails at once: a download without a network retries, and says so, for half a minute.
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
    """The cache's complete copy, without asking the network; None if there is none."""
    try:
        folder = snapshot_download(
            reference.source, revision=reference.revision, allow_patterns=list(DOWNLOADED), local_files_only=True
        )
        return check_folder(Path(folder))
    except (errors.LocalEntryNotFoundError, errors.HFValidationError, ValueError):
        return None


def _reason(error: Exception) -> str:
    """What a network error says, on one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
