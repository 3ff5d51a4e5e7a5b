"""Safe reading of files that other people may have written: paths, size limits, JSON, YAML, compressed data.

The limits are far above ordinary files and far below a machine's memory; a file beyond one, packed or unpacked, is
refused with one line.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import json
import lzma
import math
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import yaml

from meltpoint.tasks.core.wording import some

NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}


def exists(path: Path) -> bool:
    """True if the file or folder exists; also False for a name that is longer than the system allows."""
    return _mode(path) is not None


def is_file(path: Path) -> bool:
    """True if the path is a file; False in the same cases as `exists`."""
    return stat.S_ISREG(_mode(path) or 0)


def is_folder(path: Path) -> bool:
    """True if the path is a folder; False in the same cases as `exists`."""
    return stat.S_ISDIR(_mode(path) or 0)


def _mode(path: Path) -> int | None:
    """The mode of a file or folder, links followed; None if it does not exist or the name is impossible.

    Raises:
        OSError: access is denied, or the disk fails.
    """
    try:
        return path.stat().st_mode
    except ValueError:  # a null character in a name
        return None
    except OSError as error:
        if error.errno not in NOT_THERE:
            raise
        return None


def expanded(text: str) -> Path:
    """The path that a text names, with `~` expanded; unchanged if the home folder is unknown."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 (`Path.expanduser` fails without a home folder)


def matching(folder: Path, pattern: str) -> list[Path]:
    """The files below a folder whose names match a pattern with `*` (`**` for any folders), sorted by name."""
    place = Path(pattern)
    root = Path(place.anchor) if place.is_absolute() else folder
    inside = pattern[len(place.anchor) :] if place.is_absolute() else pattern
    try:
        return sorted(path for path in root.glob(inside) if is_file(path))
    except (ValueError, NotImplementedError):  # `a**`, or a null character
        return []


MOST_YAML_BYTES = 2**18
"""The largest YAML file: PyYAML reads about 50 kB a second; 256 KiB hold some 1 500 blocks of a specification."""
MOST_DOCUMENT_BYTES = 2**26
"""The largest JSON document, and the largest JSON-lines file of a ledger: 64 MiB."""
MOST_DATA_BYTES = 2**32
"""The largest file of examples: 4 GiB, five times the largest file of a built-in task (Yahoo's `train.csv`)."""
MOST_VALUES = 100_000
"""The largest number of values in a YAML document, with every alias expanded."""

SCHEMAS = "https://raw.githubusercontent.com/meltpoint/meltpoint/main/search_spaces/schemas"
"""The address of the schemas of users' YAML files (`search_spaces/schemas/`)."""

IRREGULAR = {stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
"""Names for files that are neither regular nor a device."""

_HALF = re.compile("[\ud800-\udfff]")

NOT_A_DOCUMENT = (ValueError, KeyError, TypeError, AttributeError, OverflowError)
"""Errors that PyYAML raises for a value that does not fit its explicit tag (`!!timestamp x`), besides its own."""


def read_bytes(path: Path, most_bytes: int = MOST_DOCUMENT_BYTES) -> bytes:
    """The contents of a file.

    Raises:
        ValueError: it is not a regular file, or is larger than allowed.
        OSError: it cannot be read.
    """
    with regular(path).open("rb") as file:
        if os.fstat(file.fileno()).st_size <= most_bytes:
            data = file.read()
            if len(data) <= most_bytes:
                return data
    raise ValueError(f"{path} is larger than {most_bytes // 1024} KiB, the limit. Split it or shorten it.")


def regular(path: Path) -> Path:
    """The path of a file that is about to be read; a pipe or a device, which may never end, is refused.

    Raises:
        ValueError: a folder, a pipe, a device or a socket.
        OSError: it is missing, or access is denied.
    """
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind != stat.S_IFREG:
        raise ValueError(f"{path} is a {IRREGULAR.get(kind, 'device')}, not a regular file. Name a file.")
    return path


def parse_json(text: str | bytes, *, unique_keys: bool = False) -> Any:
    """The value of a JSON text.

    Args:
        text: the text.
        unique_keys: True to refuse an object that has a key twice.

    Raises:
        ValueError: it is not UTF-8, not JSON, or nested too deeply; the message does not name the file.
    """
    try:
        characters = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        value = json.loads(characters, object_pairs_hook=_unique if unique_keys else None)
    except RecursionError:
        raise ValueError("values are nested too deeply") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from None
    except ValueError as error:  # also for numbers of more than 4 300 digits
        raise ValueError(f"not JSON: {error}") from None
    if "\\u" in characters and _HALF.search(json.dumps(value, ensure_ascii=False)):
        raise ValueError("half of a UTF-16 surrogate pair (\\ud800 to \\udfff), not a character")
    return value


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key '{next(key for key in keys if keys.count(key) > 1)}' is given twice")
    return found


def schema_line(kind: str) -> str:
    """The first line of a YAML file that Meltpoint writes: it names the schema by which editors check the file.

    Args:
        kind: `task`, `specification` or `space`.
    """
    return f"# yaml-language-server: $schema={SCHEMAS}/{kind}.schema.json"


def check_keys(node: yaml.MappingNode) -> None:
    """Refuse a mapping with a key twice, or with one that is no string.

    Raises:
        yaml.YAMLError: with the position of the key.
    """
    seen: set[str] = set()
    for key, _ in node.value:
        fault = "a key must be a string" if key.tag != "tag:yaml.org,2002:str" else ""
        fault = fault or (f"'{key.value}' is given twice" if key.value in seen else "")
        if fault:
            raise yaml.constructor.ConstructorError(None, None, fault, key.start_mark)
        seen.add(key.value)


class TextLoader(yaml.BaseLoader):
    """A YAML loader that keeps every scalar as text (`labels: [no, yes]` are names) and refuses duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping of a node, without duplicate keys."""
        check_keys(node)
        return dict(super().construct_mapping(node, deep))


def parse_yaml(text: str, loader_class: type[yaml.SafeLoader] | type[yaml.BaseLoader]) -> object:
    """The value of a YAML text with one document.

    Raises:
        yaml.YAMLError: broken YAML, aliases that expand too far or contain themselves, or deep nesting; `problem_mark`
            gives the position, if there is one.
    """
    if len(text) > MOST_YAML_BYTES:
        raise yaml.YAMLError(f"it is larger than {MOST_YAML_BYTES // 1024} KiB")
    loader = loader_class(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _values(node, {}) > MOST_VALUES:
            raise yaml.YAMLError(f"an alias contains itself, or it has more than {MOST_VALUES} values with its aliases")
        return loader.construct_document(node)
    except RecursionError:
        raise yaml.YAMLError("lists or mappings are nested too deeply") from None
    except NOT_A_DOCUMENT as error:
        raise yaml.YAMLError(f"a value cannot be read ({' '.join(str(error).split())[:100]})") from None
    finally:
        loader.dispose()


def _values(node: yaml.Node, known: dict[int, float]) -> float:
    """The number of values of a node, aliases followed; infinite if an alias contains itself."""
    if id(node) not in known:
        known[id(node)] = math.inf
        known[id(node)] = 1 + sum(_values(child, known) for child in _children(node))
    return known[id(node)]


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


DAMAGED = (EOFError, OSError, lzma.LZMAError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError)
"""Errors of the standard library for a file that is damaged, encrypted, or packed by an unknown method."""

OPENERS: Mapping[str, Callable[[Path], Any]] = {".gz": gzip.GzipFile, ".bz2": bz2.BZ2File, ".xz": lzma.LZMAFile}
"""Suffix → the class that reads such a file; `.zip` is read by `_only_member`."""
SUFFIXES = (*OPENERS, ".zip")


def is_compressed(path: Path) -> bool:
    """True if a file's name has a suffix of compressed files."""
    return path.suffix.lower() in SUFFIXES


def without_suffix(path: Path) -> Path:
    """The path without the suffix of a compressed file (`train.csv` for `train.csv.gz`); other paths unchanged."""
    return path.with_suffix("") if is_compressed(path) else path


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The contents of a file, unpacked if its suffix is one of compressed files.

    Raises:
        ValueError: it is damaged, or an archive of several files.
        OSError: it cannot be opened.
    """
    with regular(path).open("rb") as file:
        if not is_compressed(path):
            yield file
            return
    try:
        if path.suffix.lower() == ".zip":
            with zipfile.ZipFile(path) as archive, archive.open(_only_member(path, archive)) as file:
                yield file
        else:
            with OPENERS[path.suffix.lower()](path) as file:
                yield file
    except DAMAGED as error:
        raise ValueError(f"{path} cannot be unpacked ({error}). Replace it with the complete file.") from None


def _only_member(path: Path, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    members = [one for one in archive.infolist() if not one.is_dir() and not one.filename.startswith("__MACOSX/")]
    if len(members) != 1:
        names = ", ".join(member.filename for member in members[:5])
        raise ValueError(
            f"{path} holds {some(len(members), 'file')} ({names}), but only one is read. Unpack it, and name one file."
        )
    return members[0]
