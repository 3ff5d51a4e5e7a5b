"""An encoder's folder on which transformers runs no classifier.

`pipeline("text-classification", FOLDER)` on the folder of a bare encoder puts a new, random classifier on it and
answers with confident labels; only a table of missing weights says so. A configuration with no labels leaves that
classifier without outputs, so that the pipeline fails. `AutoModel` reads the folder as before, and whoever passes
`num_labels` to train a classifier of their own gets one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from meltpoint.adapters.files import write_atomically
from meltpoint.tasks.core.files import parse_json, read_bytes

CONFIG = "config.json"
NO_LABELS: dict[str, Any] = {"id2label": {}, "label2id": {}}


def leave_without_labels(folder: Path) -> None:
    """Take every label out of an encoder's configuration."""
    config = parse_json(read_bytes(folder / CONFIG))
    assert isinstance(config, dict), "transformers has just written it"
    config.pop("problem_type", None)
    write_atomically(folder / CONFIG, json.dumps({**config, **NO_LABELS}, indent=2) + "\n")
