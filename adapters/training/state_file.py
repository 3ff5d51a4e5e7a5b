"""A training state as one safetensors file: JSON in its metadata, a checksum over all of it, never a pickle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from meltpoint.adapters.files import replacing
from meltpoint.adapters.training.training_state import TrainingState

FORMAT = 1


class DamagedStateError(ValueError):
    """A file that is no whole training state."""


def write_state(path: Path, state: TrainingState, about: Mapping[str, Any]) -> None:
    """Write a state, whole or not at all; synced before it is renamed.

    Args:
        about: what else the file says, as JSON.
    """
    tensors = {name: own.detach().contiguous().cpu() for name, own in state.tensors.items()}
    words = json.dumps({"format": FORMAT, "facts": state.facts, "about": about})
    with replacing(path) as beside:
        save_file(tensors, beside, {"state": words, "sha256": _digest(tensors, words)})


def read_about(path: Path) -> dict[str, Any]:
    """The JSON beside a file's state, without reading the tensors; the file may be damaged all the same.

    Raises:
        DamagedStateError: its header cannot be read.
        FileNotFoundError: there is no file.
    """
    return dict(_read(path, with_tensors=False)[1])


def read_state(path: Path) -> TrainingState:
    """The state of a file, compared with its checksum.

    Raises:
        DamagedStateError: it is damaged.
        FileNotFoundError: there is no file.
    """
    return _read(path, with_tensors=True)[0]


def _read(path: Path, with_tensors: bool) -> tuple[TrainingState, dict[str, Any]]:
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
            words, digest = metadata["state"], metadata["sha256"]
            names = sorted(file.keys()) if with_tensors else []
            tensors = {name: file.get_tensor(name) for name in names}
        if with_tensors and _digest(tensors, words) != digest:
            raise DamagedStateError("its checksum is another")
        document = json.loads(words)
        if document["format"] != FORMAT:
            raise DamagedStateError(f"its format is {document['format']}")
        return TrainingState(tensors, document["facts"]), document["about"]
    except (FileNotFoundError, DamagedStateError):
        raise
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DamagedStateError(" ".join(str(error).split()) or type(error).__name__) from None


def _digest(tensors: Mapping[str, Tensor], words: str) -> str:
    """sha256 over names, types, shapes, numbers and JSON."""
    digest = hashlib.sha256(words.encode())
    for name in sorted(tensors):
        own = tensors[name]
        digest.update(f"{name} {own.dtype} {tuple(own.shape)}".encode())
        digest.update(own.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
