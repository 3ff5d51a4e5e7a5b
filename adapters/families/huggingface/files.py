"""The files of a Hugging Face encoder: find, check and hash them in a folder or on the hub; read sizes and licence.

Nothing is loaded here. Files of the hub come from the local cache if complete there; otherwise they are downloaded.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, Field
from safetensors import SafetensorError, safe_open

from meltpoint.adapters.families import EncoderReference
from meltpoint.adapters.families.huggingface import configuration
from meltpoint.adapters.files import file_digest
from meltpoint.tasks.core.files import is_folder, parse_json, read_bytes

TOKENIZER_FILES = (
    "tokenizer.json", "vocab.txt", "vocab.json", "spm.model", "spiece.model", "sentencepiece.bpe.model",
)  # fmt: skip
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
BESIDE_WEIGHTS = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.txt", "vocab.json", "merges.txt", "*.model", *configuration.SENTENCE_FILES,
)  # fmt: skip
"""The files that loading reads besides the weights; any of them may affect the states, or a sentence's vector."""
ADAPTER = "adapter_config.json"
"""The configuration of adapter weights (peft, the library adapters), which are useless without their base."""
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that transformers would load from a folder, in name order; empty if there are none."""
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return []
    try:
        names = set(_WeightIndex.model_validate(parse_json(read_bytes(index))).weight_map.values())
    except (ValueError, OSError) as error:
        raise ValueError(f"{index} is not an index of weights; save the encoder again.") from error
    return [folder / name for name in sorted(names)]


FileName = Annotated[str, Field(pattern=r"^[^/\\\x00]*\.safetensors$", max_length=200)]
"""The name of a file in the index's own folder; a path could lead elsewhere."""


class _WeightIndex(BaseModel):
    """`model.safetensors.index.json`; transformers requires both keys."""

    metadata: dict[str, Any]
    weight_map: dict[str, FileName]


def check_folder(folder: Path) -> Path:
    """Return the folder if it holds an encoder in the hub's format.

    Raises:
        ValueError: no such folder, or a required file is missing; the message names it and the remedy.
    """
    if not is_folder(folder):
        raise ValueError(f"There is no folder {folder}; name the folder of an encoder, or a hub id, as in hf:… .")
    if (folder / ADAPTER).is_file():  # even with a whole encoder, since transformers with peft would apply the adapter
        raise ValueError(
            f"{folder} holds an adapter ({ADAPTER}), which is not read; merge it into its encoder (peft's "
            "merge_and_unload()), save_pretrained() the result and its tokenizer in a separate folder, and name it."
        )
    configuration.read_config(folder)
    weights = weight_files(folder)
    if not weights:
        configuration.supported_config(folder, str(folder))  # a more specific error, for example for an image model
        raise _no_weights(folder)
    absent = [path.name for path in weights if not path.is_file()]
    if absent:
        raise ValueError(f"{folder} lacks {absent[0]}, which its index of weights names; copy the folder again.")
    for path in weights:
        _check_whole(path)
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        configuration.supported_config(folder, str(folder))
        raise ValueError(f"{folder} holds no tokenizer (tokenizer.json); save the encoder's tokenizer there as well.")
    return folder


def _check_whole(path: Path) -> None:
    """Refuse a truncated or otherwise damaged weights file, by the length in its header."""
    try:
        with safe_open(path, "np"):
            return
    except SafetensorError as error:
        with path.open("rb") as file:
            is_pointer = file.read(len(LFS_POINTER)) == LFS_POINTER
        if is_pointer:
            raise ValueError(f"{path} is a Git LFS pointer, not the weights; run `git lfs pull` there.") from None
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is damaged or truncated ({reason}); copy or download it again.") from None


def _no_weights(folder: Path) -> ValueError:
    """The error for a folder without safetensors; pickled weights are refused, since unpickling can run any code."""
    if any((folder / name).is_file() for name in PICKLES):
        return ValueError(
            f"{folder} holds only pickled weights (pytorch_model.bin), which are never read; if you trust them, load "
            f"them and save_pretrained() them as model.safetensors."
        )
    return ValueError(f"{folder} holds no model.safetensors; name a folder with the encoder's weights.")


def digest_of(files: Sequence[Path]) -> str:
    """sha256 (hex) over the contents of files; each is hashed once per process as long as it does not change."""
    digests = [file_digest(path) for path in files]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def fingerprint(reference: EncoderReference, folder: Path) -> str:
    """sha256 (first 16 hex digits) of the weights, the configuration and the tokenizer, file by file.

    Raises:
        ValueError: the weights are not the expected ones.
    """
    weights = digest_of(weight_files(folder))
    if reference.sha256 not in (None, weights):
        raise ValueError(
            f"{folder} does not hold the weights of '{reference.word}': their sha256 begins {weights[:16]}, not "
            f"{str(reference.sha256)[:16]}; install or download them again."
        )
    companions = sorted({path for pattern in BESIDE_WEIGHTS for path in folder.glob(pattern)})
    parts = [weights, *(f"{path.relative_to(folder)} {file_digest(path)}" for path in companions)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def state_size(folder: Path, word: str) -> int:
    """The size of a hidden state; transformers knows each model type's name for it."""
    return int(configuration.supported_config(folder, word).hidden_size)


def layer_count(folder: Path, word: str) -> int:
    """The number of layers above the embeddings; 0 if the architecture's configuration does not name it."""
    return int(getattr(configuration.supported_config(folder, word), "num_hidden_layers", 0))


def weights_without_embeddings(folder: Path) -> int:
    """The number of weights that a forward pass multiplies by: all matrices except embeddings, LM head and pooler."""
    count = 0
    for path in weight_files(folder):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - not iterable itself
                shape = file.get_slice(name).get_shape()
                if len(shape) > 1 and "embedding" not in name and not name.startswith(("cls.", "lm_head.", "pooler.")):
                    count += math.prod(shape)
    return count


CARD = "README.md"


def licence_of(folder: Path) -> str | None:
    """The licence in a folder's `README.md`: a hub identifier (`apache-2.0`); None without one."""
    from huggingface_hub import metadata_load  # slow to import

    try:
        stated = (metadata_load(folder / CARD) or {}).get("license")
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return stated if isinstance(stated, str) else None


# Only the files that loading needs: a repository may also hold pickles, ONNX and TensorFlow copies of the weights.
# The encoder's own model card is read for its licence.
HUB_FILES = (
    *BESIDE_WEIGHTS,
    *configuration.DOWNLOADED,
    ADAPTER,
    "*.safetensors",
    "*.safetensors.index.json",
    "README.md",
)

COMMIT = re.compile(r"[0-9a-f]{40}")
ASK_SECONDS = 20
"""Timeout of the request for the newest commit; downloads use the hub client's timeouts and retries."""


def snapshot(reference: EncoderReference) -> Path:
    """The folder of a hub encoder in the local cache, named by its commit.

    With a commit, a cached copy whose files the cache lists is used without network access. The commit of a branch or
    tag, or the newest one without a revision, is looked up first; if the hub cannot be reached, the cached copy is
    used.

    Raises:
        ValueError: the files are not available; one line with the remedy.
    """
    import huggingface_hub  # slow to import
    from huggingface_hub import errors

    cached = _cached(reference)
    if cached is not None and COMMIT.fullmatch(reference.revision or "") and _is_listed(reference):
        return cached
    what = f"Encoder '{reference.word}': {reference.source}"
    try:
        # Without a network this request fails at once; a download would retry, and log it, for half a minute.
        huggingface_hub.model_info(reference.source, revision=reference.revision, timeout=ASK_SECONDS)
        folder = huggingface_hub.snapshot_download(
            reference.source, revision=reference.revision, allow_patterns=list(HUB_FILES)
        )  # fmt: skip
    except (errors.GatedRepoError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        if cached is not None and COMMIT.fullmatch(reference.revision or ""):
            return cached  # no token here, or the commit has gone from the hub
        refusals = {
            errors.GatedRepoError: "is gated; accept its terms on the hub and set HF_TOKEN.",
            errors.RepositoryNotFoundError: "is not on the hub, or private; check the id, or set HF_TOKEN.",
            errors.RevisionNotFoundError: f"has no revision '{reference.revision}' on the hub.",
        }
        why = next(words for kind, words in refusals.items() if isinstance(error, kind))
        raise ValueError(f"{what} {why}") from error
    except errors.HFValidationError as error:
        raise ValueError(f"{what} is neither a hub id nor a folder.") from error
    except (errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]  # the error of the hub's httpx
        if cached is not None:
            return cached
        raise ValueError(
            f"{what} is not in the local cache and the hub cannot be reached ({first_line(error)}); connect once, "
            f"point HF_HOME at a cache that holds it, or name a folder as hf:FOLDER."
        ) from error
    if not weight_files(Path(folder)):
        raise ValueError(
            f"{what} has no safetensors at {reference.revision or 'its newest commit'}, and pickled weights are never "
            f"read; name a revision that has them. The hub's conversion is often an open pull request, as in "
            f"{reference.word.partition('@')[0]}@refs/pr/1: look under Community on the model's page."
        )
    return Path(folder)


def _is_listed(reference: EncoderReference) -> bool:
    """True if the cache lists the commit's files: what transformers cached may lack the pooling and the prompts."""
    import huggingface_hub
    from huggingface_hub import errors

    listing = getattr(huggingface_hub, "get_cached_repo_tree", None)  # older versions keep no list
    if listing is None:
        return True
    try:
        return bool(listing(reference.source, revision=reference.revision))
    except errors.CachedRepoTreeNotFoundError:
        return False


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


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its type."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


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
