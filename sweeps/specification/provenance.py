"""The provenance of scores: the version of the code, and reasons why a new training of an export scores differently.

The version is a digest of `adapters/` and `tasks/`. Comments, docstrings and layout do not count. Everything else does:
each number, name, import and annotation (dataclasses and pydantic read them), the text of messages, and the files'
paths, because files name plug-ins.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import meltpoint
from meltpoint.sweeps.ledger.records import reason

ROOMS = ("adapters", "tasks")


@cache
def code_version() -> str:
    """Meltpoint's version and the digest of its code; computed once per process, in less than a second."""
    return f"{meltpoint.__version__}+{digest(read_sources(Path(meltpoint.__path__[0])))[:8]}"


def read_sources(root: Path) -> dict[str, str]:
    """Each file of the rooms: its path below the package (`adapters/heads/mlp.py`) → its text."""
    paths = (path for room in ROOMS for path in (root / room).rglob("*.py"))
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def digest(sources: Mapping[str, str]) -> str:
    """64 hexadecimal characters for a set of files.

    Args:
        sources: a file's path below the package → its text.

    Raises:
        SyntaxError: a file is not valid Python.
    """
    parts = []
    for path, text in sorted(sources.items()):
        tree = ast.parse(text, path)
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                node.body = [statement for statement in node.body if not _does_nothing(statement)]
        parts += [path, ast.dump(tree)] if tree.body else []
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _does_nothing(statement: ast.stmt) -> bool:
    """True for `pass`, a docstring, and `...`."""
    is_constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_constant or isinstance(statement, ast.Pass)


# The record in an export, compared with a new training.

Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""The seeds that torch accepts."""

PACKAGES = ("torch", "transformers", "ray", "optuna", "datasets", "pytorch-crf", "mlflow", "numpy")
"""The packages whose versions an export records."""

COMPUTING = ("torch", "transformers", "pytorch-crf", "numpy")
"""The packages among them that a setting's scores depend on."""

HARDWARE = {
    "device": "device", "name": "processor", "host": "machine", "threads": "threads", "precision": "precision",
    "gpu_share": "share of the GPU",
}  # fmt: skip
"""Field of a hardware record → its name in a reason."""


def versions() -> dict[str, str]:
    """The installed versions of `PACKAGES`."""
    return {name: found for name in PACKAGES if (found := _version(name)) is not None}


@cache
def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


class _Final(BaseModel):
    model_config = ConfigDict(extra="allow")

    seed: Seed
    dev: float | None = None
    dev_of_sample: float | None = None
    code: str | None = None


class _Data(BaseModel):
    model_config = ConfigDict(extra="allow")

    task: str | None = None
    data_dir: str | None = None
    max_train_examples: int | None = Field(default=None, ge=1)
    nested: bool = False
    max_dev_examples: Annotated[int, Field(ge=1)] | Literal["auto"] | None = None
    test_from: str | None = None
    fingerprint: str | None = None
    documents: str | None = None


class _Hardware(BaseModel):
    model_config = ConfigDict(extra="allow")

    threads: int = Field(default=1, ge=1, le=4096)
    gpu_share: float = Field(default=0.0, ge=0.0, le=64.0)


class _Provenance(BaseModel):
    """The provenance keys of an exported setting that are read; other keys are kept."""

    model_config = ConfigDict(extra="allow")

    metric: str | None = None
    seed: Seed = 0
    dev: float | None = None
    finals: list[_Final] = Field(default_factory=list)
    data: _Data | None = None
    encoder_fingerprint: str | None = None
    hardware: _Hardware | None = None
    code: str | None = None
    versions: dict[str, str | None] | None = None


def checked_provenance(provenance: Mapping[str, object], path: str) -> dict[str, Any]:
    """The provenance of an exported setting, with its defaults.

    Raises:
        ValueError: a key has a value of the wrong type; one line.
    """
    try:
        return _Provenance.model_validate(provenance).model_dump()
    except ValidationError as error:
        raise ValueError(
            f"{path}: provenance: {reason(error)}; export it again, or remove `provenance` from the file."
        ) from None


def recorded_dev(facts: Mapping[str, Any], seed: int) -> float | None:
    """The dev score that a file records for a seed; for a final on a dev sample, the score that chose its epoch."""
    final: Mapping[str, Any] | None = next((one for one in facts.get("finals", []) if one["seed"] == seed), None)
    if final is None:
        return facts.get("dev") if facts.get("seed") == seed else None
    sampled: float | None = final.get("dev_of_sample")
    return final.get("dev") if sampled is None else sampled


def recorded_code(facts: Mapping[str, Any], seed: int) -> str | None:
    """The code version behind the dev score that a file records for a seed."""
    final: Mapping[str, Any] = next((one for one in facts.get("finals", []) if one["seed"] == seed), {})
    own = facts.get("code")
    return own if facts.get("seed") == seed else final.get("code", own)


BESIDE_OTHERS = "on a GPU, trials of a frozen encoder round differently side by side than alone"
"""A reason that no file records; on a CPU, each member of a bundle gets the same bits as alone."""


def reasons(
    facts: Mapping[str, Any], code: str, installed: Mapping[str, str], hardware: Mapping[str, object],
    is_frozen: bool = False,
) -> tuple[str, ...]:  # fmt: skip
    """`name: recorded → now` for each difference from a file's record; unrecorded values are left out.

    A different metric, data or encoder is not a reason: such a file is refused.

    Args:
        facts: the file's record.
        code: Meltpoint's version and digest here.
        installed: package → its version here.
        hardware: the fields of `records.HardwareRecord` here.
        is_frozen: whether the encoder is frozen, which is a reason on a GPU if nothing else is.
    """
    then_hardware, then_versions = facts.get("hardware") or {}, facts.get("versions") or {}
    pairs = [
        ("Meltpoint's code", facts.get("code"), code),
        *((name, then_versions.get(name), installed.get(name)) for name in COMPUTING),
        *((word, then_hardware.get(name), hardware.get(name)) for name, word in HARDWARE.items()),
    ]
    found = tuple(
        f"{what}: {then} → {'not installed' if here is None else here}"
        for what, then, here in pairs
        if then not in (None, "") and then != here
    )
    return found or ((BESIDE_OTHERS,) if is_frozen and hardware.get("device", "cpu") != "cpu" else ())
