"""The bytes of files, under one root: a directory, or any URL that fsspec knows, such as s3://bucket/headrace.

Everything here blocks, so event loops call it on threads. Who may see a file is for its row to say.
"""

import os
from collections.abc import Sequence
from typing import Any, BinaryIO
from uuid import UUID

from fsspec.core import url_to_fs

CHUNK_BYTES = 1024 * 1024  # read or written at once: what a file takes of the memory, whatever its size


class FileStore:
    """Writes, reads and removes files by their URLs. Raises OSError where the store does not do it."""

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/")

    def url_of(self, file_id: UUID) -> str:
        """Where the file goes."""
        return f"{self._root}/{file_id.hex}"

    def create(self, url: str) -> "NewFile":
        """A file to be written, or written again."""
        return NewFile(url)

    def copy(self, source: BinaryIO, url: str) -> int:
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

    def open(self, url: str) -> BinaryIO:
        """The file, to be read; FileNotFoundError when it is not there."""
        fs, path = url_to_fs(url)
        file: BinaryIO = fs.open(path, "rb")
        return file

    def ranges(self, url: str, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """Parts of the file, each given by its first byte and its length."""
        fs, path = url_to_fs(url)
        starts, ends = [first for first, _ in places], [first + length for first, length in places]
        parts: list[bytes] = fs.cat_ranges([path] * len(places), starts, ends, on_error="raise")
        return parts

    def delete(self, url: str) -> None:
        """Remove the file; nothing when it is gone already."""
        fs, path = url_to_fs(url)
        for name in (path, *([_part(path)] if _is_local(fs) else [])):
            try:
                fs.rm(name)
            except FileNotFoundError:
                continue


class NewFile:
    """A file on its way: none of it is at the URL before `commit`. In a directory, it is on the disk after that."""

    def __init__(self, url: str) -> None:
        self._fs, self._path = url_to_fs(url)
        self._is_local = _is_local(self._fs)
        if self._is_local:
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            self._file: Any = open(_part(self._path), "wb")  # noqa: SIM115  # closed by one of the two below
        else:
            self._file = self._fs.open(self._path, "wb")

    def write(self, data: bytes) -> None:
        """Add to its end."""
        self._file.write(data)

    def commit(self) -> None:
        """Put it where it belongs, in place of what was there."""
        if self._is_local:
            self._file.flush()
            os.fsync(self._file.fileno())
        self._file.close()  # object stores show an object when it is closed
        if self._is_local:
            os.replace(_part(self._path), self._path)

    def discard(self) -> None:
        """Leave nothing behind."""
        self._file.close()
        name = _part(self._path) if self._is_local else self._path
        if self._fs.exists(name):
            self._fs.rm(name)


def _is_local(fs: Any) -> bool:
    return bool(getattr(fs, "local_file", False))


def _part(path: str) -> str:
    return f"{path}.part"
