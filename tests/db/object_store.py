"""A filesystem of fsspec's that is as object stores are, at `objects://`.

An object is there, whole, when its writer is closed and not before; nobody can add to one. There is one bucket; one
called `away` does not answer, nor does any while `is_away` is set, and says so by an exception of its own.
"""

from typing import Any, ClassVar

import fsspec
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

BUCKET = "bucket"


class NoAnswer(Exception):
    """What this store raises when it cannot be reached: no OSError, as with the packages of real ones."""


class ObjectStore(AbstractFileSystem):
    """All objects of this process."""

    protocol = "objects"
    objects: ClassVar[dict[str, bytes]] = {}
    is_away: ClassVar[bool] = False

    def check_bucket(self, path: str) -> None:
        """Raise what every call does where there is no such bucket, or no answer."""
        bucket = path.partition("/")[0]
        if self.is_away or bucket == "away":
            raise NoAnswer("nobody there")
        if bucket != BUCKET:
            raise FileNotFoundError(f"no such bucket: {bucket}")

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Of an object."""
        self.check_bucket(path)
        if path not in self.objects:
            raise FileNotFoundError(path)
        return {"name": path, "size": len(self.objects[path]), "type": "file"}

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove an object."""
        path = self._strip_protocol(path)
        self.info(path)
        del self.objects[path]

    def cat_ranges(self, paths: Any, starts: Any, ends: Any, max_gap: Any = None, **_: Any) -> list[Any]:
        """Parts of objects. As with stores that know no `on_error`, what went wrong is among them."""
        parts: list[Any] = super().cat_ranges(paths, starts, ends, max_gap, on_error="return")
        return parts

    def _open(self, path: str, mode: str = "rb", **options: Any) -> "Writer":
        if mode not in ("rb", "wb"):
            raise NotImplementedError("objects cannot grow")
        return Writer(self, path, mode, **options)


class Writer(AbstractBufferedFile):
    """Of one object; a reader, too."""

    def _initiate_upload(self) -> None:
        self.fs.check_bucket(self.path)
        self.parts: list[bytes] = []

    def _upload_chunk(self, final: bool = False) -> bool:
        self.parts.append(self.buffer.getvalue())
        if final:
            self.fs.objects[self.path] = b"".join(self.parts)
        return True

    def _fetch_range(self, start: int, end: int) -> bytes:
        self.fs.check_bucket(self.path)
        return bytes(self.fs.objects[self.path][start:end])


fsspec.register_implementation(ObjectStore.protocol, ObjectStore, clobber=True)
