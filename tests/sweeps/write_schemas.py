"""JSON schemas of task files, specification files and space files, with which editors complete and check them.

`python -m meltpoint.tests.sweeps.write_schemas` writes them to `search_spaces/schemas/`. A schema accepts all that
the reader of its files accepts, and more: rules between keys are the reader's. An editor reads `no` or `3` in a task
file as another type than the text that Meltpoint reads, so texts of task files may have any plain type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel

from meltpoint.adapters import modes, settings
from meltpoint.adapters.hyperparameters import Parameter
from meltpoint.search_spaces.build import STOPPING
from meltpoint.search_spaces.documents import SHIPPED
from meltpoint.search_spaces.files import CELL, TOP
from meltpoint.search_spaces.ranges import EXTRAS, RANGE_KINDS
from meltpoint.sweeps.specification.spec_files import SpecFile
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.carving import KEYS
from meltpoint.tasks.core.files import SCHEMAS
from meltpoint.tasks.core.user_layout import WANTED
from meltpoint.tasks.core.user_task import UserTask

FOLDER = SHIPPED / "schemas"
Schema = dict[str, Any]

SCALAR: Schema = {"type": ["string", "number", "boolean", "null"]}
TYPES: Mapping[type, str] = {bool: "boolean", int: "integer", float: "number"}


def task() -> Schema:
    """The schema of task files."""
    schema = _of_model(UserTask, _as_text)
    cut = {"anyOf": [{"type": "string"}, _closed(dict.fromkeys(KEYS, SCALAR))]}
    named = {"anyOf": [{"type": "array", "items": SCALAR}, {"type": "object", "additionalProperties": SCALAR}]}
    own: dict[str, Schema] = {"kind": {"enum": list(kinds.names())}, "labels": named, "dev_from": cut, "test_from": cut}
    properties: dict[str, Schema] = schema["properties"]
    described = {name: {"description": WANTED[name]} | own.get(name, of) for name, of in properties.items()}
    return {**schema, "properties": described}


def specification() -> Schema:
    """The schema of specification files; one with a `base` has its blocks from there."""
    schema = _of_model(SpecFile)
    schema["required"].remove("blocks")
    return {**schema, "anyOf": [{"required": ["blocks"]}, {"required": ["base"]}]}


def space() -> Schema:
    """The schema of space files and exported settings."""
    listed = {"type": "array", "items": SCALAR, "minItems": 1}
    ends = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
    when = {"type": ["object", "null"], "additionalProperties": {"anyOf": [SCALAR, listed]}}
    own = {
        "fixed": SCALAR, "choice": listed, "first": SCALAR, "grid": listed, "source": {"type": "string"}, "when": when,
    }  # fmt: skip
    entry = _closed({key: own.get(key, ends) for key in (*RANGE_KINDS, *EXTRAS)})
    entry["oneOf"] = [{"required": [kind]} for kind in RANGE_KINDS]
    parameters = _closed({one.name: _parameter(one) for one in settings.all_parameters()}, "null")
    stopping = _closed({key: _value(one) for key, one in STOPPING.items()}, "null")
    section = {"parameters": {"$ref": "#/$defs/parameters"}, "early_stopping": {"$ref": "#/$defs/early_stopping"}}
    by_mode = _closed({mode: _closed(section, "null") for mode in modes.names()}, "null")
    cell: dict[str, Schema] = {key: {"type": ["string", "null"]} for key in CELL}
    top = {**cell, **section, "modes": by_mode, "provenance": {"type": ["object", "null"]}}
    assert set(top) == set(TOP)
    return _closed(top) | {"$defs": {"range": entry, "parameters": parameters, "early_stopping": stopping}}


def _parameter(parameter: Parameter) -> Schema:
    """An entry of a space: a value, a range, or null to leave the parameter out."""
    ways = [_value(parameter), {"type": "null"}, {"$ref": "#/$defs/range"}]
    return {"description": f"{parameter.help}; {parameter.domain()}", "anyOf": ways}


def _value(parameter: Parameter) -> Schema:
    """The values that a parameter takes (`Parameter.check`)."""
    if isinstance(parameter.default, str):
        return {"enum": list(parameter.choices)}
    ends = {"minimum": parameter.minimum, "maximum": parameter.maximum}
    return {"type": TYPES[type(parameter.default)], **{key: end for key, end in ends.items() if math.isfinite(end)}}


def _closed(properties: Mapping[str, Schema], or_type: str = "") -> Schema:
    """A mapping with these keys only."""
    kind = ["object", or_type] if or_type else "object"
    return {"type": kind, "properties": dict(properties), "additionalProperties": False}


def _of_model(model: type[BaseModel], change: Callable[[Schema], Schema] = lambda node: node) -> Schema:
    """The schema of a model whose lists of texts may also be a single text.

    Args:
        change: applied to each part that has a type.
    """

    def laxer(node: Any) -> Any:
        if isinstance(node, list):
            return [laxer(one) for one in node]
        if not isinstance(node, dict):
            return node
        made = {key: laxer(value) for key, value in node.items() if key not in ("title", "default")}
        if isinstance(node.get("description"), str):
            made["description"] = " ".join(node["description"].partition("\n\n")[0].split())
        if "patternProperties" in node:
            made["additionalProperties"] = False
        if node.get("type") == "array" and made.pop("minLength", None):  # pydantic's name for the length of a list
            made.pop("maxLength", None)
            return {"anyOf": [made["items"], made]}
        return change(made) if isinstance(node.get("type"), str) else made

    schema: Schema = laxer(model.model_json_schema())
    return schema


def _as_text(node: Schema) -> Schema:
    """A text, number or switch of a task file in the types that an editor may read."""
    if node["type"] in ("array", "object", "null") or "enum" in node:
        return node
    return {key: value for key, value in node.items() if key not in ("minLength", "maxLength")} | SCALAR


def texts() -> dict[str, str]:
    """File name → its text, of all schemas."""
    found = {}
    for make in (task, specification, space):
        name = f"{make.__name__}.schema.json"
        head = {"$schema": "http://json-schema.org/draft-07/schema#", "$id": f"{SCHEMAS}/{name}"}
        found[name] = json.dumps({**head, **make()}, indent=1, ensure_ascii=False) + "\n"
    return found


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
