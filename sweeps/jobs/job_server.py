"""A cluster's job server: its address, and the token that it asks for. Imports nothing heavy."""

from __future__ import annotations

import json
import os
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from meltpoint.sweeps.jobs import ADDRESS

PATIENCE_SECONDS = 9.0
"""Longest wait for a job server; one that runs answers within milliseconds."""


@dataclass(frozen=True)
class JobServer:
    """A job server that answered.

    Attributes:
        url: the address of the cluster's dashboard, without a slash at its end.
        headers: the HTTP headers of every request; they hold the token, so they are not shown.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


def find(address: str | None, environment: Mapping[str, str] = os.environ) -> JobServer:
    """The job server at an address. A token is sent to it only if it asks for one.

    Args:
        address: `http://HOST:8265`, or None for that of the environment.
        environment: the environment variables.

    Raises:
        ValueError: there is no address, nothing that is Ray's dashboard answers in time, or it refuses the token; one
            line with the remedy.
    """
    url = url_of(address, environment)
    status = _within(PATIENCE_SECONDS, lambda: _status(url, {}), url)
    if status == 200:
        return JobServer(url)
    where, token = token_of(environment)
    if not token:
        raise ValueError(
            f"{url} asks for a token, and there is none here: set RAY_AUTH_TOKEN to the cluster's, or "
            f"RAY_AUTH_TOKEN_PATH to a file with it."
        )
    headers = {"Authorization": f"Bearer {token}"}
    if _within(PATIENCE_SECONDS, lambda: _status(url, headers), url) != 200:
        raise ValueError(f"{url} refuses the token of {where}; put the cluster's own there.")
    return JobServer(url, headers)


def url_of(address: str | None, environment: Mapping[str, str]) -> str:
    """The URL of a job server, by the option or the environment.

    Raises:
        ValueError: neither names one, or it is another kind of address; the message contains no password.
    """
    ray_address = environment.get("RAY_ADDRESS", "")
    text = address or environment.get(ADDRESS) or (ray_address if ray_address.startswith("http") else "")
    if not text:
        raise ValueError(f"--address is missing: write http://HOST:8265, the cluster's dashboard, or set {ADDRESS}.")
    url = (text if "://" in text else f"http://{text}").rstrip("/")
    parts = urlsplit(url)
    if "@" in url:
        raise ValueError("--address: write it without user and password; Ray's own token is RAY_AUTH_TOKEN.")
    if parts.scheme not in ("http", "https") or not parts.hostname or not _has_port(url):
        raise ValueError(f"--address {text}: write http://HOST:8265, the cluster's dashboard, which takes jobs.")
    return url


def _has_port(url: str) -> bool:
    """True if the port of a URL is one, or is left out."""
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


def token_of(environment: Mapping[str, str]) -> tuple[str, str]:
    """The place of Ray's token here, and the token: from where Ray itself reads it; ("", "") if there is none.

    Raises:
        ValueError: the file cannot be read, or holds more than one line of printable characters; the token is not in
            the message.
    """
    if environment.get("RAY_AUTH_TOKEN"):
        where, text = "RAY_AUTH_TOKEN", environment["RAY_AUTH_TOKEN"]
    else:
        named = environment.get("RAY_AUTH_TOKEN_PATH")
        path = Path(named).expanduser() if named else Path.home() / ".ray" / "auth_token"
        if not named and not path.is_file():
            return "", ""
        where = str(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"RAY_AUTH_TOKEN_PATH {path}: cannot be read ({type(error).__name__}).") from None
    token = text.strip()
    if not re.fullmatch(r"[!-~]*", token):
        raise ValueError(f"{where} holds no token: one line of letters, digits and signs, without blanks.")
    return where, token


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, which could carry the token to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _status(url: str, headers: Mapping[str, str]) -> int:
    """200 if Ray's dashboard answers, 401 or 403 if it asks for a token or refuses it.

    Raises:
        ValueError: something else answers, or nothing does; one line with the remedy.
    """
    remedy = "name the dashboard of the cluster's head, http://HOST:8265 (ray start --head --include-dashboard=true)"
    request = urllib.request.Request(f"{url}/api/version", headers=dict(headers))
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=PATIENCE_SECONDS / 2) as response:
            if "ray_version" in json.loads(response.read(10_000)):
                return 200
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            return error.code
        raise ValueError(f"{url} answers {error.code} {error.reason}; {remedy}.") from None
    except (OSError, HTTPException) as error:
        raise ValueError(f"{url} does not answer ({getattr(error, 'reason', error)}); {remedy}.") from None
    except (ValueError, TypeError):
        pass
    raise ValueError(f"{url} answers, but is no Ray dashboard; {remedy}.")


def _within(seconds: float, call: Callable[[], int], url: str) -> int:
    """The result of a call, which may hang where no timeout reaches it, as in the look-up of a name.

    Raises:
        ValueError: it raised one, or took longer.
    """
    found: list[int | ValueError] = []

    def run() -> None:
        try:
            found.append(call())
        except ValueError as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not found:
        raise ValueError(f"{url} does not answer within {seconds:.0f} s; check the address and the network.")
    if isinstance(found[0], ValueError):
        raise found[0]
    return found[0]
