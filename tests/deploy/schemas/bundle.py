"""The files of this folder, written from what they are taken from: `python bundle.py SITE_PACKAGES` (README.md)."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KUBERNETES = "v1.37.0"
KINDS = {
    "PodTemplateSpec": "io.k8s.api.core.v1.PodTemplateSpec",
    "v1/ConfigMap": "io.k8s.api.core.v1.ConfigMap",
    "v1/Namespace": "io.k8s.api.core.v1.Namespace",
    "v1/PersistentVolumeClaim": "io.k8s.api.core.v1.PersistentVolumeClaim",
    "v1/ServiceAccount": "io.k8s.api.core.v1.ServiceAccount",
    "networking.k8s.io/v1/NetworkPolicy": "io.k8s.api.networking.v1.NetworkPolicy",
}
PREFIX = "/api/_definitions.json#/$defs/"


def without_texts(schema: Any) -> Any:
    """A schema without its descriptions, its references pointing into one file."""
    if isinstance(schema, list):
        return [without_texts(one) for one in schema]
    if not isinstance(schema, dict):
        return schema.replace(PREFIX, "#/$defs/") if isinstance(schema, str) else schema
    return {
        key: without_texts(value)
        for key, value in schema.items()
        if not (key == "description" and isinstance(value, str))
    }


def kubernetes(packages: Path) -> dict[str, Any]:
    """The definitions that the kinds of `KINDS` need, with all that these refer to."""
    folder = packages / "kubernetes_validate" / "kubernetes-json-schema" / f"{KUBERNETES}-local-strict"
    known = json.loads((folder / "_definitions.json").read_text(encoding="utf-8"))["$defs"]
    wanted, taken = list(KINDS.values()), dict[str, Any]()
    while wanted:
        name = wanted.pop()
        if name not in taken:
            taken[name] = without_texts(known[name])
            wanted += re.findall(r'"#/\$defs/([^"]+)"', json.dumps(taken[name]))
    kinds = {kind: {"$ref": f"#/$defs/{name}"} for kind, name in KINDS.items()}
    return {"kinds": kinds, "$defs": dict(sorted(taken.items()))}


def compose(packages: Path) -> Any:
    """The schema of the compose specification."""
    file = packages / "check_jsonschema" / "builtin_schemas" / "vendor" / "compose-spec.json"
    return without_texts(json.loads(file.read_text(encoding="utf-8")))


if __name__ == "__main__":
    for name, schema in (("kubernetes", kubernetes(Path(sys.argv[1]))), ("compose", compose(Path(sys.argv[1])))):
        text = json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
        (HERE / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")
