"""Buckets of S3 and Google Cloud Storage: clients, and errors in one line with the remedy.

The client is obstore (the Rust crate object_store): it has conditional writes for both, retries, and no dependencies.
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
"""The environment variables that name an S3 server other than Amazon's, in order of precedence."""

SIGN_IN = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN, if you have one)",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account",
}
"""Scheme → instructions for credentials. They come only from the environment, and are never written to a file."""

BROKEN_OFF = ("request or response body error", "NoSuchUpload")
"""obstore's texts for an answer that broke off, and for a multipart upload that was completed twice. obstore retries a
request that got no answer at all, but not these."""
PAUSE_SECONDS = 1.0
"""The pause before such a request is sent again."""


class StoreError(OSError):
    """An error of an object store that did not answer or refused; `strerror` is one line with the remedy."""

    def __init__(self, line: str) -> None:
        super().__init__(errno.EIO, line)

    def __str__(self) -> str:
        """The line, without an error number."""
        return str(self.strerror)


@dataclass(frozen=True)
class Patience:
    """Timeouts and retries for a store.

    Attributes:
        connect_seconds: the limit for a connection.
        answer_seconds: the limit for each part of an answer.
        retries: the number of retries after no answer, or a 5xx answer.
        retry_seconds: the time after which a request is not retried.
    """

    connect_seconds: float
    answer_seconds: float
    retries: int
    retry_seconds: float


QUICK = Patience(connect_seconds=3, answer_seconds=4, retries=1, retry_seconds=6)
"""For a command's first request: a wrong name or endpoint is reported in less than 10 s."""
LONG = Patience(connect_seconds=5, answer_seconds=60, retries=10, retry_seconds=180)
"""For all other requests: a failover takes seconds to minutes, less than the silence of a lease."""

OPTIONAL = Patience(connect_seconds=5, answer_seconds=60, retries=3, retry_seconds=20)
"""For optional files, which a trial does not wait for: its saved epochs."""


def client(root: str, patience: Patience = LONG) -> S3Store | GCSStore:
    """The client of a bucket, one per process.

    Args:
        root: `s3://BUCKET` or `gs://BUCKET`.

    Raises:
        ValueError: the package is not installed.
    """
    scheme = root.partition(":")[0]
    if find_spec("obstore") is None:
        raise ValueError(
            f"--storage {root}: the package obstore is not installed; run pip install 'meltpoint[{scheme}]', or name a "
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
            "timeout": timedelta(hours=1),  # for a whole answer: weights can be gigabytes
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
    """The S3 server named by the environment; None for Amazon's."""
    return next((environment[name] for name in ENDPOINTS if environment.get(name)), None)


def repeated(request: Callable[[], Result], patience: Patience) -> Result:
    """The result of a request, which is retried while its answer breaks off, up to `patience.retry_seconds`.

    The request must be idempotent, because the store may already have carried it out.

    Raises:
        BaseError: obstore's error, from the request.
        FileNotFoundError: from the request.
    """
    from obstore.exceptions import BaseError

    deadline = time.monotonic() + patience.retry_seconds
    while True:
        try:
            return request()
        except (BaseError, FileNotFoundError) as error:
            if not any(words in str(error) for words in BROKEN_OFF) or time.monotonic() + PAUSE_SECONDS > deadline:
                raise
        time.sleep(PAUSE_SECONDS)


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Raise obstore's errors as `StoreError`, and a missing object as a short `FileNotFoundError`."""
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
    """One line that describes an error with its remedy, without the request, its headers and its signature.

    Args:
        where: the URI of the request.
        text: obstore's message.
    """
    scheme, text = where.partition(":")[0], text.partition("\n\nDebug source")[0]
    code = "".join(re.findall(r"<Code>(\w+)</Code>", text)[:1])
    status = "".join(re.findall(r"status code: (\d+)", text)[:1])
    bucket = "/".join(where.split("/")[:3])
    if code == "NoSuchBucket":
        return f"{bucket} does not exist; create that bucket, or name another one"
    if re.search(r"metadata\.google|169\.254\.169\.254|/api/token|computeMetadata|token request|No credentials", text):
        return f"{bucket}: no credentials were found; {SIGN_IN[scheme]}"
    if status == "501":
        return f"{bucket} does not support conditional writes; name a store that does, or a folder"
    if status.startswith(("3", "4")) and status != "429":
        also = "the region (AWS_REGION) and this machine's clock" if scheme == "s3" else "this machine's clock"
        return f"{bucket} refuses the request ({code or status}); {SIGN_IN[scheme]} with write permission; check {also}"
    if status:
        return f"{where} is unavailable (HTTP {status}{f', {code}' if code else ''}); try again once the store answers"
    server = (endpoint_of(os.environ) if scheme == "s3" else None) or ""
    at = f" at {server.partition('://')[0]}://{server.partition('://')[2].rpartition('@')[2]}" if server else ""
    return f"{bucket} does not answer{at}; check the network and the endpoint, and try again"
