"""The published schemas of the documents that commands print with --json."""

from __future__ import annotations

import json
from pathlib import Path

from jsonschema import Draft202012Validator

FILE = Path(__file__).parents[1] / "docs" / "outputs.schema.json"


def assert_published(command: str, document: object) -> None:
    """Assert that a document follows its command's schema, in which every field of an object has to be described."""
    schema = json.loads(FILE.read_text(encoding="utf-8"))
    close(schema["$defs"])
    Draft202012Validator({**schema, "$ref": f"#/$defs/{command.replace(' ', '%20')}"}).validate(document)


def close(part: object) -> None:
    """Refuse further fields in each object whose fields are described."""
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        close(inner)
    if isinstance(part, dict) and isinstance(part.get("properties"), dict) and part.get("type") == "object":
        part.setdefault("additionalProperties", False)
