"""The files of a Hugging Face encoder: found, downloaded, checked and hashed before anything is loaded from them."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from meltpoint.adapters.encoders._reference import EncoderReference

# Only what loading needs: a hub folder may also hold pickles, ONNX and TensorFlow copies of the same weights.
DOWNLOADED = (
    "config.json", "*.safetensors", "*.safetensors.index.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "vocab.txt", "vocab.json", "merges.txt", "*.model",
)  # fmt: skip
TOKENIZER_FILES = (
    "tokenizer.json", "vocab.txt", "vocab.json", "spm.model", "spiece.model", "sentencepiece.bpe.model",
)  # fmt: skip
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that transformers would load from a folder, in name order; empty if there are none."""
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    if (folder / "model.safetensors.index.json").is_file():
        return sorted(folder.glob("model-*.safetensors"))
    return []


def check_folder(folder: Path) -> Path:
    """The folder, if it holds an encoder in the hub's format.

    Raises:
        ValueError: no such folder, or a file that loading needs is missing; the message names it and the remedy.
    """
    if not folder.is_dir():
        raise ValueError(f"There is no folder {folder}; pass the folder of an encoder, or a hub id, as hf:… .")
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} holds no config.json; pass a folder that transformers' save_pretrained wrote.")
    if not weight_files(folder):
        raise _no_weights(folder)
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ValueError(f"{folder} holds no tokenizer (tokenizer.json); save the encoder's tokenizer there as well.")
    return folder


def _no_weights(folder: Path) -> ValueError:
    """Why a folder without safetensors is refused; pickles can run any code when they are read."""
    if any((folder / name).is_file() for name in PICKLES):
        return ValueError(
            f"{folder} holds only pickled weights (pytorch_model.bin), which are never read; load them where you trust "
            f"them and save_pretrained() them as model.safetensors."
        )
    return ValueError(f"{folder} holds no model.safetensors; pass a folder with the encoder's weights.")


def locate(reference: EncoderReference) -> tuple[Path, str]:
    """The folder that holds an encoder's files, downloaded first where need be, and its revision in words.

    Returns:
        (folder, the folder's name again or `ID@COMMIT`).

    Raises:
        ValueError: the files cannot be had; one line with the remedy.
    """
    if reference.is_folder:
        folder = check_folder(Path(reference.source))
        return folder, str(folder)
    folder = _cached(reference) or _download(reference)
    return check_folder(folder), f"{reference.source}@{folder.name}"


def _cached(reference: EncoderReference) -> Path | None:
    """The complete copy of a pinned revision in the local cache, without asking the network; None if there is none."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    if reference.revision is None:
        return None
    try:
        folder = snapshot_download(
            reference.source, revision=reference.revision, allow_patterns=list(DOWNLOADED), local_files_only=True
        )
        return check_folder(Path(folder))
    except (LocalEntryNotFoundError, ValueError):
        return None


def _download(reference: EncoderReference) -> Path:
    """Fetch an encoder's files from the hub into its cache."""
    from huggingface_hub import errors, snapshot_download

    what = f"Encoder '{reference.word}': {reference.source}"
    try:
        folder = snapshot_download(
            reference.source, revision=reference.revision, allow_patterns=list(DOWNLOADED)
        )  # fmt: skip
    except errors.GatedRepoError as error:
        raise ValueError(f"{what} is gated; accept its terms on the hub and set HF_TOKEN.") from error
    except errors.RepositoryNotFoundError as error:
        raise ValueError(f"{what} is not on the hub, or private; check the id, or set HF_TOKEN.") from error
    except errors.RevisionNotFoundError as error:
        raise ValueError(f"{what} has no revision '{reference.revision}' on the hub.") from error
    except (errors.HFValidationError, errors.HfHubHTTPError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"{what} is not in the local cache and the hub cannot be reached ({reason}); connect once, point HF_HOME "
            f"at a cache that holds it, or pass a folder as hf:FOLDER."
        ) from error
    return Path(folder)


def weights_digest(folder: Path) -> str:
    """sha256 (hex) over the bytes of a folder's weight files, hashed once a process while they do not change."""
    digests = [_file_digest(path, path.stat().st_mtime_ns, path.stat().st_size) for path in weight_files(folder)]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


@lru_cache(maxsize=64)
def _file_digest(path: Path, modified_ns: int, size_bytes: int) -> str:
    """sha256 of a file; its time and size are part of the key, so that a replaced file is hashed again."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(reference: EncoderReference, folder: Path) -> str:
    """The digest of a folder's weights, checked against the reference.

    Raises:
        ValueError: the weights are not the expected ones.
    """
    digest = weights_digest(folder)
    if reference.sha256 not in (None, digest):
        raise ValueError(
            f"The weights in {folder} are not those of '{reference.word}': their sha256 begins {digest[:16]}, not "
            f"{str(reference.sha256)[:16]}; install or download them again."
        )
    return digest
