"""Reading and writing ELMo's weights: the mapping of its parameters to the released HDF5 file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import Tensor, nn

from meltpoint.adapters.families.elmo.characters import CharacterCNN
from meltpoint.adapters.families.elmo.language_model import LanguageModel

CHARACTERS = "char_embed"
BROKEN = (OSError, RuntimeError, KeyError, TypeError, AttributeError, UnicodeDecodeError, OverflowError, MemoryError)
"""What h5py raises for damaged files."""


def read(path: Path, words: CharacterCNN, language_model: LanguageModel) -> None:
    """Load every parameter from a file.

    Raises:
        ValueError: it is no HDF5 file, lacks a weight, or has one of another shape; one line.
    """
    try:
        with h5py.File(path, "r") as file:
            for name, place in _places(words, language_model):
                _fill(place, name, file.get(name), path)
    except BROKEN as error:
        raise ValueError(f"{path} is no readable HDF5 file; copy it from ELMo's release again.") from error


def _fill(place: Tensor, name: str, dataset: object, path: Path) -> None:
    """Copy one HDF5 data set into a parameter."""
    if not isinstance(dataset, h5py.Dataset):
        raise ValueError(f"{path} lacks {name}, which options.json asks for; take both files from one release.")
    if dataset.shape != tuple(place.shape) or dataset.dtype.kind != "f":
        raise ValueError(
            f"{path}: {name} is {dataset.shape} of {dataset.dtype}, and options.json asks for numbers of "
            f"{tuple(place.shape)}; take both files from one release."
        )
    with torch.no_grad():
        place.copy_(torch.from_numpy(dataset[...].astype(np.float32, copy=False)))


def write(path: Path, words: CharacterCNN, language_model: LanguageModel) -> None:
    """Write every parameter, as float32, under the released names."""
    with h5py.File(path, "w") as file:
        for name, place in _places(words, language_model):
            file.create_dataset(name, data=place.detach().float().cpu().contiguous().numpy())


def weights_without_embeddings(path: Path) -> int:
    """The number of weights that a forward pass multiplies by: all matrices except the character embeddings.

    Raises:
        ValueError: it is no HDF5 file, or a truncated one; one line.
    """
    sizes: list[int] = []

    def count(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset) and len(item.shape) > 1 and name != CHARACTERS:
            sizes.append(math.prod(item.shape))

    try:
        with h5py.File(path, "r") as file:
            file.visititems(count)
    except BROKEN as error:
        raise ValueError(f"{path} is no readable HDF5 file; copy it from ELMo's release again.") from error
    return sum(sizes)


def _places(words: CharacterCNN, language_model: LanguageModel) -> Iterator[tuple[str, Tensor]]:
    """Yield (name in the file, view of the parameter in the file's shape) for every parameter.

    The names are those that `allennlp.modules.elmo` and `elmo_lstm` read. Dense layers are transposed, since
    TensorFlow computes x W.
    """
    yield CHARACTERS, words.characters.detach()
    for number, filters in enumerate(words.convolutions):
        weight, bias = (filters.get_parameter(name).detach() for name in ("weight", "bias"))
        yield f"CNN/W_cnn_{number}", weight.permute(2, 1, 0)[None]  # (1, width, characters, filters)
        yield f"CNN/b_cnn_{number}", bias
    for number, highway in enumerate(words.highways):
        for gate in ("carry", "transform"):
            yield from _dense(f"CNN_high_{number}", f"_{gate}", highway.get_submodule(gate))
    yield from _dense("CNN_proj", "_proj", words.projection)
    for number, layer in enumerate(language_model.layers):
        kernel, projection = (layer.get_parameter(name).detach() for name in ("kernel", "projection"))
        for direction, bias_name in enumerate(("forward_bias", "backward_bias")):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{number}/LSTMCell"
            yield f"{cell}/W_0", kernel[direction]
            yield f"{cell}/B", layer.get_parameter(bias_name).detach()
            yield f"{cell}/W_P_0", projection[direction]


def _dense(group: str, ending: str, layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield (name in the file, view) of a dense layer's weight and bias."""
    yield f"{group}/W{ending}", layer.get_parameter("weight").detach().T
    yield f"{group}/b{ending}", layer.get_parameter("bias").detach()
