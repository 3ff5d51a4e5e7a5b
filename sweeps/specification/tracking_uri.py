"""Tracking URIs: that of the default store, the file behind one, and the text that may be shown of one."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
"""Stores that MLflow's client opens itself, without a server."""

_SQLITE = "sqlite:///"
_SIGN_IN = re.compile(r"(://[^\s/:@?#]*):\S*@")
"""A user and a password before a host: up to the last @, for a password may hold an @ that nobody encoded."""
_SECRET_OPTION = re.compile(r"([?&;][\w.-]*(?:pass|pwd|token|secret|odbc_connect)[\w.-]*=)[^\s&;'\")]*", re.IGNORECASE)


def default_uri(storage: Path) -> str:
    """The URI of the SQLite store in the storage folder.

    Raises:
        ValueError: no URI names that file: what follows a `?` is read as options, and `%41` as a letter.
    """
    path = str(storage / "mlflow.db")
    if "?" in path or unquote(path) != path:
        raise ValueError(
            f"--storage {storage}: MLflow cannot keep its store under a path with '?', or with '%' before two "
            "hexadecimal digits; rename that folder, or name another with --storage DIR."
        )
    return f"{_SQLITE}{path}"


def sqlite_file(uri: str) -> Path | None:
    """The file of a SQLite store; None for any other, and for one in memory."""
    path = unquote(uri.partition("?")[0].removeprefix(_SQLITE))
    return Path(path) if uri.startswith(_SQLITE) and path not in ("", ":memory:") else None


def is_database(uri: str) -> bool:
    """Whether MLflow's client opens the store itself, without a server."""
    return uri.partition(":")[0].partition("+")[0].lower() in DATABASES


def check_sign_in(uri: str) -> None:
    """See that `redacted` will find the password in a text: white space would end it.

    Raises:
        ValueError: there is white space before the @ of a sign-in; the URI itself is not shown.
    """
    if "@" in uri and sqlite_file(uri) is None and re.search(r"\s", uri):
        raise ValueError("--tracking-uri: white space in the user or password; write a blank there as %20.")


def redacted(text: str) -> str:
    """A text with `***` in place of each password in a URI."""
    return _SECRET_OPTION.sub(r"\1***", _SIGN_IN.sub(r"\1:***@", text))


def without_sign_in(uri: str) -> str:
    """A URI as a person may open it: user, password and options taken out."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
