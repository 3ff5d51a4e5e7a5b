"""Whether the services that a sweep talks to answer: MLflow's store and a Ray cluster. Nothing is changed there."""

from __future__ import annotations

import json
import os
import re
import socket
import sqlite3
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 3.0
"""A service on the same network answers in milliseconds; a doctor that hangs is no doctor."""

RAY_PORT = 6379
"""Ray's own default for `ray start --head`."""


@dataclass(frozen=True)
class Check:
    """One thing that a sweep needs.

    Attributes:
        name: what was looked at, in a word or two.
        ok: whether a sweep can run with what was found.
        detail: what was found.
        remedy: what to do about it; empty where all is well.
    """

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def tracking_store(uri: str) -> Check:
    """Whether MLflow's store answers, and whether its tables are those of the MLflow that is installed.

    Args:
        uri: a tracking URI as MLflow takes it. A password in it never reaches the check's text.
    """
    scheme = uri.partition(":")[0].lower() if re.match(r"[A-Za-z][\w+]+:", uri) else "file"
    if scheme == "sqlite":
        return _sqlite_store(uri)
    if scheme in {"http", "https"}:
        return _server(uri)
    if scheme.partition("+")[0] in {"postgresql", "mysql", "mssql"}:
        return _database(uri, {"postgresql": 5432, "mysql": 3306, "mssql": 1433}[scheme.partition("+")[0]])
    if scheme == "file":
        return Check(
            "MLflow store", False, f"{uri} is a folder of files, which MLflow 3.13 and later refuse",
            "use sqlite:///FILE or a server; `mlflow migrate-filestore` moves the runs of an old folder",
        )  # fmt: skip
    return Check("MLflow store", True, f"a store of kind {scheme}; not looked at from here")


def _sqlite_store(uri: str) -> Check:
    name, text = "MLflow store", uri.split("?")[0].removeprefix("sqlite:///")
    if not text or text == ":memory:" or text.startswith("sqlite:"):
        return Check(name, False, f"{uri} names no file, and a store in memory is lost at the end", "name a file: sqlite:///runs/mlflow.db")
    path = Path(text)
    if not path.exists() or path.stat().st_size == 0:
        return _new_file(name, path)
    try:
        with sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=TIMEOUT_SECONDS) as connection:
            rows = connection.execute("select version_num from alembic_version").fetchall()
    except sqlite3.Error as error:
        return Check(name, False, f"{path} is no MLflow store ({error})", "move that file away, or name another with --tracking-uri")
    return _schema(name, path, uri, [str(row[0]) for row in rows])


def _new_file(name: str, path: Path) -> Check:
    place = existing(path.parent)
    if place.is_dir() and os.access(place, os.W_OK):
        return Check(name, True, f"{path} does not exist yet; the first sweep makes it")
    return Check(name, False, f"{path} cannot be made: {place} is not a folder that this user may write", "name another with --tracking-uri or --storage")


def _schema(name: str, path: Path, uri: str, found: list[str]) -> Check:
    known, newest = _schema_revisions()
    if found == [newest]:
        return Check(name, True, f"{path}, tables of revision {newest}, current")
    version = metadata.version("mlflow")
    if len(found) == 1 and found[0] in known:
        return Check(name, False, f"{path} has tables of an older MLflow ({found[0]}; MLflow {version} has {newest})", f"copy the file, then `mlflow db upgrade {uri}`")
    return Check(name, False, f"{path} has tables that MLflow {version} does not know ({', '.join(found) or 'none'})", "install the MLflow that made it, or name another with --tracking-uri")


def _schema_revisions() -> tuple[set[str], str]:
    """Every revision of the tables that the installed MLflow knows, and the newest; without importing MLflow (2 s)."""
    from alembic.script import ScriptDirectory

    spec = find_spec("mlflow")
    assert spec is not None and spec.origin is not None, "the package check comes first"
    scripts = ScriptDirectory(str(Path(spec.origin).parent / "store" / "db_migrations"))
    newest = scripts.get_current_head()
    assert newest is not None, "MLflow's migrations have one head"
    return {script.revision for script in scripts.walk_revisions()}, newest
