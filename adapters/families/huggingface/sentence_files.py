"""The files that sentence-transformers puts beside an encoder: `modules.json`, `1_Pooling/config.json` and prompts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from meltpoint.adapters.data.sentence_pooling import PoolingKind, Prompts, SentencePooling
from meltpoint.tasks.core.bounded import parse_json, read_bytes

MODULES, PROMPTS, CONFIG = "modules.json", "config_sentence_transformers.json", "config.json"
SENTENCE_FILES = (MODULES, PROMPTS, f"*_Pooling/{CONFIG}")
"""They decide on sentence vectors and inputs, so they are downloaded, and hashed, with the encoder."""

KINDS: dict[str, PoolingKind] = {"mean": "mean", "cls": "cls", "max": "max"}
OLD_KEYS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max"}
"""Keys of sentence-transformers before version 5.3, each a boolean; since then `pooling_mode` is a word."""

_INSIDE = re.compile(r"[\w-][\w.-]*")


def read_pooling(folder: Path) -> SentencePooling | None:
    """The pooling that a folder's files declare; None without such files, or where it is none of `KINDS`.

    Raises:
        ValueError: a file cannot be read; one line with the remedy.
    """
    modules = _read(folder / MODULES, list)
    parts = [part for part in modules or [] if isinstance(part, dict)]
    named = {str(part.get("type", "")).rpartition(".")[2]: str(part.get("path", "")) for part in parts}
    if not _INSIDE.fullmatch(named.get("Pooling", "")):
        return None
    kind = _kind(_read(folder / named["Pooling"] / CONFIG, dict) or {})
    return None if kind is None else SentencePooling(kind, normalise="Normalize" in named)


def _kind(config: dict[str, Any]) -> PoolingKind | None:
    """The single pooling of a configuration; None for several, for another one, or where prompts are left out of it."""
    on = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    word = OLD_KEYS.get(on[0]) if len(on) == 1 else config.get("pooling_mode")
    return KINDS.get(word) if isinstance(word, str) and config.get("include_prompt", True) is not False else None


def read_prompts(folder: Path) -> Prompts:
    """The prompts that a folder's files declare.

    Raises:
        ValueError: the file cannot be read; one line with the remedy.
    """
    config = _read(folder / PROMPTS, dict) or {}
    prompts, default = config.get("prompts"), config.get("default_prompt_name")
    texts = prompts.items() if isinstance(prompts, dict) else ()
    named = tuple((name, text) for name, text in texts if isinstance(text, str))
    return Prompts(named, default if isinstance(default, str) else "")


def write(folder: Path, pooling: SentencePooling | None, prompts: Prompts) -> None:
    """Write the files of an encoder that has a pooling or prompts, so that both packages read them back."""
    if pooling is not None:
        classes = ["Transformer", "Pooling", *(["Normalize"] if pooling.normalise else [])]
        parts = [
            {"idx": number, "name": str(number), "path": f"{number}_{name}" if number else "",
             "type": f"sentence_transformers.models.{name}"}
            for number, name in enumerate(classes)
        ]  # fmt: skip
        _write(folder / MODULES, parts)
        _write(folder / "1_Pooling" / CONFIG, _config(folder, pooling))
    if prompts.named:
        _write(folder / PROMPTS, {"prompts": dict(prompts.named), "default_prompt_name": prompts.default or None})


def _config(folder: Path, pooling: SentencePooling) -> dict[str, object]:
    """A pooling's configuration with the older keys, which every version reads."""
    encoder = _read(folder / CONFIG, dict) or {}
    size = next((encoder[key] for key in ("hidden_size", "dim", "d_model") if key in encoder), None)
    return {"word_embedding_dimension": size, **{key: kind == pooling.kind for key, kind in OLD_KEYS.items()}}


def _write(path: Path, value: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _read(path: Path, kind: type[Any]) -> Any:
    """A file's JSON value; None if there is no file.

    Raises:
        ValueError: it is no JSON, or a value of another kind; one line with the remedy.
    """
    if not path.is_file():
        return None
    try:
        value = parse_json(read_bytes(path))
    except ValueError as error:
        raise ValueError(f"{path} cannot be read ({error}); copy or download the encoder again.") from None
    if not isinstance(value, kind):
        raise ValueError(f"{path} is no file of sentence-transformers; copy or download the encoder again.")
    return value
