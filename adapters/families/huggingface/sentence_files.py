"""The files that sentence-transformers puts beside an encoder: `modules.json`, `1_Pooling/config.json` and prompts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meltpoint.adapters.data.sentence_pooling import PoolingKind, Prompts, SentencePooling
from meltpoint.tasks.core.files import parse_json, read_bytes

MODULES, PROMPTS, CONFIG = "modules.json", "config_sentence_transformers.json", "config.json"
SENTENCE_FILES = (MODULES, PROMPTS, f"*_Pooling/{CONFIG}")
"""They decide on sentence vectors and inputs, so they are downloaded, and hashed, with the encoder."""
TRANSFORMER_CONFIGS, TOKENIZER = "sentence_*_config.json", "tokenizer_config.json"
DOWNLOADED = (TRANSFORMER_CONFIGS, "[0-9]*_*/*.json")
"""Further files that are downloaded: they are copied, or say that a folder is none that is read."""

KINDS: dict[str, PoolingKind] = {"mean": "mean", "cls": "cls", "max": "max"}
OLD_KEYS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max"}
"""Keys of sentence-transformers before version 5.3, each a boolean; since then `pooling_mode` is a word."""
READ = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
"""The modules, in their order, whose meaning is known here; what others compute is not."""
STATES = {
    "transformer_task": "feature-extraction", "module_output_name": "token_embeddings",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
}  # fmt: skip
"""What sentence-transformers 6.2 writes of a Transformer whose output is its top layer's states of a text."""
COPIED = {".json", ".txt", ".safetensors"}
"""Suffixes of a module's files; no pickles."""

_INSIDE = re.compile(r"[\w-][\w.-]*")
_POOLING = re.compile(r"[\w-]*_Pooling")
"""Where sentence-transformers saves a pooling, and `SENTENCE_FILES` finds it."""


def read_pooling(folder: Path) -> SentencePooling | None:
    """The pooling that a folder's files declare; None without such files, or where they declare anything else.

    Raises:
        ValueError: a file cannot be read; one line with the remedy.
    """
    found = _declared(folder)
    return found if isinstance(found, SentencePooling) else None


def unread_pooling(folder: Path) -> str:
    """The reason why a sentence encoder's own vectors are not read; "" where they are, and for other encoders.

    Raises:
        ValueError: a file cannot be read; one line with the remedy.
    """
    found = _declared(folder)
    return found if isinstance(found, str) else ""


def _declared(folder: Path) -> SentencePooling | str:
    """The pooling that a folder's files declare, or the reason why it is not read; "" without such files."""
    parts = _parts(folder)
    if not parts:
        return ""
    names, paths = [name for name, _ in parts], [path for _, path in parts]
    if names not in READ:
        return f"its modules are {' → '.join(names)} ({MODULES})"
    if paths[0] or not _POOLING.fullmatch(paths[1]):
        return f"its modules do not lie where the encoder does ({MODULES})"
    pooling = _read(folder / paths[1] / CONFIG, dict)
    kind = None if pooling is None else _kind(pooling)
    if kind is None:
        return f"its pooling is none of {', '.join(KINDS)} ({paths[1]}/{CONFIG})"
    written = (_read(path, dict) for path in sorted(folder.glob(TRANSFORMER_CONFIGS)))
    transformer: dict[str, Any] = next(written, {})
    other = next((key for key, value in STATES.items() if transformer.get(key, value) != value), None)
    if other is not None or transformer.get("processing_kwargs"):
        return f"it pools other states than the top layer's of a text ({other or 'processing_kwargs'})"
    if transformer.get("do_lower_case") and not (_read(folder / TOKENIZER, dict) or {}).get("do_lower_case"):
        return f"its texts are lower-cased (do_lower_case), and not by its tokenizer ({TOKENIZER})"
    longest = transformer.get("max_seq_length")
    return SentencePooling(kind, "Normalize" in names, longest if isinstance(longest, int) else None)


def _parts(folder: Path) -> list[tuple[str, str]]:
    """The class and the path of each module, in their order; classes that are not sentence-transformers' in full."""
    modules = [part for part in _read(folder / MODULES, list) or [] if isinstance(part, dict)]
    types = [str(part.get("type", "?")) for part in modules]
    names = [word.rpartition(".")[2] if word.startswith("sentence_transformers.") else word for word in types]
    return list(zip(names, (str(part.get("path", "")) for part in modules), strict=True))


def _kind(config: dict[str, Any]) -> PoolingKind | None:
    """The single pooling of a configuration; None for several, for another one, or where prompts are left out of it."""
    on = [key for key, value in config.items() if key.startswith("pooling_mode_") and value]
    old = OLD_KEYS.get(on[0]) if len(on) == 1 else None if on else "mean"  # which is also the package's default
    word = config.get("pooling_mode", old)
    word = word[0] if isinstance(word, list) and len(word) == 1 else word
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


def read_files(folder: Path) -> dict[str, bytes]:
    """The files that make a sentence encoder of a folder's encoder: path → contents, for `write_files`."""
    modules = [folder / path for _, path in _parts(folder) if _INSIDE.fullmatch(path)]
    inside = (path for module in modules for path in module.glob("*") if path.suffix in COPIED)
    files = (folder / MODULES, folder / PROMPTS, *folder.glob(TRANSFORMER_CONFIGS), *inside)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files if path.is_file()}


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files that `read_files` found beside an encoder."""
    for name, contents in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(contents)


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
