"""The configuration in an encoder's folder: its architecture, whether that is supported, its pooling of sentences.

`pipeline("text-classification", FOLDER)` on a bare encoder's folder adds a new, random classifier and returns confident
labels; only a table of missing weights reveals this. A configuration with no labels leaves that classifier without
outputs, so the pipeline fails. `AutoModel` still reads the folder, and `num_labels` still gives you a classifier to
train.

sentence-transformers puts `modules.json`, `1_Pooling/config.json` and prompts next to an encoder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meltpoint.adapters.data.input_format import PoolingKind, Prompts, SentencePooling
from meltpoint.adapters.files import write_atomically
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.files import parse_json, read_bytes
from meltpoint.tasks.core.task import Kind

CONFIG = "config.json"
NO_LABELS: dict[str, Any] = {"id2label": {}, "label2id": {}}


def leave_without_labels(folder: Path) -> None:
    """Remove every label from an encoder's configuration."""
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
    "perceiver": "a reader of bytes with one fixed set of states, none of which belongs to a piece",
    "reformer": "a reversible model for inputs of fixed lengths, whose layers' states have no gradient",
    "xlnet": "a permutation language model, pretrained to predict pieces in random orders",
    "xmod": "a model that needs each text's language as an input",
}

WITHOUT_HEAD: dict[bool, set[str]] = {False: {"neomme"}, True: {"neomme", "tapas"}}
"""For sequence labelling or not: model types that can be adapted, but have no head in transformers."""


def has_native_head(folder: Path, kind: Kind) -> bool:
    """True if transformers has a classification head of a folder's model type for a kind of task."""
    return read_config(folder)["model_type"] not in WITHOUT_HEAD[kinds.get(kind).labels_words]


def read_json(path: Path) -> Any:
    """A file's JSON value; None if there is no file.

    Raises:
        ValueError: it is not JSON; one line with the remedy.
    """
    try:
        return parse_json(read_bytes(path)) if path.is_file() else None
    except ValueError as error:
        raise ValueError(f"{path} cannot be read ({error}); copy or download the encoder again.") from None


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json, which must name a model type.

    Raises:
        ValueError: it is missing, is not JSON, or names no model type; one line with the remedy.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise ValueError(f"{folder} holds no {CONFIG}; name {_inside(folder)}.")
    config = read_json(path)
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        remedy = "name a folder that transformers' save_pretrained wrote."
        raise ValueError(f'{path} names no model type ("model_type": "bert"); {remedy}')
    return config


def _inside(folder: Path) -> str:
    """The folders to name instead of one without config.json: its models' folders, such as a Trainer leaves."""
    found = (path.parent for way in ("*", "snapshots/*") for path in folder.glob(f"{way}/config.json"))
    models = sorted(inside for inside in found if b'"model_type"' in read_bytes(inside / "config.json"))
    return " or ".join(map(str, models[:3])) or "a folder that transformers' save_pretrained wrote"


def supported_config(folder: Path, word: str) -> Any:
    """Load the configuration of a folder's model, which must be a text encoder.

    Args:
        folder: the folder of config.json.
        word: the encoder's name on the command line, for messages.

    Raises:
        ValueError: transformers does not know the model, or it is not a text encoder; one line that names its type.
    """
    import transformers  # imported here because it takes a second
    from huggingface_hub.errors import StrictDataclassError

    model_type = read_config(folder)["model_type"]
    if model_type not in transformers.CONFIG_MAPPING:
        raise ValueError(
            f"{word}: its config.json names the model type '{model_type}', which transformers "
            f"{transformers.__version__} does not know, and a model's own code is never run. Name another "
            f"encoder."
        )
    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except (ValueError, OSError, LookupError, TypeError, AttributeError, StrictDataclassError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{word}: its config.json cannot be read ({reason}). Copy or download it again.") from None
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
        return "a decoder, whose states ignore the pieces to their right"
    return "not a text encoder (not a masked language model)"


MODULES, PROMPTS, POOLING_CONFIG = "modules.json", "config_sentence_transformers.json", "config.json"
SENTENCE_FILES = (MODULES, PROMPTS, f"*_Pooling/{POOLING_CONFIG}")
"""They determine sentence vectors and inputs, so they are downloaded and hashed with the encoder."""
TRANSFORMER_CONFIGS, TOKENIZER = "sentence_*_config.json", "tokenizer_config.json"
DOWNLOADED = (TRANSFORMER_CONFIGS, "[0-9]*_*/*.json")
"""Further files to download: they are copied, or show that a folder cannot be read."""

KINDS: dict[str, PoolingKind] = {"mean": "mean", "cls": "cls", "max": "max"}
OLD_KEYS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max"}
"""Keys of sentence-transformers before version 5.3, each a boolean; since then `pooling_mode` is a string."""
READ = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
"""The supported sequences of modules; others are not read."""
STATES = {
    "transformer_task": "feature-extraction", "module_output_name": "token_embeddings",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
}  # fmt: skip
"""The keys that sentence-transformers 6.2 writes for a Transformer that outputs its top layer's states."""
COPIED = {".json", ".txt", ".safetensors"}
"""Suffixes of a module's files; no pickles."""

_INSIDE = re.compile(r"[\w-][\w.-]*")
_POOLING = re.compile(r"[\w-]*_Pooling")
"""The folder in which sentence-transformers saves a pooling, matched by `SENTENCE_FILES`."""


def read_pooling(folder: Path) -> SentencePooling | None:
    """The pooling that a folder's files declare; None without such files, or if they declare anything else.

    Raises:
        ValueError: a file cannot be read; one line with the remedy.
    """
    parts = _parts(folder)
    names, paths = [name for name, _ in parts], [path for _, path in parts]
    if names not in READ or paths[0] or not _POOLING.fullmatch(paths[1]):
        return None
    kind = _kind(_read_json(folder / paths[1] / POOLING_CONFIG, dict))
    written = (_read_json(path, dict) for path in sorted(folder.glob(TRANSFORMER_CONFIGS)))
    transformer: dict[str, Any] = next(written, {})
    reads_other_states = transformer.get("processing_kwargs") or any(
        transformer.get(key, value) != value for key, value in STATES.items()
    )
    lowers_texts = transformer.get("do_lower_case") and not _read_json(folder / TOKENIZER, dict).get("do_lower_case")
    if kind is None or reads_other_states or lowers_texts:
        return None
    longest = transformer.get("max_seq_length")
    return SentencePooling(kind, "Normalize" in names, longest if isinstance(longest, int) else None)


def is_unread_sentence_encoder(folder: Path) -> bool:
    """True if a folder's files make it a sentence encoder of a form that is not read.

    Raises:
        ValueError: a file cannot be read; one line with the remedy.
    """
    return (folder / MODULES).is_file() and read_pooling(folder) is None


def _parts(folder: Path) -> list[tuple[str, str]]:
    """The class and the path of each module, in order; classes outside sentence-transformers keep their full names."""
    modules = [part for part in _read_json(folder / MODULES, list) if isinstance(part, dict)]
    types = [str(part.get("type", "?")) for part in modules]
    names = [word.rpartition(".")[2] if word.startswith("sentence_transformers.") else word for word in types]
    return list(zip(names, (str(part.get("path", "")) for part in modules), strict=True))


def _kind(config: dict[str, Any]) -> PoolingKind | None:
    """The single pooling of a configuration; None for several, for an unknown one, or if it skips prompts."""
    on = [key for key, value in config.items() if key.startswith("pooling_mode_") and value]
    old = OLD_KEYS.get(on[0]) if len(on) == 1 else None if on else "mean"  # the package's default
    word = config.get("pooling_mode", old)
    word = word[0] if isinstance(word, list) and len(word) == 1 else word
    return KINDS.get(word) if isinstance(word, str) and config.get("include_prompt", True) is not False else None


def read_prompts(folder: Path, otherwise: Prompts | None = None) -> Prompts:
    """The prompts that a folder's files declare, or the given ones if they declare none.

    Raises:
        ValueError: the file cannot be read; one line with the remedy.
    """
    config = _read_json(folder / PROMPTS, dict)
    prompts, default = config.get("prompts"), config.get("default_prompt_name")
    texts = prompts.items() if isinstance(prompts, dict) else ()
    named = tuple((name, text) for name, text in texts if isinstance(text, str))
    if otherwise and not named:
        return otherwise
    return Prompts(named, default if isinstance(default, str) else "")


def read_files(folder: Path, prompts: Prompts) -> dict[str, bytes]:
    """The files that turn a folder's encoder into a sentence encoder: path → contents, for `write_files`.

    Args:
        folder: the folder.
        prompts: the encoder's prompts; a file with them is added if the folder has none.
    """
    modules = [folder / path for _, path in _parts(folder) if _INSIDE.fullmatch(path)]
    inside = (path for module in modules for path in module.glob("*") if path.suffix in COPIED)
    files = (folder / MODULES, folder / PROMPTS, *folder.glob(TRANSFORMER_CONFIGS), *inside)
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files if path.is_file()}
    if not prompts.named or read_prompts(folder).named:
        return found
    declared = {"prompts": dict(prompts.named), "default_prompt_name": prompts.default or None}
    known = _read_json(folder / PROMPTS, dict)
    return {**found, PROMPTS: json.dumps(known | declared, indent=2).encode()}


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files that `read_files` found next to an encoder."""
    for name, contents in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(contents)


def _read_json(path: Path, kind: type[Any]) -> Any:
    """A file's JSON value, checked to be of a type; an empty one if there is no file."""
    value = read_json(path)
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"{path} is not a sentence-transformers file; copy or download the encoder again.")
    return kind() if value is None else value
