"""MLflow tracking URIs: the default URI, the file of a SQLite store, and forms without passwords for display."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from meltpoint.tasks.core.registry import unknown

if TYPE_CHECKING:
    from meltpoint.sweeps.storage.files import StoragePath

DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
"""URI schemes of stores that MLflow's client opens directly, without a server."""

SERVERS = ("http", "https", "file", "databricks")
"""The other schemes of MLflow's own stores."""

_SQLITE = "sqlite:///"
_SIGN_IN = re.compile(r"(://[^\s/:@?#]*):\S*@")
"""User and password before a host, up to the last @, since a password may contain an unencoded @."""
_SECRET_OPTION = re.compile(r"([?&;][\w.-]*(?:pass|pwd|token|secret|odbc_connect)[\w.-]*=)[^\s&;'\")]*", re.IGNORECASE)


def default_uri(storage: StoragePath) -> str:
    """The URI of the SQLite store in the storage folder.

    Raises:
        ValueError: no URI can name that file, because `?` starts the options and `%41` is decoded to a letter; or the
            storage is an object store, where SQLite cannot write.
    """
    if not isinstance(storage, Path):
        raise ValueError(
            f"--storage {storage}: MLflow's SQLite store cannot be in an object store; name an MLflow server, a "
            "database or a local file with --tracking-uri, for example sqlite:////FOLDER/mlflow.db."
        )
    path = str(storage / "mlflow.db")
    if "?" in path or unquote(path) != path:
        raise ValueError(
            f"--storage {storage}: MLflow cannot use a path with '?', or with '%' before two hexadecimal digits; "
            "rename that folder, or name another one with --storage DIR."
        )
    return f"{_SQLITE}{path}"


def sqlite_file(uri: str) -> Path | None:
    """The file of a SQLite store; None for other stores and for an in-memory store."""
    path = unquote(uri.partition("?")[0].removeprefix(_SQLITE))
    return Path(path) if uri.startswith(_SQLITE) and path not in ("", ":memory:") else None


def is_database(uri: str) -> bool:
    """True if MLflow's client opens the store directly, without a server."""
    return uri.partition(":")[0].partition("+")[0].lower() in DATABASES


def check_scheme(uri: str) -> None:
    """Check that MLflow supports a URI's scheme, either natively or through a plug-in (an entry point).

    Raises:
        ValueError: it does not; the message suggests similar schemes.
    """
    if re.fullmatch(r"[\w.-]+:\d+(/.*)?", uri):
        raise ValueError(f"--tracking-uri {uri}: a server's address begins with a scheme; write http://{uri}.")
    if "://" not in uri:  # a folder
        return
    scheme = uri.partition(":")[0].lower()
    plug_ins = [point.name for point in entry_points(group="mlflow.tracking_store")]
    if scheme.partition("+")[0] not in (*SERVERS, *DATABASES, *plug_ins):
        raise ValueError(f"--tracking-uri: {unknown(scheme, 'scheme', (*SERVERS, *DATABASES, *plug_ins))}")


def check_sign_in(uri: str) -> None:
    """Check that `redacted` can find the password of a URI inside a text, where white space would end it.

    Raises:
        ValueError: the user or password contains white space; the message does not contain the URI.
    """
    if "@" in uri and sqlite_file(uri) is None and re.search(r"\s", uri):
        raise ValueError("--tracking-uri: the user or password contains white space; write a space as %20.")


def redacted(text: str) -> str:
    """Replace each password in the URIs of a text with `***`."""
    return _SECRET_OPTION.sub(r"\1***", _SIGN_IN.sub(r"\1:***@", text))


def without_sign_in(uri: str) -> str:
    """A URI without user, password and options, for display."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
