"""Reading and writing strict YAML: unambiguous numbers, unique keys, and errors with line numbers."""

from __future__ import annotations

import re
from copy import deepcopy
from functools import lru_cache
from pathlib import Path

import yaml

from meltpoint.tasks.core.files import MOST_YAML_BYTES, check_keys, parse_yaml, read_bytes

SHIPPED = Path(__file__).resolve().parent
"""The folder of the shipped space files."""

NULL = re.compile(r"^(?:~|null|)$")
BOOL = re.compile(r"^(?:true|false|True|False)$")
INT = re.compile(r"^[-+]?(?:0|[1-9][0-9]*)$")
DIGITS_ONLY = re.compile(r"^[-+]?[0-9]+$")
FLOAT = re.compile(
    r"^(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.inf|\.nan)$"
)
DIGITS = list("-+.0123456789")


class Reader(yaml.SafeLoader):
    """A safe YAML loader without the ambiguities of YAML 1.1.

    YAML 1.1 reads `1e-5` as a string, `010` as 8, `1:30` as 90 and `no` as false. Here only the first is a number;
    the others stay strings, which the parameter then refuses.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (the type in PyYAML)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        """A mapping whose keys are strings without repeats."""
        check_keys(node)
        return dict(super().construct_mapping(node, deep))


class Writer(yaml.SafeDumper):
    """A YAML dumper that quotes every string which `Reader` or a YAML 1.1 loader would read as another type."""

    def ignore_aliases(self, data: object) -> bool:
        """Never write a value as a reference to another."""
        return True


def quoted(writer: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Represent a string; Unicode line breaks are escaped, since PyYAML would read them back as spaces."""
    breaks = set(text) & set("\x85\u2028\u2029")
    return writer.represent_scalar("tag:yaml.org,2002:str", text, style='"' if breaks else None)


class Flow(dict[str, object]):
    """A mapping that is written in flow style, on one line."""


for _tag, _pattern, _starts in (
    ("null", NULL, ["~", "n", ""]),
    ("bool", BOOL, list("tfTF")),
    ("int", INT, DIGITS),
    ("float", FLOAT, DIGITS),
):
    Reader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _pattern, _starts)
Writer.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, DIGITS)
Writer.add_implicit_resolver("tag:yaml.org,2002:int", DIGITS_ONLY, DIGITS)
Writer.add_representer(str, quoted)
Writer.add_representer(
    Flow, lambda writer, data: writer.represent_mapping("tag:yaml.org,2002:map", data, flow_style=True)
)


def parse(text: str, where: str) -> object:
    """Parse a YAML text.

    Args:
        text: one document.
        where: the file or the command-line option, for messages.

    Raises:
        ValueError: broken YAML, a repeated key, or a key that is not a string; one line with `where` and the line.
    """
    try:
        return deepcopy(_value(text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        tabs = " (indent with spaces, not tabs)" if "\\t" in str(error.problem) else ""
        raise ValueError(f"{where}{line}: not valid YAML: {error.problem or error.context}{tabs}.") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{where}: not valid YAML: {' '.join(str(error).split())}.") from None


@lru_cache(maxsize=32)
def _value(text: str) -> object:
    """The cached value of a YAML text; every cell of a sweep reads its space files again."""
    return parse_yaml(text, Reader)


NO_SPACE = "holds no search space; write `parameters:` and one line for each parameter"


def read(path: Path, empty: str = NO_SPACE) -> dict[str, object]:
    """Read the mapping in a YAML file.

    Args:
        path: the file.
        empty: the message if the file has no mapping.

    Raises:
        ValueError: the file is missing, is not UTF-8, is empty, or has no mapping.
    """
    try:
        text = read_bytes(path, MOST_YAML_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8.") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); name a readable file.") from None
    data = parse(text, str(path))
    if not isinstance(data, dict):
        raise ValueError(f"{path}: {empty}.")
    return data


def write(data: object) -> str:
    """Write a value as YAML that `parse` reads back unchanged."""
    return yaml.dump(data, Dumper=Writer, sort_keys=False, allow_unicode=True, width=10_000)
