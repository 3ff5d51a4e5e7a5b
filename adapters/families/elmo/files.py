"""Files of a released ELMo, and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, ValidationError

from meltpoint.tasks.core.files import is_folder

WEIGHTS = "weights.hdf5"
NAMES = (WEIGHTS, "lm_weights.hdf5")
"""The names of weights files that ELMo's code uses."""


def check_folder(folder: Path) -> Path:
    """Return the folder if it holds `options.json` and weights, as ELMo was released.

    Raises:
        ValueError: no such folder, or a file is missing or damaged; the message names it and the remedy.
    """
    if not is_folder(folder):
        raise ValueError(f"There is no folder {folder}; name the folder of an ELMo, as in elmo:FOLDER.")
    if not (folder / FILE).is_file():
        raise ValueError(f"{folder} holds no {FILE}; an ELMo folder has {FILE} and {WEIGHTS}.")
    read(folder / FILE)
    weights_file(folder)
    return folder


def weights_file(folder: Path) -> Path:
    """`weights.hdf5` or `lm_weights.hdf5`, or else the folder's only HDF5 file (released names contain the sizes).

    Raises:
        ValueError: none or several are found.
    """
    paths = [folder / name for name in NAMES if (folder / name).is_file()]
    if paths:
        return paths[0]
    paths = sorted(folder.glob("*.hdf5"))
    if len(paths) == 1:
        return paths[0]
    named = f"several *.hdf5 ({paths[0].name}, {paths[1].name}), none of them" if paths else "no"
    raise ValueError(f"{folder} holds {named} {WEIGHTS}; put ELMo's weights there under that name.")


WORD_LENGTH: Final = 50
"""Characters per word, including the markers of its beginning and end; all released weights were trained with it."""

FILE = "options.json"

Size = Annotated[int, Field(gt=0, le=2**16)]
"""A number of units; the largest released one is 4096, and no machine holds more than this limit."""
Layers = Annotated[int, Field(ge=0, le=2**8)]
"""A number of layers; the released ones have 1 or 2 of each kind."""


Width = Annotated[int, Field(gt=0, le=WORD_LENGTH)]
"""The width of a filter, at most a word."""


class _Section(BaseModel):
    """A section of the file; unknown keys are kept, so that saving writes all keys of the loaded file."""

    model_config = ConfigDict(frozen=True, extra="allow")


class EmbeddingOptions(_Section):
    """`char_cnn.embedding`, the character embeddings.

    Attributes:
        dim: size of a character's embedding.
    """

    dim: Size


class CharacterOptions(_Section):
    """`char_cnn`, the character CNN.

    Attributes:
        activation: the convolutions' activation.
        filters: (width in characters, number of filters) of each convolution.
        n_highway: number of highway layers.
        embedding: the character embeddings.
        n_characters: 262 as released; 261 while the language model was trained, before 0 was used for masked words.
        max_characters_per_token: the same as `WORD_LENGTH`.
    """

    activation: Literal["relu", "tanh"]
    filters: tuple[tuple[Width, Size], ...] = Field(min_length=1)
    n_highway: Layers
    embedding: EmbeddingOptions
    n_characters: Literal[261, 262] = 262
    max_characters_per_token: Literal[50] = WORD_LENGTH


class LstmOptions(_Section):
    """`lstm`, the bidirectional language model.

    Attributes:
        dim: number of memory cells per direction.
        projection_dim: size of a layer's output per direction.
        n_layers: number of layers.
        cell_clip, proj_clip: largest absolute value of a memory cell and of an output; 0 or null for no limit.
        use_skip_connections: whether a layer's input is added to its output, from the second layer on.
    """

    dim: Size
    projection_dim: Size
    n_layers: Annotated[Layers, Field(gt=0)]
    cell_clip: NonNegativeFloat | None
    proj_clip: NonNegativeFloat | None
    use_skip_connections: bool


class ElmoOptions(_Section):
    """The contents of `options.json`."""

    char_cnn: CharacterOptions
    lstm: LstmOptions


def read(path: Path) -> ElmoOptions:
    """Read an `options.json`.

    Raises:
        ValueError: it cannot be read, or a key is missing or invalid; one line that names file and key.
    """
    try:
        return ElmoOptions.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); copy it from ELMo's release.") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        key, wrong = ".".join(map(str, first["loc"])) or "the file", first["msg"]
        raise ValueError(f"{path}: {key}: {wrong}; use the options.json released with the weights.") from error
