"""What a worker's jobs say, in a file of the worker, before it is told: for the day on which Redis dies with it.

One write() a round and no fsync: what a killed process has written stays in the kernel's page cache. What a lost host
had not put on its disk yet is lost. Nobody on another host sees the file; there the streams alone tell.
"""

import errno
import json
import logging
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from uuid import UUID

from db.settings import Settings
from db.stream import Append
from db.tokens import Token, decode, encode
from workers.held import HeldJob, HeldJobs
from workers.outage import Outage

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
REWRITE_BYTES = 8 * 2**20  # a file beyond this begins again with what the jobs that are still held have
KEY_LENGTH = 35  # bytes at the beginning of a line, by which its job is known
NEW = ".new"  # a file that is about to take the place of another


def directory_of(settings: Settings) -> Path:
    """Where this host's journals are, one file a worker id."""
    return settings.data_dir / "run" / "journal"


class Journal:
    """The streamer's; used by its thread only. What the disk refuses is missing here, and holds up nothing.

    A worker that lost its lease goes on under a new id, and so in a new file.
    """

    def __init__(self, directory: Path, held_jobs: HeldJobs, *, rewrite_bytes: int = REWRITE_BYTES) -> None:
        """`directory` is made when there is something to write; `held_jobs` are what a file that is too long keeps."""
        self._directory = directory
        self._held_jobs = held_jobs
        self._rewrite_bytes = rewrite_bytes
        self._limit = rewrite_bytes  # bytes; twice what the file began again with, where that is more
        self._worker_id: UUID | None = None  # whose file is open
        self._file = -1  # its descriptor
        self._size = 0  # bytes
        self._is_torn = False  # it may end within a line
        self._outage = Outage(log, "tokens are not journaled; should this worker and Redis die together, they are lost")
        self._retry_at = 0.0  # monotonic

    def write(self, appends: Mapping[HeldJob, Append]) -> None:
        """Note what is about to be appended to the streams of these jobs."""
        if monotonic() < self._retry_at:
            return
        try:
            for worker_id in {held.worker_id for held in appends}:
                self._use(worker_id)
                self._write({held: append for held, append in appends.items() if held.worker_id == worker_id})
                self._outage.over()
        except OSError as error:
            self._outage.seen(error)
            self._retry_at = monotonic() + RETRY_SECONDS

    def close(self) -> None:
        """Close the file, which stays."""
        if self._worker_id is not None:
            os.close(self._file)
            self._worker_id = None

    def _use(self, worker_id: UUID) -> None:
        if worker_id == self._worker_id:
            return
        self.close()
        self._directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory.mkdir(mode=0o700, exist_ok=True)  # it holds users' texts
        self._file = _open(self._directory / worker_id.hex)
        self._worker_id = worker_id
        self._size, self._limit = os.fstat(self._file).st_size, self._rewrite_bytes
        self._is_torn = self._size > 0  # for all we know

    def _write(self, appends: Mapping[HeldJob, Append]) -> None:
        if self._size > self._limit:
            self._begin_again()
        ends = {held: append.first_index + len(append.tokens) for held, append in appends.items()}
        new = [held for held, end in ends.items() if end > held.num_journaled]
        if new:
            self._put("".join(_line_of(held, appends[held]) for held in new).encode())
        for held in new:
            held.num_journaled = ends[held]

    def _put(self, data: bytes) -> None:
        if self._is_torn:
            data = b"\n" + data
        self._is_torn = True
        _write_all(self._file, data)
        self._is_torn = False
        self._size += len(data)

    def _begin_again(self) -> None:
        """Replace the file by one with the lines of the jobs that are still held: copied, as encoding takes longer."""
        assert self._worker_id is not None
        held_keys = {_key(held).encode() for held in self._held_jobs.snapshot()}
        lines = os.pread(self._file, os.fstat(self._file).st_size, 0).splitlines(keepends=True)
        data = b"".join(line for line in lines if line[:KEY_LENGTH] in held_keys)
        file = _replace(self._directory / self._worker_id.hex, data)
        os.close(self._file)
        self._file, self._size = file, len(data)
        self._limit = max(self._rewrite_bytes, 2 * self._size)


def read(directory: Path, worker_id: UUID) -> dict[tuple[UUID, int], list[Token]]:
    """What the worker's journal has of each (job, attempt), from the first token on; nothing where there is no file.

    A line may be torn, where the writer died or the disk was full; what does not follow on what is there is left out.
    """
    found: dict[tuple[UUID, int], list[Token]] = {}
    try:
        lines = (directory / worker_id.hex).read_bytes().split(b"\n")
    except FileNotFoundError:
        return {}
    except OSError as error:
        log.warning("a journal cannot be read: %s", error, extra={"worker_id": str(worker_id)})
        return {}
    for line in lines:
        with suppress(ValueError, TypeError):  # of a torn one
            job_id, attempt, first_index, entries = json.loads(line)
            tokens = found.setdefault((UUID(hex=job_id), attempt), [])
            if first_index <= len(tokens):
                added = decode(entries)
                tokens[first_index : first_index + len(added)] = added
    return found


def writers(directory: Path) -> set[UUID]:
    """The workers that have files here."""
    found: set[UUID] = set()
    try:
        for path in directory.iterdir():
            with suppress(ValueError):  # of a file that is none of ours
                found.add(UUID(hex=path.stem))
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("journals cannot be listed: %s", error)
    return found


def remove(directory: Path, worker_ids: Collection[UUID]) -> None:
    """Remove these workers' files."""
    for worker_id in worker_ids:
        path = directory / worker_id.hex
        try:
            path.unlink(missing_ok=True)
            path.with_suffix(NEW).unlink(missing_ok=True)
        except OSError as error:
            log.warning("a journal cannot be removed: %s", error, extra={"worker_id": str(worker_id)})


def _line_of(held: HeldJob, append: Append) -> str:
    """The append, and with the first one what earlier attempts, or a disk that was full, left out before it."""
    if append.first_index <= held.num_journaled:
        return _line(held, append.first_index, append.payload)
    tokens = held.tokens[held.num_journaled : append.first_index + len(append.tokens)]
    return _line(held, held.num_journaled, encode(tokens))


def _line(held: HeldJob, first_index: int, payload: str) -> str:
    return f"{_key(held)},{held.claimed.attempt},{first_index},{payload}]\n"


def _key(held: HeldJob) -> str:
    """The beginning of the job's lines."""
    return f'["{held.job_id.hex}"'


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, mode=0o600)


def _replace(path: Path, data: bytes) -> int:
    """Put a file with this content in the place of that one, all at once. Returns its descriptor."""
    new_path = path.with_suffix(NEW)
    new_path.unlink(missing_ok=True)
    file = _open(new_path)
    try:
        _write_all(file, data)
        new_path.replace(path)
    except OSError:
        os.close(file)
        new_path.unlink(missing_ok=True)
        raise
    return file


def _write_all(file: int, data: bytes) -> None:
    if os.write(file, data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
