"""A file or folder of an object store, with the methods of `pathlib.Path` that the ledger uses.

A folder is a prefix of keys: it need not be created, and it exists while it contains an object. Single requests are
atomic and consistent: a read or a listing that follows a completed write sees that write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from meltpoint.sweeps.storage.object_client import LONG, SCHEMES, Patience, Result, client, explained, repeated

if TYPE_CHECKING:
    from obstore import ObjectMeta, UpdateVersion

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}")
_PART = re.compile(r"[A-Za-z0-9=_][A-Za-z0-9 =_.-]*")


class Stat(NamedTuple):
    """Size and time of an object, named as in `os.stat_result`: bytes, and seconds since 1970 by the store's clock."""

    st_size: int
    st_mtime: float


@dataclass(frozen=True, order=True)
class ObjectPath:
    """A file or folder of an object store.

    Attributes:
        root: `s3://BUCKET` or `gs://BUCKET`.
        key: names separated by "/"; "" for the bucket itself.
        patience: the timeouts of its requests; paths derived from this one inherit it.
    """

    root: str
    key: str = ""
    patience: Patience = field(default=LONG, compare=False, repr=False)

    @classmethod
    def of(cls, text: str, patience: Patience = LONG) -> ObjectPath:
        """The path that a URI names.

        Raises:
            ValueError: it contains a password, or characters that object keys or other programs treat specially.
        """
        scheme, _, rest = text.partition("://")
        bucket, _, key = rest.partition("/")
        if "@" in bucket or ":" in bucket:
            raise ValueError(
                f"--storage {scheme}://…: name only the bucket, without credentials; Meltpoint reads those from the "
                "environment."
            )
        parts = [part for part in key.rstrip("/").split("/") if key.rstrip("/")]
        if scheme not in SCHEMES or not _BUCKET.fullmatch(bucket) or not all(map(_PART.fullmatch, parts)):
            raise ValueError(
                f"--storage {text}: write s3://BUCKET/PREFIX or gs://BUCKET/PREFIX, with only letters, digits, '.', "
                "'_', '=' and '-' in the names."
            )
        return cls(f"{scheme}://{bucket}", "/".join(parts), patience)

    def with_patience(self, patience: Patience) -> ObjectPath:
        """The same path, with other patience."""
        return replace(self, patience=patience)

    # Names.

    def __str__(self) -> str:
        return f"{self.root}/{self.key}" if self.key else self.root

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(self.root, f"{self.key}/{name}" if self.key else name, self.patience)

    @property
    def name(self) -> str:
        """The last part."""
        return PurePosixPath(self.key).name

    @property
    def stem(self) -> str:
        """The last part without its suffix."""
        return PurePosixPath(self.key).stem

    @property
    def parent(self) -> ObjectPath:
        """The folder that contains it; the parent of a bucket is the bucket."""
        return ObjectPath(self.root, self.key.rpartition("/")[0], self.patience)

    @property
    def parents(self) -> tuple[ObjectPath, ...]:
        """The folders that contain it, innermost first, up to the bucket."""
        return (self.parent, *self.parent.parents) if self.key else ()

    def with_name(self, name: str) -> ObjectPath:
        """The path in the same folder with that name."""
        return self.parent / name

    def with_suffix(self, suffix: str) -> ObjectPath:
        """The path in the same folder with another suffix."""
        return self.with_name(self.stem + suffix)

    # Reading.

    def read_bytes(self) -> bytes:
        """The contents.

        Raises:
            FileNotFoundError: the object does not exist.
            StoreError: the store does not answer, or refuses.
        """
        import obstore

        return self._ask(lambda: bytes(obstore.get(self._client, self.key).bytes()))

    def read_text(self, encoding: str = "utf-8") -> str:
        """The contents as text; raises as `read_bytes` does."""
        return self.read_bytes().decode(encoding)

    def stat(self) -> Stat:
        """Size and time; raises like `read_bytes`, also for a folder."""
        found = self._head()
        return Stat(found["size"], found["last_modified"].timestamp())

    def is_file(self) -> bool:
        """True if an object has this key."""
        return self.version() is not None

    def is_dir(self) -> bool:
        """True if it contains objects."""
        import obstore

        def first() -> list[ObjectMeta]:
            return list(next(iter(obstore.list(self._client, self.key or None)), []))

        return any(meta["path"] != self.key for meta in self._ask(first))

    def exists(self) -> bool:
        """True for an object, or a folder with something in it."""
        return self.is_file() or self.is_dir()

    def iterdir(self) -> Iterator[ObjectPath]:
        """The files and folders in it; empty if it does not exist."""
        import obstore

        found = self._ask(lambda: obstore.list_with_delimiter(self._client, self.key or None))
        keys = [*found["common_prefixes"], *(meta["path"] for meta in found["objects"])]
        return iter([self / PurePosixPath(key).name for key in keys if key != self.key])

    def glob(self, pattern: str) -> Iterator[ObjectPath]:
        """The files and folders in it whose names match a pattern; `*/NAME` matches inside its folders."""
        above, _, name = pattern.rpartition("/")
        if above:
            return (path for folder in self.glob(above) for path in folder.glob(name))
        return (path for path in self.iterdir() if fnmatchcase(path.name, name))

    def files(self) -> Iterator[ObjectPath]:
        """All objects below it, at any depth."""
        import obstore

        found = self._ask(lambda: [meta for chunk in obstore.list(self._client, self.key or None) for meta in chunk])
        return (ObjectPath(self.root, meta["path"], self.patience) for meta in found if meta["path"] != self.key)

    def download(self, target: Path) -> None:
        """Write the contents to a local file; raises like `read_bytes`."""
        import obstore

        def copy() -> None:
            with target.open("wb") as file:
                for chunk in obstore.get(self._client, self.key).stream():
                    file.write(chunk)

        self._ask(copy)

    # Writing.

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing, as folders need not be created here."""

    def touch(self) -> None:
        """Write an empty object."""
        self.put(b"")

    def put(self, contents: bytes | Path) -> None:
        """Write or replace an object from bytes or a local file. A large file is sent in parts, but appears at once."""
        import obstore

        self._ask(lambda: obstore.put(self._client, self.key, contents))

    def create(self, contents: bytes) -> bool:
        """Write an object if it does not exist; False if it exists with other contents.

        A request whose answer was lost is sent again and finds its own object, so contents should name their writer.

        Raises:
            StoreError: the store does not answer, or refuses; the object may still have been written.
        """
        return self._put_if("create", contents)

    def replace_if(self, version: UpdateVersion | None, contents: bytes) -> bool:
        """Write an object if it has not changed since `version` was read; False if it has changed to other contents.

        Args:
            version: None if there was no object.

        Raises:
            StoreError: see `create`.
        """
        return self._put_if("create" if version is None else version, contents)

    def _put_if(self, mode: Any, contents: bytes) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            with explained(str(self)):
                try:
                    repeated(lambda: obstore.put(self._client, self.key, contents, mode=mode), self.patience)
                    return True
                except (AlreadyExistsError, PreconditionError):
                    return self.read_bytes() == contents
        except FileNotFoundError:  # it was removed after `version` was read
            return False

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove an object.

        Raises:
            FileNotFoundError: it does not exist and `missing_ok` is False; S3 does not report this.
        """
        import obstore

        try:
            self._ask(lambda: obstore.delete(self._client, self.key))
        except FileNotFoundError:
            if not missing_ok:
                raise

    def copy_to(self, target: ObjectPath) -> None:
        """Copy an object within the bucket, on the store's side."""
        import obstore

        self._ask(lambda: obstore.copy(self._client, self.key, target.key))

    def version(self) -> UpdateVersion | None:
        """The version that `replace_if` compares; None if there is no object."""
        try:
            found = self._head()
        except FileNotFoundError:
            return None
        named = {"e_tag": found["e_tag"], "version": found["version"]}
        return {key: value for key, value in named.items() if value is not None}  # type: ignore[return-value]

    def _head(self) -> ObjectMeta:
        import obstore

        def head() -> ObjectMeta:
            if not self.key:
                raise FileNotFoundError
            return obstore.head(self._client, self.key)

        return self._ask(head)

    def _ask(self, request: Callable[[], Result]) -> Result:
        """The answer to an idempotent request, which is sent again if it broke off."""
        with explained(str(self)):
            return repeated(request, self.patience)

    @property
    def _client(self) -> Any:
        return client(self.root, self.patience)
