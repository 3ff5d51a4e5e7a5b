"""Object stores on 127.0.0.1 for tests: moto's S3 with faults on demand, and a small Google Cloud Storage.

No other S3-compatible server comes from a package registry: moto keeps objects in memory and checks no signature. It
looks at a condition and then writes, in two steps; a lock makes that one, as the real store does.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

from werkzeug.serving import WSGIRequestHandler, make_server

BUCKET = "sweeps"

App = Callable[[dict, Callable], Iterable[bytes]]

REFUSED = '<?xml version="1.0"?><Error><Code>{code}</Code><Message>no</Message></Error>'


@dataclass
class Faults:
    """The faults of a server; `requests` are all that came, as `METHOD /path`.

    Attributes:
        refuse: so many of the next requests are answered with `status`, and not carried out.
        lose: so many of the next writes are carried out, and answered with 500.
        break_off: so many of the next requests are carried out, and their connection is closed in the midst of the
            answer; but of a HEAD, whose answer has no body.
        heeds_conditions: whether If-None-Match and If-Match are handed on.
        code: of an error, in its XML.
    """

    refuse: int = 0
    status: str = "503 Slow Down"
    code: str = "SlowDown"
    lose: int = 0
    break_off: int = 0
    heeds_conditions: bool = True
    requests: list[str] = field(default_factory=list)

    def take(self, name: str) -> bool:
        """True if a fault is due, which is one less then."""
        left = getattr(self, name)
        setattr(self, name, max(0, left - 1))
        return left > 0


class Faulty:
    """A server's application with faults."""

    def __init__(self, app: App, faults: Faults) -> None:
        self.app, self.faults, self.lock = app, faults, threading.RLock()

    def __call__(self, environ: dict, start: Callable) -> Iterable[bytes]:
        is_write = environ["REQUEST_METHOD"] == "PUT"
        self.faults.requests.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}")
        if not self.faults.heeds_conditions:
            environ = {key: value for key, value in environ.items() if not key.startswith("HTTP_IF_")}
        if self.faults.take("refuse"):
            return self._fail(start)
        if environ["REQUEST_METHOD"] != "HEAD" and self.faults.take("break_off"):
            with self.lock:
                return self._break_off(environ, start)
        if not is_write:
            return self.app(environ, start)
        with self.lock:
            if self.faults.take("lose"):
                list(self.app(environ, lambda *_: lambda *_: None))
                return self._fail(start, "500 Internal Server Error")
            return list(self.app(environ, start))

    def _break_off(self, environ: dict, start: Callable) -> list[bytes]:
        headers: list[tuple[str, str]] = []
        body = b"".join(self.app(environ, lambda status, told, *_: headers.extend(told) or (lambda *_: None)))
        kept = [(name, value) for name, value in headers if name.lower() != "content-length"]
        start("200 OK", [*kept, ("Content-Length", str(max(1, len(body)))), ("Connection", "close")])
        return [body[:-1]]

    def _fail(self, start: Callable, status: str | None = None) -> list[bytes]:
        start(status or self.faults.status, [("Content-Type", "application/xml")])
        return [REFUSED.format(code=self.faults.code).encode()]


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def served(app: App) -> Iterator[tuple[str, Faults]]:
    """An application behind a threaded server while the block runs; yields its URL and its faults.

    The server closes each connection after its answer.
    """
    faults = Faults()
    server = make_server("127.0.0.1", 0, Faulty(app, faults), threaded=True, request_handler=_Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", faults
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def s3_server() -> Iterator[tuple[dict[str, str], Faults]]:
    """moto's S3 with an empty bucket; yields the environment by which clients find it."""
    from moto.server import DomainDispatcherApplication, create_backend_app

    app = DomainDispatcherApplication(create_backend_app)
    with served(app) as (url, faults):
        environment = {
            "AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "not-a-secret",
            "AWS_REGION": "us-east-1",
        }  # fmt: skip
        import boto3

        keys = {"aws_access_key_id": "tester", "aws_secret_access_key": "not-a-secret", "region_name": "us-east-1"}
        boto3.client("s3", endpoint_url=url, **keys).create_bucket(Bucket=BUCKET)
        yield environment, faults


@dataclass(frozen=True)
class _Object:
    contents: bytes
    generation: int

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The headers of its answer."""
        return [
            ("ETag", f'"{hashlib.md5(self.contents).hexdigest()}"'), ("x-goog-generation", str(self.generation)),
            ("Last-Modified", time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())),
            ("Content-Length", str(len(self.contents))),
        ]  # fmt: skip


class CloudStorage:
    """The XML API of Google Cloud Storage, as far as a ledger uses it, in memory."""

    def __init__(self) -> None:
        self.objects: dict[str, _Object] = {}
        self.parts: dict[tuple[str, int], bytes] = {}
        self.generation = 0

    def __call__(self, environ: dict, start: Callable) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], unquote(environ["PATH_INFO"])
        _, bucket, *rest = path.split("/", 2)
        key = rest[0] if rest else ""
        if bucket != BUCKET:
            return _answer(start, "404 Not Found", REFUSED.format(code="NoSuchBucket").encode())
        if method == "GET" and not key:
            return _answer(start, "200 OK", self._list(parse_qs(environ["QUERY_STRING"])).encode())
        return getattr(self, f"_{method.lower()}")(key, environ, start)

    def _post(self, key: str, environ: Mapping, start: Callable) -> Iterable[bytes]:
        """Begin or end an upload in parts."""
        query = parse_qs(environ["QUERY_STRING"], keep_blank_values=True)
        if "uploads" in query:
            body = "<InitiateMultipartUploadResult><UploadId>one</UploadId></InitiateMultipartUploadResult>"
            return _answer(start, "200 OK", body.encode())
        self.generation += 1
        parts = sorted(name for name in self.parts if name[0] == key)
        self.objects[key] = _Object(b"".join(self.parts.pop(name) for name in parts), self.generation)
        body = "<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>"
        return _answer(start, "200 OK", body.encode())

    def _put(self, key: str, environ: Mapping, start: Callable) -> Iterable[bytes]:
        source = environ.get("HTTP_X_GOOG_COPY_SOURCE")
        contents = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        part = parse_qs(environ["QUERY_STRING"]).get("partNumber")
        if part:
            self.parts[key, int(part[0])] = contents
            return _answer(start, "200 OK", b"", [("ETag", '"x"')])
        if source:
            contents = self.objects[unquote(source).split("/", 1)[1]].contents
        wanted = environ.get("HTTP_X_GOOG_IF_GENERATION_MATCH")
        present = self.objects.get(key)
        if wanted is not None and int(wanted) != (present.generation if present else 0):
            return _answer(start, "412 Precondition Failed", REFUSED.format(code="PreconditionFailed").encode())
        self.generation += 1
        made = self.objects[key] = _Object(contents, self.generation)
        body = b"<CopyObjectResult/>" if source else b""
        return _answer(start, "200 OK", body, [one for one in made.headers if one[0] != "Content-Length"])

    def _get(self, key: str, environ: Mapping, start: Callable) -> Iterable[bytes]:
        found = self.objects.get(key)
        if found is None:
            return _answer(start, "404 Not Found", REFUSED.format(code="NoSuchKey").encode())
        asked = environ.get("HTTP_RANGE", "")
        if asked:
            return _answer_in_part(start, found, int(asked.removeprefix("bytes=").partition("-")[0]))
        start("200 OK", found.headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [found.contents]

    _head = _get

    def _delete(self, key: str, environ: Mapping, start: Callable) -> Iterable[bytes]:
        found = self.objects.pop(key, None)
        return _answer(start, "204 No Content" if found else "404 Not Found", b"")

    def _list(self, query: Mapping[str, list[str]]) -> str:
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        keys = sorted(key for key in self.objects if key.startswith(prefix))
        folders = {key[: key.index("/", len(prefix)) + 1] for key in keys if delimiter and "/" in key[len(prefix) :]}
        files = [key for key in keys if not delimiter or "/" not in key[len(prefix) :]]
        rows = [
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key].contents)}</Size>"
            f"<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>x</ETag></Contents>"
            for key in files
        ]
        rows += [f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in sorted(folders)]
        return f"<ListBucketResult>{''.join(rows)}</ListBucketResult>"


def _answer_in_part(start: Callable, found: _Object, first: int) -> list[bytes]:
    size, rest = len(found.contents), found.contents[first:]
    headers = [one for one in found.headers if one[0] != "Content-Length"]
    headers += [("Content-Range", f"bytes {first}-{size - 1}/{size}"), ("Content-Length", str(len(rest)))]
    start("206 Partial Content", headers)
    return [rest]


def _answer(
    start: Callable, status: str, body: bytes, headers: list[tuple[str, str]] | None = None
) -> list[bytes]:  # fmt: skip
    start(status, [*(headers or []), ("Content-Length", str(len(body)))])
    return [body] if body else []


@contextmanager
def gs_server() -> Iterator[tuple[dict[str, str], Faults]]:
    """A Google Cloud Storage with an empty bucket; yields the environment by which clients find it."""
    with served(CloudStorage()) as (url, faults):
        account = {"gcs_base_url": url, "disable_oauth": True, "client_email": "", "private_key": ""}
        yield {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps({**account, "private_key_id": ""})}, faults
