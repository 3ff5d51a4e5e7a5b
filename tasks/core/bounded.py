"""Bounded reading of files that other people may have written: their size, and the depth and aliases of JSON and YAML.

The limits are far above what anybody writes and far below what a machine bears. Beyond one, a file is refused.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

MOST_YAML_BYTES = 2**18
"""The largest YAML file: PyYAML reads about 50 kB a second; 256 KiB hold some 1 500 blocks of a specification."""
MOST_DOCUMENT_BYTES = 2**26
"""The largest JSON document, and file of JSON lines of a ledger: 64 MiB."""
MOST_DATA_BYTES = 2**32
"""The largest file of examples: 4 GiB, five times the largest one of a task here (Yahoo's `train.csv`)."""
LONGEST_LINE = 2**20
"""The longest line of a file of examples, in characters: some 200 000 words, where an encoder reads a few hundred."""
DEEPEST = 64
"""The deepest nesting of lists and mappings; files of Meltpoint's own have 6 levels."""
MOST_VALUES = 100_000
"""The most values of a YAML document, each alias counted as all that it stands for."""

IRREGULAR = {stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
"""The names of what is neither a regular file nor a device."""

_HALF = re.compile("[\ud800-\udfff]")
HALF = "half of a pair of UTF-16 codes (\\ud800 to \\udfff), which is no character"
"""The message for a text that cannot be written as UTF-8."""

NOT_A_DOCUMENT = (ValueError, KeyError, TypeError, AttributeError, OverflowError)
"""What PyYAML raises for a value that does not fit its explicit tag (`!!timestamp x`), beside its own errors."""


def read_bytes(path: Path, most_bytes: int = MOST_DOCUMENT_BYTES) -> bytes:
    """The contents of a file.

    Raises:
        ValueError: it is no regular file, or larger than allowed.
        OSError: it cannot be read.
    """
    with regular(path).open("rb") as file:
        if os.fstat(file.fileno()).st_size <= most_bytes:
            data = file.read()
            if len(data) <= most_bytes:
                return data
    raise ValueError(f"{path} is larger than {_size(most_bytes)}, the most that is read. Divide it, or shorten it.")


def regular(path: Path) -> Path:
    """The path of a file that is about to be read, unless a pipe or a device would be waited for, or read for ever.

    Raises:
        ValueError: a folder, a pipe, a device or a socket.
        OSError: it is not there, or may not be looked at.
    """
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind != stat.S_IFREG:
        raise ValueError(f"{path} is a {IRREGULAR.get(kind, 'device')}, and no regular file. Name a file.")
    return path


def _size(size_bytes: int) -> str:
    powers = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
    unit, name = next((power for power in powers if size_bytes >= power[0]), (1, "bytes"))
    return f"{size_bytes // unit} {name}"


def parse_json(text: str | bytes, *, unique_keys: bool = False) -> Any:
    """The value of a JSON text.

    Args:
        text: the text.
        unique_keys: True to refuse an object that has a key twice.

    Raises:
        ValueError: it is no UTF-8 or no JSON, or nested too deeply; the reason in a few words, without the file.
    """
    try:
        characters = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        value = json.loads(characters, object_pairs_hook=_unique if unique_keys else None)
        is_deep = characters.count("[") + characters.count("{") > DEEPEST and _depth(value) > DEEPEST
    except RecursionError:
        is_deep = True
    except KeyError as error:
        raise ValueError(f"the key {error} is given twice") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except ValueError:  # Python converts no more than 4 300 digits
        raise ValueError("not JSON: a number has too many digits") from None
    if is_deep:
        raise ValueError(f"values are nested deeper than {DEEPEST} levels")
    if "\\u" in characters and _HALF.search(json.dumps(value, ensure_ascii=False)):
        raise ValueError(HALF)
    return value


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object of its keys and values.

    Raises:
        KeyError: a key is there twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise KeyError(next(key for key in keys if keys.count(key) > 1))
    return found


def _depth(value: object) -> int:
    """The depth of lists and mappings, level by level."""
    depth, level = 0, [value]
    while level:
        depth += 1
        inner = [one for one in level if isinstance(one, dict | list)]
        level = [child for one in inner for child in (one.values() if isinstance(one, dict) else one)]
    return depth


class TextLoader(yaml.BaseLoader):
    """A YAML loader that keeps every scalar as text (`labels: [no, yes]` are names), and refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping whose keys do not repeat."""
        seen = set[str]()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"'{key.value}' is given twice", key.start_mark)
            seen.add(key.value)
        return dict(super().construct_mapping(node, deep))


def parse_yaml(text: str, loader_class: type[yaml.SafeLoader] | type[yaml.BaseLoader]) -> object:
    """The value of a YAML text with one document.

    Raises:
        yaml.YAMLError: broken YAML, aliases that stand for too much or for themselves, or deep nesting; where it has
            a place in the text, `problem_mark` says which.
    """
    if len(text) > MOST_YAML_BYTES:
        raise yaml.YAMLError(f"it is larger than {_size(MOST_YAML_BYTES)}")
    loader = loader_class(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _weigh(node, {})
        return loader.construct_document(node)
    except RecursionError:
        raise yaml.YAMLError(f"lists or mappings are nested too deeply ({DEEPEST} levels at most)") from None
    except NOT_A_DOCUMENT as error:
        raise yaml.YAMLError(f"a value cannot be read ({' '.join(str(error).split())[:100]})") from None
    finally:
        loader.dispose()


def _weigh(node: yaml.Node, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """(values, depth) of a node, aliases followed.

    Args:
        known: the same of nodes that were weighed; (0, 0) of those that are being weighed.
    """
    if id(node) not in known:
        known[id(node)] = (0, 0)
        inner = [_weigh(child, known) for child in _children(node)]
        known[id(node)] = (1 + sum(size for size, _ in inner), 1 + max((depth for _, depth in inner), default=0))
    size, depth = known[id(node)]
    fault = "an alias stands for itself" if not size else ""
    fault = fault or (HALF if isinstance(node, yaml.ScalarNode) and _HALF.search(node.value) else "")
    fault = fault or (f"it has more than {MOST_VALUES} values, its aliases followed" if size > MOST_VALUES else "")
    fault = fault or (f"it is nested too deeply ({DEEPEST} levels at most)" if depth > DEEPEST else "")
    if fault:
        raise yaml.constructor.ConstructorError(None, None, fault, node.start_mark)
    return size, depth


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []
