"""The licence of a Hugging Face encoder, as the front matter of the model card in its folder states it."""

from __future__ import annotations

from pathlib import Path

import yaml

from meltpoint.tasks.core.files import parse_yaml, read_bytes

CARD = "README.md"
LONGEST = 100
"""Characters of a licence that are kept; identifiers of the hub have at most 30."""


def licence_of(folder: Path) -> str | None:
    """The licence in a folder's `README.md`: an identifier of the hub (`apache-2.0`), on one line; None for none."""
    try:
        front = parse_yaml(_front_matter(read_bytes(folder / CARD).decode()), yaml.BaseLoader)
    except (OSError, ValueError, yaml.YAMLError):
        return None
    stated = front.get("license") if isinstance(front, dict) else None
    return " ".join(stated.replace("`", "'").split())[:LONGEST] or None if isinstance(stated, str) else None


def _front_matter(text: str) -> str:
    """The YAML between the first two lines of three hyphens; empty where a text does not begin with such a line."""
    lines = text.lstrip("\ufeff").splitlines()
    if not lines or lines[0].strip() != "---":
        return ""
    ends = [number for number, line in enumerate(lines) if number and line.strip() == "---"]
    return "\n".join(lines[1 : ends[0]]) if ends else ""
