"""Blocks in a directory, below host memory: one file a block, read and written on a thread of its own."""

import logging
import threading
import time
from collections import deque
from pathlib import Path

from workers.engine.block_file import (
    NUM_HEADER_BYTES,
    SUFFIX,
    UNFINISHED_SUFFIX,
    BadBlockFile,
    block_path,
    key_of,
    read_block,
    write_block,
)
from workers.engine.eviction import PolicyName, make_eviction_policy

MAX_WAITING_WRITES = 64  # blocks in memory that the disk has yet to take; what comes beyond is not kept
PATIENCE_SECONDS = 2.0  # with a read; a disk may hang, and computing takes seconds too

log = logging.getLogger(__name__)


class DiskTier:
    """A directory of blocks, bounded in bytes. What is there of the same layout at the start is found again.

    No method but `wait` and `close` waits for the disk. Whatever fails, a full or lost disk or a damaged file, is a
    block that is not there. Other files in the directory are left alone. `layout` says all that payloads depend on
    beside their keys: weights, shape, dtype.
    """

    def __init__(self, directory: Path, *, max_bytes: int, layout: bytes, policy: PolicyName = "lru") -> None:
        self.directory = directory
        self.max_bytes = max_bytes
        self.layout = layout
        self.num_bytes = 0  # of all files; written by the thread only
        self.num_failures = 0  # written by the thread only
        self._evictable = make_eviction_policy(policy)  # used by the thread only
        self._sizes: dict[bytes, int] = {}  # bytes of the files that are there; written by the thread only
        self._num_uses: dict[bytes, int] = {}  # written by the thread only
        # Under `_changed`, which is notified of each change, from here on.
        self._changed = threading.Condition()
        self._reads: deque[bytes] = deque()
        self._reading: dict[bytes, float] = {}  # until when each is waited for, in time.monotonic(); the oldest first
        self._writes: dict[bytes, bytes] = {}  # the oldest first
        self._removals: deque[bytes] = deque()
        self._ended: list[tuple[bytes, bool]] = []  # what `poll` will say
        self._payloads: dict[bytes, bytearray] = {}  # read, not taken yet
        self._is_busy = True  # with something that is in none of the queues, the first look around to begin with
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="disk-tier", daemon=True)
        self._thread.start()

    def has(self, key: bytes) -> bool:
        """Whether there is a file of the block, or soon will be."""
        return key in self._sizes or key in self._writes

    def prefetch(self, key: bytes) -> None:
        """Start to read a block; `poll` tells of its end."""
        with self._changed:
            self._reads.append(key)
            self._reading[key] = time.monotonic() + PATIENCE_SECONDS
            self._changed.notify_all()

    def poll(self) -> list[tuple[bytes, bool]]:
        """The keys whose reading has ended since the last call, and whether there is a payload to be taken."""
        if not self._ended and not self._reading:
            return []
        with self._changed:
            now = time.monotonic()
            for key in [key for key, deadline in self._reading.items() if deadline < now]:
                self._end_read(key, None)
            ended, self._ended = self._ended, []
        return ended

    def wait(self, timeout: float) -> None:
        """Block until `poll` has something to tell, for `timeout` seconds at most."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended, timeout)

    def take(self, key: bytes) -> bytearray:
        """What was read of a block, once."""
        with self._changed:
            return self._payloads.pop(key)

    def discard(self, key: bytes) -> None:
        """Nobody will take what was read of a block."""
        with self._changed:
            self._payloads.pop(key, None)

    def write(self, key: bytes, payload: bytes) -> None:
        """Start to write a block. It is dropped if the disk is too far behind."""
        with self._changed:
            if len(self._writes) < MAX_WAITING_WRITES:
                self._writes[key] = payload
                self._changed.notify_all()

    def revoke(self, key: bytes) -> None:
        """Start to remove a block."""
        with self._changed:
            self._writes.pop(key, None)
            self._removals.append(key)
            self._changed.notify_all()

    def wait_until_idle(self, timeout: float) -> bool:
        """Whether everything that was asked for is done, within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(self._is_idle, timeout)

    def close(self) -> None:
        """Write what still waits to be written, and end the thread; a disk that hangs is left behind."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(PATIENCE_SECONDS)

    def _is_idle(self) -> bool:
        return not (self._is_busy or self._reads or self._writes or self._removals)

    def _run(self) -> None:
        self._look_around()
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._is_closing or not self._is_idle())
                if self._is_idle():
                    return
                self._is_busy = True
            self._work()

    def _work(self) -> None:
        """One thing: a read, which somebody waits for, before a write."""
        if self._removals:
            self._remove(self._removals.popleft())
        elif self._reads:
            self._read(self._reads.popleft())
        else:
            with self._changed:
                key, payload = next(iter(self._writes.items()))
            self._write(key, payload)
            with self._changed:
                self._writes.pop(key, None)

    def _look_around(self) -> None:
        """Find the blocks of an earlier run, the oldest first, and remove what it left unfinished."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            for path in self.directory.glob(f"*{UNFINISHED_SUFFIX}"):
                path.unlink(missing_ok=True)
            found = [self._recognize(path) for path in self.directory.glob(f"*{SUFFIX}")]
            for _, key, num_bytes in sorted(each for each in found if each is not None):
                self._enter(key, num_bytes)
            self._make_room(0)
        except OSError as error:
            self._fail("cannot use the directory of KV blocks", error)

    def _recognize(self, path: Path) -> tuple[float, bytes, int] | None:
        """When a block of this layout was written, its key and the bytes of its file; None for any other file."""
        try:
            if not path.is_file():
                return None
            key, stat = key_of(path, layout=self.layout), path.stat()
        except BadBlockFile:
            path.unlink(missing_ok=True)
            return None
        except OSError as error:  # another worker's, gone meanwhile, or one that this user may not read
            self._fail("cannot read a KV block", error)
            return None
        return (stat.st_mtime, key, stat.st_size) if key is not None else None

    def _read(self, key: bytes) -> None:
        payload = None
        try:
            payload = read_block(self.directory, key, layout=self.layout)
            self._enter(key, len(payload) + NUM_HEADER_BYTES)
        except (OSError, BadBlockFile, MemoryError) as error:
            payload = self._written(key)
            if payload is None:
                self._fail("lost a KV block", error)
                self._remove(key)
        with self._changed:
            if key in self._reading:  # else nobody waits any longer
                self._end_read(key, payload)

    def _end_read(self, key: bytes, payload: bytearray | None) -> None:
        del self._reading[key]
        if payload is not None:
            self._payloads[key] = payload
        self._ended.append((key, payload is not None))
        self._changed.notify_all()

    def _written(self, key: bytes) -> bytearray | None:
        """The payload of a block that is still to be written."""
        payload = self._writes.get(key)
        return None if payload is None else bytearray(payload)

    def _write(self, key: bytes, payload: bytes) -> None:
        num_bytes = len(payload) + NUM_HEADER_BYTES
        if key in self._sizes or num_bytes > self.max_bytes:
            return
        try:
            self._make_room(num_bytes)
            write_block(self.directory, key, payload, layout=self.layout)
        except OSError as error:
            self._fail("cannot write a KV block", error)
        else:
            self._enter(key, num_bytes)

    def _make_room(self, num_bytes: int) -> None:
        while self.num_bytes + num_bytes > self.max_bytes:
            key = self._evictable.pop()
            assert key is not None, "files without an order"
            self._forget(key)

    def _enter(self, key: bytes, num_bytes: int) -> None:
        """Count a file that is there, or one use more of it."""
        if key in self._sizes:
            self._evictable.remove(key)
        self.num_bytes += num_bytes - self._sizes.get(key, 0)
        self._sizes[key] = num_bytes
        self._num_uses[key] = self._num_uses.get(key, 0) + 1
        self._evictable.add(key, self._num_uses[key])

    def _remove(self, key: bytes) -> None:
        if key in self._sizes:
            self._evictable.remove(key)
            self._forget(key)

    def _forget(self, key: bytes) -> None:
        self.num_bytes -= self._sizes.pop(key)
        del self._num_uses[key]
        try:
            block_path(self.directory, key).unlink(missing_ok=True)
        except OSError as error:
            self._fail("cannot remove a KV block", error)

    def _fail(self, message: str, error: Exception) -> None:
        self.num_failures += 1
        if self.num_failures.bit_count() == 1:  # a broken disk would fail thousands of times
            log.warning(message, extra={"directory": str(self.directory), "error": repr(error)})
