"""Buckets of S3 and Google Cloud Storage: clients, and errors in one line with the remedy.

obstore (the Rust crate object_store) speaks to them: it has conditional writes for both, retries, and no dependencies.
It is imported with the first call.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from obstore.store import GCSStore, S3Store

Result = TypeVar("Result")

SCHEMES = ("s3", "gs")

ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""The environment variables that name another S3 server than Amazon's, in the order in which they count."""

SIGN_IN = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN, where there is one)",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account",
}
"""Scheme → how this process gets credentials. They come from the environment alone, and are written nowhere."""

REFUSED = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "AccessDenied"}
"""Codes of S3 and GCS for credentials that are wrong, expired, or those of a user who may not."""

SKEWED = {"RequestTimeTooSkewed", "RequestInTheFuture", "RequestExpired"}
"""Codes of stores that take a request's time for wrong: signatures hold for 15 minutes."""

BROKEN_OFF = ("request or response body error", "NoSuchUpload")
"""obstore's words for an answer that broke off: it sends a request again that got no answer at all, and not that one.
And what it is told when it ends an upload in parts again, whose end was carried out."""
PAUSES = (0.1, 5.0)
"""Seconds before such a request is sent again: the first pause, doubled each time, and the longest."""


class StoreError(OSError):
    """An object store that did not answer, or refused; one line with the remedy, as `strerror`."""

    def __init__(self, line: str) -> None:
        super().__init__(errno.EIO, line)

    def __str__(self) -> str:
        """The line, without an error number."""
        return str(self.strerror)


@dataclass(frozen=True)
class Patience:
    """The time that a store gets.

    Attributes:
        connect_seconds: for a connection.
        answer_seconds: for each part of an answer.
        retries: how often a request is sent again that got no answer, or one of 5xx.
        retry_seconds: after which it is not sent again.
    """

    connect_seconds: float
    answer_seconds: float
    retries: int
    retry_seconds: float


QUICK = Patience(connect_seconds=3, answer_seconds=4, retries=1, retry_seconds=6)
"""For the first question of a command: a wrong name or endpoint is told in less than 10 s."""
LONG = Patience(connect_seconds=5, answer_seconds=60, retries=10, retry_seconds=180)
"""For all others: a store that fails over is away for seconds to minutes, less than the silence of a lease."""

OPTIONAL = Patience(connect_seconds=5, answer_seconds=60, retries=3, retry_seconds=20)
"""For what a trial can do without, and does not wait for: its saved epochs."""


def client(root: str, patience: Patience = LONG) -> S3Store | GCSStore:
    """The client of a bucket, one for each process.

    Args:
        root: `s3://BUCKET` or `gs://BUCKET`.

    Raises:
        ValueError: the package is not installed.
    """
    scheme = root.partition(":")[0]
    if find_spec("obstore") is None:
        raise ValueError(
            f"--storage {root}: the package obstore is not installed; pip install 'meltpoint[{scheme}]', or name a "
            "folder."
        )
    return _client(root, patience)


@lru_cache(maxsize=8)
def _client(root: str, patience: Patience) -> S3Store | GCSStore:
    from obstore.store import GCSStore, S3Store

    scheme, _, bucket = root.partition("://")
    endpoint = endpoint_of(os.environ)
    common: dict[str, Any] = {
        "client_options": {
            "connect_timeout": timedelta(seconds=patience.connect_seconds),
            "read_timeout": timedelta(seconds=patience.answer_seconds),
            "timeout": timedelta(hours=1),  # of a whole answer: weights may have gigabytes
            "allow_http": scheme == "gs" or (endpoint or "").startswith("http://"),
        },
        "retry_config": {
            "max_retries": patience.retries, "retry_timeout": timedelta(seconds=patience.retry_seconds)
        },
    }  # fmt: skip
    if scheme == "gs":
        return GCSStore(bucket, **common)
    return S3Store(bucket, **common | ({"endpoint": endpoint} if endpoint else {}))


def endpoint_of(environment: Mapping[str, str]) -> str | None:
    """The S3 server that the environment names; None for Amazon's."""
    return next((environment[name] for name in ENDPOINTS if environment.get(name)), None)


def repeated(request: Callable[[], Result], patience: Patience) -> Result:
    """The result of a request that is sent again where its answer broke off, for as long as a store may be away.

    The store may have carried it out: it has to be one that does no harm twice.

    Raises:
        BaseError: of obstore, as the request.
        FileNotFoundError: as the request.
    """
    from obstore.exceptions import BaseError

    deadline, pause = time.monotonic() + patience.retry_seconds, PAUSES[0]
    while True:
        try:
            return request()
        except (BaseError, FileNotFoundError) as error:
            if not any(words in str(error) for words in BROKEN_OFF) or time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
        pause = min(2 * pause, PAUSES[1])


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Raise obstore's errors as `StoreError`, and its own `FileNotFoundError` in a few words."""
    from obstore.exceptions import BaseError

    try:
        yield
    except FileNotFoundError as error:
        if "NoSuchBucket" in str(error):
            raise StoreError(in_words(where, str(error))) from None
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), where) from None
    except BaseError as error:
        raise StoreError(in_words(where, str(error))) from None


def in_words(where: str, text: str) -> str:
    """One line on an error, with its remedy; without the request, its headers and signature.

    Args:
        where: the URI of the request.
        text: obstore's message.
    """
    scheme, text = where.partition(":")[0], text.partition("\n\nDebug source")[0]
    code = _found(r"<Code>(\w+)</Code>", text)
    status = _found(r"status code: (\d+)", text)
    bucket = "/".join(where.split("/")[:3])
    if code == "NoSuchBucket":
        return f"{bucket} does not exist; make that bucket, or name another one"
    if re.search(r"metadata\.google|169\.254\.169\.254|/api/token|computeMetadata|token request|No credentials", text):
        return f"{bucket}: no credentials were found; {SIGN_IN[scheme]}"
    if code in SKEWED:
        return f"{bucket} takes this machine's clock for wrong ({code}); set the clock (NTP), and try again"
    if code in REFUSED or status in ("401", "403"):
        return f"{bucket} refuses these credentials ({code or status}); {SIGN_IN[scheme]} of a user who may write"
    if code in ("PermanentRedirect", "AuthorizationHeaderMalformed") or status in ("301", "307"):
        return f"{bucket} lies in another region; set AWS_REGION to its own"
    if code == "NotImplemented" or status == "501":
        return f"{bucket} has no conditional writes; name a store that has them, or a folder"
    if status:
        return f"{where} cannot be had (HTTP {status}{f', {code}' if code else ''}); try again once the store answers"
    where_to = endpoint_of(os.environ) if scheme == "s3" else None
    return (
        f"{bucket} does not answer{f' at {_without_sign_in(where_to)}' if where_to else ''}; check the network"
        f"{f' and {ENDPOINTS[1]}' if scheme == 's3' else ''}, and try again"
    )


def _without_sign_in(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match.group(1) if match else ""
