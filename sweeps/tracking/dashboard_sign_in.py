"""Sign-in to the MLflow dashboard that listens beyond this machine: MLflow's basic authentication, with one user."""

from __future__ import annotations

import ipaddress
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

PASSWORD, USERNAME, CONFIG = "MLFLOW_AUTH_ADMIN_PASSWORD", "MLFLOW_AUTH_ADMIN_USERNAME", "MLFLOW_AUTH_CONFIG_PATH"
"""MLflow's own variables: the password and the name (`admin` if not set) of the user who may do everything, and the
file of a sign-in of one's own, which then says where its users are."""
MIN_PASSWORD_LENGTH = 12
"""Shorter passwords are refused by MLflow too."""
CONFIG_TEXT = """\
[mlflow]
default_permission = NO_PERMISSIONS
database_uri = sqlite:///{database}
admin_username = admin
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
"""


def is_loopback(host: str) -> bool:
    """True if only this machine reaches a server that listens on a host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_sign_in(host: str, environment: Mapping[str, str] = os.environ) -> None:
    """Check that whoever reaches a host from another machine has to sign in.

    Raises:
        ValueError: nobody would have to, or the sign-in cannot be had; one line with the remedy.
    """
    if is_loopback(host):
        return
    tunnel = "or leave it on 127.0.0.1 and tunnel: ssh -L 5000:localhost:5000 HOST"
    if not environment.get(CONFIG) and not environment.get(PASSWORD):
        raise ValueError(
            f"--host {host} shows the dashboard to everybody who reaches this machine; export {PASSWORD}=… "
            f"(user 'admin', or {USERNAME}) for a sign-in, {tunnel}."
        )
    if not environment.get(CONFIG) and len(environment[PASSWORD]) < MIN_PASSWORD_LENGTH:
        raise ValueError(f"{PASSWORD} has fewer than {MIN_PASSWORD_LENGTH} characters; take a longer one.")
    if find_spec("flask_wtf") is None:
        raise ValueError(
            f"--host {host}: MLflow's sign-in needs the package Flask-WTF; pip install 'meltpoint[cluster]', {tunnel}."
        )


@contextmanager
def sign_in(host: str, environment: Mapping[str, str] = os.environ) -> Iterator[dict[str, str]]:
    """The variables of a server with sign-in; none for a host that only this machine reaches.

    The user is kept in a folder that lasts as long as the block, for this account alone, so that the password is always
    the one that the environment names now.
    """
    if is_loopback(host):
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="meltpoint-sign-in-") as folder:
        own = Path(folder) / "basic_auth.ini"
        own.write_text(CONFIG_TEXT.format(database=Path(folder) / "users.db"), encoding="utf-8")
        yield {
            CONFIG: environment.get(CONFIG) or str(own),
            "MLFLOW_FLASK_SERVER_SECRET_KEY": environment.get("MLFLOW_FLASK_SERVER_SECRET_KEY")
            or secrets.token_hex(32),
        }
