"""Loading a Hugging Face model and its tokenizer with transformers, and checking that they belong together."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from torch import nn

from meltpoint.adapters.data.tokenising import PieceTokenizer
from meltpoint.adapters.families.huggingface import files
from meltpoint.adapters.families.huggingface.configuration import read_prompts, supported_config
from meltpoint.adapters.families.huggingface.files import check_sizes, first_line, locate
from meltpoint.adapters.families.reference import EncoderReference

AGAIN = "Copy or download the whole folder again."


@cache
def check(folder: Path, word: str) -> None:
    """Refuse a folder whose model cannot be adapted; one that can is read once per process.

    Raises:
        ValueError: as `read`.
    """
    read(folder, word, "auto")  # weights in the file's dtype are memory-mapped, not copied


def read(folder: Path, word: str, dtype: torch.dtype | Literal["auto"]) -> tuple[Any, Any]:
    """Load the bare encoder, without a pooler, and its tokenizer.

    Args:
        folder: the folder of its files.
        word: the encoder's name on the command line, for messages.
        dtype: the weights' type; "auto" for the file's dtype.

    Raises:
        ValueError: it is not a text encoder, a file cannot be read, or the files do not belong together; one line.
    """
    with quiet():
        config = supported_config(folder, word)
        check_sizes(folder, word)
        tokenizer = read_tokenizer(folder, word)
        model = _read_model(config, folder, word, dtype)
    pieces, rows = max(tokenizer.get_vocab().values()) + 1, model.get_input_embeddings().weight.shape[0]
    if pieces > rows:
        raise ValueError(
            f"{word}: its tokenizer has {pieces} pieces, but its weights embed {rows}. Save the tokenizer that the "
            f"weights were trained with, or resize the embeddings (resize_token_embeddings) and save both again."
        )
    return model, tokenizer


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' load reports and progress bars; errors are raised by the callers instead."""
    log: Any = transformers.utils.logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity(log.CRITICAL)
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()


def read_tokenizer(folder: Path, word: str) -> Any:
    """Load a fast tokenizer, without running code from the folder."""
    try:
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
    except Exception as error:  # tokenizers raises a plain Exception for a damaged tokenizer.json
        models = [] if (folder / "tokenizer.json").is_file() else sorted(folder.glob("*.model"))
        if models and find_spec("sentencepiece") is None:  # transformers' own error asks for tiktoken
            raise ValueError(
                f"{word}: its tokenizer is {models[0].name}, which transformers reads with sentencepiece. "
                "pip install sentencepiece."
            ) from error
        raise ValueError(
            f"{word}: its tokenizer cannot be read ({first_line(error)}). Save it again next to the weights."
        ) from error
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(f"{word} has no fast tokenizer; save one next to the weights as tokenizer.json.")
    return tokenizer


def _read_model(config: Any, folder: Path, word: str, dtype: torch.dtype | Literal["auto"]) -> Any:
    """Load the bare encoder without a pooler; every weight must be in the file."""
    classes: Any = transformers.MODEL_MAPPING[type(config)]
    model_class = classes[0] if isinstance(classes, tuple) else classes
    takes_pooler = "add_pooling_layer" in inspect.signature(model_class).parameters
    pooler = {"add_pooling_layer": False} if takes_pooler else {}
    try:
        model, report = model_class.from_pretrained(
            folder, config=config, use_safetensors=True, dtype=dtype, local_files_only=True,
            output_loading_info=True, ignore_mismatched_sizes=True, **pooler,
        )  # fmt: skip
    except MemoryError:
        raise
    except Exception as error:  # a family's code may raise anything for an unknown value
        raise ValueError(f"{word}: its weights do not fit its config.json ({first_line(error)}). {AGAIN}") from error
    for name, in_file, expected in sorted(report["mismatched_keys"]):
        shapes = f"{name} is {tuple(in_file)} in the file but {tuple(expected)} by config.json"
        raise ValueError(f"{word}: its weights do not fit its config.json: {shapes}. {AGAIN}")
    missing = sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))
    if missing:
        lack = f"lacks {len(missing)} of the encoder's weights that its config.json names, including {missing[0]}"
        raise ValueError(f"{word} {lack}. {AGAIN}")
    unread = _without_place(model, report["unexpected_keys"])
    if unread:
        raise ValueError(
            f"{word} holds {len(unread)} weights that {model_class.__name__} does not use by its config.json, "
            f"including {unread[0]}, so its states would differ from its makers'. Save the encoder without them."
        )
    if not takes_pooler and isinstance(getattr(model, "pooler", None), nn.Module):
        model.pooler = nn.Identity()
    return model


def _without_place(model: Any, unexpected: Iterable[str]) -> list[str]:
    """The unexpected weights inside the encoder (adapters, further layers), without heads and buffers."""
    inside = {name.partition(".")[0] for name, _ in model.named_parameters()}
    buffers = {name for name, _ in model.named_buffers()}
    names = {name: name.removeprefix(f"{model.base_model_prefix}.") for name in unexpected}
    return sorted(n for n, own in names.items() if own.partition(".")[0] in inside and own not in buffers)


def load_tokenizer(reference: EncoderReference) -> PieceTokenizer:
    """The tokenizer of an encoder's folder, downloaded first if necessary; it gives no segments.

    Its longest input is also right for a configuration without `max_position_embeddings`, for which transformers has a
    default.

    Raises:
        ValueError: the files are not available, or cannot be read; one line with the remedy.
    """
    folder, _ = locate(reference)
    with quiet():
        tokenizer = read_tokenizer(folder, reference.word)
        config = supported_config(folder, reference.word)
    named = files.longest_input(folder)
    positions = int(getattr(config, "max_position_embeddings", files.UNKNOWN_LENGTH))
    longest = positions if named is None else min(named, positions)
    return PieceTokenizer(tokenizer, longest, token_types=False, prompts=read_prompts(folder, reference.prompts))
