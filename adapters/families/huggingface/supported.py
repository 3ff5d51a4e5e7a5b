"""Architectures that are supported, and how far.

`pipeline("text-classification", FOLDER)` on the folder of a bare encoder puts a new, random classifier on it and
answers with confident labels; only a table of missing weights says so. A configuration with no labels leaves that
classifier without outputs, so that the pipeline fails. `AutoModel` reads the folder as before, and whoever passes
`num_labels` to train a classifier of their own gets one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from meltpoint.adapters.files import write_atomically
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.files import parse_json, read_bytes
from meltpoint.tasks.core.task import Kind

CONFIG = "config.json"
NO_LABELS: dict[str, Any] = {"id2label": {}, "label2id": {}}


def leave_without_labels(folder: Path) -> None:
    """Take every label out of an encoder's configuration."""
    config = parse_json(read_bytes(folder / CONFIG))
    assert isinstance(config, dict), "transformers has just written it"
    config.pop("problem_type", None)
    write_atomically(folder / CONFIG, json.dumps({**config, **NO_LABELS}, indent=2) + "\n")


EXAMPLES = "BERT, RoBERTa, ELECTRA, DeBERTa, ModernBERT, …"

# Models that transformers lists with a masked-LM head (XLNet: among decoders), but that have no trainable hidden state
# of each piece. All other models are judged by their configuration.
UNFIT = {
    "funnel": "a funnel, whose upper layers have fewer states than the input has pieces",
    "ibert": "quantised for integers, which cannot be adapted",
    "perceiver": "a reader of bytes with one fixed set of states, none of them a piece's",
    "reformer": "a reversible model for inputs of fixed lengths, whose layers' states have no gradient",
    "xlnet": "a permutation language model, pretrained to predict pieces in random orders",
    "xmod": "one that needs each text's language as an input",
}

MOST_LAYERS = 10_000
COUNTS = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
"""Names in a configuration, whatever its model type calls them, of numbers that are 1 or more."""

WITHOUT_HEAD: dict[bool, set[str]] = {False: {"neomme"}, True: {"neomme", "tapas"}}
"""For sequence labelling or not: model types that can be adapted, but have no head of their own in transformers."""


def has_native_head(folder: Path, kind: Kind) -> bool:
    """True if transformers has a classification head of a folder's model type for a kind of task."""
    return read_config(folder)["model_type"] not in WITHOUT_HEAD[kinds.get(kind).labels_words]


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json, which must name a model type.

    Raises:
        ValueError: it is missing, is no JSON, or names no model type; one line with the remedy.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder} holds no config.json; pass {_inside(folder)}.")
    try:
        config = parse_json(read_bytes(path))
    except ValueError as error:
        raise ValueError(f"{path} cannot be read ({error}); copy or download the encoder again.") from None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        remedy = "pass a folder that transformers' save_pretrained wrote."
        raise ValueError(f'{path} names no model type ("model_type": "bert"); {remedy}')
    deep = [
        name for name, value in config.items() if "layer" in name and isinstance(value, int) and value > MOST_LAYERS
    ]
    if deep:  # transformers makes lists of that length
        raise ValueError(f"{path} has a {deep[0]} of {config[deep[0]]}; copy or download the encoder again.")
    return config


def _inside(folder: Path) -> str:
    """The folders to pass instead of one without config.json: those of models in it, as a Trainer leaves behind."""
    found = (path.parent for way in ("*", "snapshots/*") for path in folder.glob(f"{way}/config.json"))
    models = sorted(inside for inside in found if b'"model_type"' in read_bytes(inside / "config.json"))
    return " or ".join(map(str, models[:3])) or "a folder that transformers' save_pretrained wrote"


def supported_config(folder: Path, word: str) -> Any:
    """Load the configuration of a folder's model, which must be a text encoder.

    Args:
        folder: the folder of config.json.
        word: the encoder's name on the command line, for messages.

    Raises:
        ValueError: transformers does not know the model, or it is no text encoder; one line that names what it is.
    """
    import transformers  # imported here because it takes a second
    from huggingface_hub.errors import StrictDataclassError

    model_type = read_config(folder)["model_type"]
    if model_type not in transformers.CONFIG_MAPPING:
        raise ValueError(
            f"{word}: its config.json names the model type '{model_type}', which transformers "
            f"{transformers.__version__} does not know, and code that comes with a model is never run. Name another "
            f"encoder."
        )
    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except (ValueError, OSError, LookupError, TypeError, AttributeError, StrictDataclassError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{word}: its config.json cannot be read ({reason}). Copy or download it again.") from None
    for name in COUNTS:
        count = getattr(config, name, None)
        if isinstance(count, int) and count < 1:
            raise ValueError(f"{word}: its config.json has a {name} of {count}. Copy or download it again.")
    if getattr(config, "quantization_config", None):
        raise ValueError(
            f"{word} is quantised (quantization_config in its config.json), which cannot be adapted; name the encoder "
            "that it was made from, or dequantize() it and save_pretrained() it again."
        )
    unsupported = _unsupported_kind(config)
    if unsupported:
        name = type(config).__name__.removesuffix("Config")
        raise ValueError(f"{word}: {name} is {unsupported}; Meltpoint adapts encoders ({EXAMPLES}). Name one of those.")
    return config


def _unsupported_kind(config: Any) -> str:
    """The kind of a model that cannot be adapted, for a message; "" for a text encoder."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

    if config.model_type in UNFIT:
        return UNFIT[config.model_type]
    if getattr(config, "is_encoder_decoder", False):
        return "an encoder-decoder model"
    if getattr(config, "is_decoder", False):
        return "set up as a decoder here (is_decoder in its config.json)"
    if any(hasattr(config, part) for part in ("vision_config", "audio_config")):
        return "a model of images or sound, not of text alone"
    if type(config) in MODEL_FOR_MASKED_LM_MAPPING:
        return ""
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return "a decoder, whose states know nothing of the pieces to their right"
    return "no text encoder (no masked language model)"
