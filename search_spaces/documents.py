"""Reading and writing YAML without its surprises: numbers are numbers, keys are unique, mistakes have a line."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

SHIPPED = Path(__file__).resolve().parent
"""Where the shipped documents are."""

NULL = re.compile(r"^(?:~|null|)$")
BOOL = re.compile(r"^(?:true|false|True|False)$")
INT = re.compile(r"^[-+]?(?:0|[1-9][0-9]*)$")
DIGITS_ONLY = re.compile(r"^[-+]?[0-9]+$")
FLOAT = re.compile(
    r"^(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.inf|\.nan)$"
)
DIGITS = list("-+.0123456789")


class Reader(yaml.SafeLoader):
    """YAML as people expect it.

    YAML 1.1 reads `1e-5` as a word, `010` as eight, `1:30` as ninety and `no` as false; here only the first is a
    number, and the others stay words that the parameter then refuses.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own shape)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        """A mapping whose keys are words, each given once."""
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"'{key.value}' is given twice", key.start_mark)
            seen.add(key.value)
        return dict(super().construct_mapping(node, deep))


class Writer(yaml.SafeDumper):
    """Quotes every word that `Reader` or a YAML 1.1 reader elsewhere would take for something else."""

    def ignore_aliases(self, data: object) -> bool:
        """Write every value where it belongs, never as a reference to another."""
        return True


def quoted(writer: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """A word; Unicode's own line breaks are escaped, which PyYAML would write bare and read back as spaces."""
    breaks = set(text) & set("\x85\u2028\u2029")
    return writer.represent_scalar("tag:yaml.org,2002:str", text, style='"' if breaks else None)


class Flow(dict[str, object]):
    """A mapping that is written on one line."""


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
    """The value of a YAML text.

    Args:
        text: one document.
        where: the file, or the option of the command line, for messages.

    Raises:
        ValueError: broken YAML, a key given twice, or a key that is not a word; one line with `where` and the line.
    """
    try:
        return yaml.load(text, Loader=Reader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        tabs = " (indent with spaces, not tabs)" if "\\t" in str(error.problem) else ""
        raise ValueError(f"{where}{line}: not valid YAML: {error.problem or error.context}{tabs}.") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{where}: not valid YAML: {' '.join(str(error).split())}.") from None
    except RecursionError:
        raise ValueError(f"{where}: lists or mappings lie too deep inside each other; write a few levels.") from None


NO_SPACE = "holds no space; write `parameters:` and one line for each parameter"


def read(path: Path, empty: str = NO_SPACE) -> dict[str, object]:
    """The mapping that a YAML file holds.

    Args:
        path: the file.
        empty: what to say where it holds no mapping.

    Raises:
        ValueError: the file is missing, is not UTF-8, is empty, or holds no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8.") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); name a file that can.") from None
    data = parse(text, str(path))
    if not isinstance(data, dict):
        raise ValueError(f"{path}: {empty}.")
    return data


def write(data: object) -> str:
    """A value as YAML that `parse` reads back to the same value."""
    return yaml.dump(data, Dumper=Writer, sort_keys=False, allow_unicode=True, width=10_000)
