"""Seeded mutations of files: of their bytes, of their text by lines and cells, and of the trees in JSON and YAML."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

NUMBERS = (
    "0", "-0", "-1", "1", "2", "7", "255", "65536", "2147483648", "-9223372036854775809", "18446744073709551616",
    "1e308", "1e999", "-1e999", "1e-400", "NaN", "Infinity", "-Infinity", ".nan", ".inf", "0x7f", "0o17", "1_000",
    "9" * 400, "9" * 5000, "0." + "1" * 3000, "1e100000000", "1:30:45",
)  # fmt: skip
PATHS = (
    "../../x", "../../../../../../tmp/escaped", "/etc/passwd", "/tmp/escaped", "..", ".", "", "~root/x", "a/../../b",
    "..\\..\\x", "C:\\x", "\\\\host\\share", "x\x00y", "con", "%2e%2e%2fx", "file:///etc/passwd", "x" * 300, "-rf", "*",
)  # fmt: skip
TEXTS = (
    "", " ", "\t", "\r", "\n", "\x00", "\x85", "\u2028", "\ufeff", "é", "e\u0301", "\U0001f600", "null", "true", "no",
    "~",
    "<<", "{}", "[]", "'", '"', '"""', "\\", "\\ud800", "%s%n", "{0}", "$(id)", "`id`", "-DOCSTART-", "O", "I-X", "#",
    "---",
    "...", "!!python/object/apply:os.system ['touch /tmp/escaped']", "!!python/name:os.system", "&a [*a]", "*missing",
    "!!binary gA==", "!!timestamp 2026-01-01", "? [a, b] : c", "| ", "> ", "%YAML 9.9", "%TAG ! x",
)  # fmt: skip
BYTES = (
    b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff\x00", b"\x00" * 9, b"\x80", b"\xc0\xaf", b"\xed\xa0\x80",
    b"\xf5\x80\x80\x80",
    b"\r\n", b"\r", b"\x1a", b"\x7f", b"\xff" * 8, b"\x80\x04\x95", b"PK\x03\x04", b"\x1f\x8b\x08", b"PAR1",
)  # fmt: skip


def bomb(levels: int = 9, width: int = 9) -> str:
    """A YAML document whose aliases stand for `width ** levels` values ("billion laughs")."""
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


def nested(rng: random.Random) -> str:
    """Brackets, very deep."""
    depth = rng.choice((50, 300, 1500, 20_000, 200_000))
    opened, closed = rng.choice((("[", "]"), ('{"a":', "}"), ("{a: ", "}"), ("- ", ""), ("(", ")")))
    return opened * depth + "1" + (closed * depth if rng.random() < 0.7 else "")


def odd_text(rng: random.Random) -> str:
    """A text that readers may stumble over."""
    draw = rng.random()
    if draw < 0.02:
        return nested(rng)
    if draw < 0.03:
        return bomb()
    if draw < 0.04:
        return rng.choice(("x", "x ", "1,", "\t", '"', "ä")) * rng.choice((1000, 70_000, 2_000_000))
    return rng.choice(rng.choice((NUMBERS, PATHS, TEXTS)))


def odd_value(rng: random.Random) -> Any:
    """A value of another kind for a tree of JSON."""
    draw = rng.random()
    if draw < 0.05:
        value: Any = 1
        for _ in range(rng.choice((3, 40, 220, 900))):
            value = [value] if rng.random() < 0.5 else {"a": value}
        return value
    if draw < 0.5:
        return odd_text(rng)
    return rng.choice((
        None, True, False, 0, -1, 1.5, 10**30, -(10**400), float("nan"), float("inf"), -float("inf"), 1e-320, [], {},
        [[]],
        [None], {"": None}, [1, "a", None], "\ud800", {"a": {"b": []}}, list(range(300)), 2**63, 1e308,
    ))  # fmt: skip


# Bytes.


def mutate_bytes(rng: random.Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    """A few changes to a file's bytes."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        data = rng.choice(_BYTE_MUTATIONS)(rng, data, pool)
    return data


def _flip(rng: random.Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    if not data:
        return data
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 4, 32))):
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _cut(rng: random.Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _drop(rng: random.Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    start, end = _piece(rng, data)
    return data[:start] + data[end:]


def _repeat(rng: random.Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    start, end = _piece(rng, data)
    return data[:end] + data[start:end] * rng.choice((1, 2, 50)) + data[end:]


def _splice(rng: random.Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    other = rng.choice(pool)
    start, end = _piece(rng, other)
    at = rng.randrange(len(data) + 1)
    return data[:at] + other[start:end] + data[at + rng.choice((0, end - start)) :]


def _insert(rng: random.Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    at = rng.choice((0, len(data), rng.randrange(len(data) + 1)))
    new = rng.choice(BYTES) if rng.random() < 0.4 else odd_text(rng).encode("utf-8", "surrogatepass")
    return data[:at] + new + data[at:]


def _other_encoding(rng: random.Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    text = data.decode("utf-8", "replace")
    return text.encode(rng.choice(("utf-16", "utf-32", "latin-1", "utf-8-sig", "utf-7", "cp1252")), "replace")


def _number(rng: random.Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    places = [place for place, byte in enumerate(data) if 48 <= byte <= 57]
    if not places:
        return data
    start = end = rng.choice(places)
    while end < len(data) and 48 <= data[end] <= 57:
        end += 1
    return data[:start] + rng.choice(NUMBERS).encode() + data[end:]


def _piece(rng: random.Random, data: bytes) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.choice((1, 4, 16, 200)))


_BYTE_MUTATIONS: tuple[Callable[[random.Random, bytes, Sequence[bytes]], bytes], ...] = (
    _flip, _flip, _cut, _drop, _repeat, _splice, _insert, _insert, _number, _other_encoding,
)  # fmt: skip


# Lines and cells.


def mutate_table(rng: random.Random, data: bytes, separator: str) -> bytes:
    """A few changes to the lines and cells of a table."""
    lines = data.decode("utf-8").split("\n")
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(lines))
        cells = lines[at].split(separator)
        draw, cell = rng.randrange(7), rng.randrange(len(cells))
        if draw == 0:
            cells[cell] = odd_text(rng)
        elif draw == 1:
            cells.insert(cell, cells[cell])
        elif draw == 2:
            del cells[cell]
        elif draw == 3:
            cells[cell] = rng.choice((f'"{cells[cell]}', f'"{cells[cell]}"', cells[cell] * 50))
        elif draw == 4:
            rng.shuffle(lines)
            continue
        elif draw == 5:
            lines.insert(at, "")
            continue
        else:
            lines[at:at] = lines[at : at + 3]
            continue
        lines[at] = separator.join(cells)
    return "\n".join(lines).encode("utf-8", "surrogatepass")


# Trees.


def mutate_tree(rng: random.Random, tree: Any) -> Any:
    """A few changes to the nodes of a tree of mappings and lists."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = list(_places(tree))
        if not places:
            return odd_value(rng)
        parent, key = rng.choice(places)
        _change(rng, parent, key, places)
    return tree


DEEPEST = 100
"""Nodes below it are left as they are: an odd value may be nested more deeply than Python can call."""


def _places(tree: Any, depth: int = 0) -> Any:
    """Every (mapping or list, key or position) of a tree, down to `DEEPEST`."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in list(items):
        yield tree, key
        if depth < DEEPEST:
            yield from _places(value, depth + 1)


def _change(rng: random.Random, parent: Any, key: Any, places: Sequence[Any]) -> None:
    draw = rng.randrange(6)
    if draw == 0:
        del parent[key]
    elif draw == 1 and isinstance(parent, dict):
        parent[rng.choice(("extra", str(odd_text(rng))[:400]))] = parent.pop(key)
    elif draw == 2:
        other, place = rng.choice(places)
        try:
            parent[key] = copy.deepcopy(other[place])
        except RecursionError:
            parent[key] = odd_value(rng)
    elif draw == 3 and isinstance(parent[key], list):
        parent[key] = parent[key] * rng.choice((2, 30))
    elif draw == 4 and isinstance(parent[key], str):
        parent[key] = rng.choice((parent[key] + odd_text(rng)[:5000], rng.choice(PATHS), parent[key][:-1]))
    else:
        parent[key] = odd_value(rng)


def as_json(rng: random.Random, tree: Any) -> bytes:
    """A tree as JSON, which may have NaN, or keys twice."""
    try:
        text = json.dumps(tree, ensure_ascii=rng.random() < 0.5)
    except RecursionError:
        text = nested(rng)
    return text.encode("utf-8", "surrogatepass")


def with_header(rng: random.Random, header: bytes, data: bytes) -> bytes:
    """A safetensors file of a header and data; its length may be a lie."""
    length = len(header) if rng.random() < 0.8 else rng.choice((0, 1, len(header) * 2, 2**40, 2**63, 2**64 - 1))
    return struct.pack("<Q", length) + header + (data if rng.random() < 0.8 else data[: rng.randrange(len(data) + 1)])
