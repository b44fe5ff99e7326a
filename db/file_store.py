"""The bytes of files, under one root: a directory, or any URL that fsspec knows, such as s3://bucket/headrace.

A file is written once, from its first byte to its last, and never appended to, as nobody can in an object store: what
a running batch has written so far is its lines' to tell, and its files are written here once it has ended.

Everything here blocks, so event loops call it on threads. Who may see a file is for its row to say.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, Self
from uuid import UUID

from fsspec.core import url_to_fs
from fsspec.spec import AbstractBufferedFile

CHUNK_BYTES = 1024 * 1024  # read or written at once: what a file takes of the memory, whatever its size
# The same, of an object store: what it is asked for ahead of a reader, and what is sent to it at once. Of these parts
# S3 takes none under 5 MiB, except for the last one, and 10,000 at most.
BLOCK_BYTES = 8 * 1024 * 1024


class Source(Protocol):
    """What bytes are read from."""

    def read(self, size: int, /) -> bytes:
        """The next bytes, at most `size` of them; none at the end."""


class FileStore:
    """Writes, reads and removes files by their URLs. Raises OSError where the store does not do it."""

    def __init__(self, root: str) -> None:
        """Raises ImportError or ValueError for a root that needs a package that is not there, or that nobody knows."""
        self._root = root.rstrip("/")
        url_to_fs(self._root)  # which asks the store nothing yet

    def url_of(self, file_id: UUID) -> str:
        """Where the file goes."""
        return f"{self._root}/{file_id.hex}"

    def create(self, url: str) -> "NewFile":
        """A file to be written, or written again."""
        return NewFile(url)

    def copy(self, source: Source, url: str) -> int:
        """Write all of `source`; returns how many bytes that were."""
        target, num_bytes = self.create(url), 0
        try:
            while chunk := source.read(CHUNK_BYTES):
                target.write(chunk)
                num_bytes += len(chunk)
            target.commit()
        except BaseException:
            target.discard()
            raise
        return num_bytes

    def open(self, url: str) -> "KeptFile":
        """The file, to be read; FileNotFoundError when it is not there."""
        return KeptFile(url)

    def ranges(self, url: str, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """Parts of the file, each given by its first byte and its length; FileNotFoundError when it is not there."""
        with _as_os_error(may_be_missing=True):
            fs, path = url_to_fs(url)
            starts, ends = [first for first, _ in places], [first + length for first, length in places]
            parts: list[bytes] = fs.cat_ranges([path] * len(places), starts, ends, on_error="raise")
            for part in parts:
                if isinstance(part, BaseException):  # stores and releases of fsspec that know no `on_error`
                    raise part
            return parts

    def delete(self, url: str) -> None:
        """Remove the file; nothing when it is gone already."""
        with _as_os_error():
            fs, path = url_to_fs(url)
            for name in (path, *([_part(path)] if _is_local(fs) else [])):
                try:
                    fs.rm(name)
                except FileNotFoundError:
                    continue


class KeptFile:
    """A file that is read. FileNotFoundError, in its middle too, when somebody has taken it from its store."""

    def __init__(self, url: str) -> None:
        with _as_os_error(may_be_missing=True):
            fs, path = url_to_fs(url)
            self._file: Any = fs.open(path, "rb", block_size=BLOCK_BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, size: int = -1) -> bytes:
        """The next bytes, at most `size` of them, or all; none at the end."""
        with _as_os_error(may_be_missing=True):  # object stores are asked for the bytes only now
            data: bytes = self._file.read(size)
            return data

    def close(self) -> None:
        """Let go of it."""
        with _as_os_error():
            self._file.close()


class NewFile:
    """A file on its way: none of it is at the URL before `commit`. In a directory, it is on the disk after that."""

    def __init__(self, url: str) -> None:
        with _as_os_error():
            self._fs, self._path = url_to_fs(url)
            self._is_local = _is_local(self._fs)
            if self._is_local:
                os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
                self._file: Any = open(_part(self._path), "wb")  # noqa: SIM115  # closed by one of the two below
            else:
                self._file = self._fs.open(self._path, "wb", block_size=BLOCK_BYTES)

    def write(self, data: bytes) -> None:
        """Add to its end."""
        with _as_os_error():
            self._file.write(data)

    def commit(self) -> None:
        """Put it where it belongs, in place of what was there."""
        with _as_os_error():
            if self._is_local:
                self._file.flush()
                os.fsync(self._file.fileno())
            self._file.close()  # object stores show an object when it is closed
            if self._is_local:
                os.replace(_part(self._path), self._path)
                _sync_directory(os.path.dirname(self._path))

    def discard(self) -> None:
        """Leave nothing behind, and in its place what was there."""
        with _as_os_error():
            if isinstance(self._file, AbstractBufferedFile):
                self._file.closed = True  # before all else: to close it, now or at its end, would show what it has
                self._file.discard()
                return
            self._file.close()
            name = _part(self._path) if self._is_local else self._path
            if self._fs.exists(name):
                self._fs.rm(name)


@contextmanager
def _as_os_error(*, may_be_missing: bool = False) -> Iterator[None]:
    """What a store's own package raises, of servers that do not answer and keys that are wrong, as OSError.

    FileNotFoundError is for files that are to be read; elsewhere it means that the store itself is not there, as with a
    bucket that nobody made.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and (may_be_missing or not isinstance(error, FileNotFoundError)):
            raise
        raise OSError(f"{type(error).__name__}: {error}") from error


def _is_local(fs: Any) -> bool:
    return bool(getattr(fs, "local_file", False))


def _sync_directory(path: str) -> None:
    """Until then a new name may be gone after a loss of power, though the bytes behind it are not."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _part(path: str) -> str:
    return f"{path}.part"
