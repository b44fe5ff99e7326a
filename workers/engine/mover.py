"""Executes moves: copies whole blocks of the KV cache between device, host memory and disk."""

import time
from collections import deque
from typing import Protocol

import torch

from kernels import copy_blocks
from workers.engine.moves import Moves, MoveStats

NUM_MEASURED = 8  # blocks copied there and back to learn the rate


class Files(Protocol):
    """What the mover asks of the disk tier, which never keeps it waiting."""

    def take(self, key: bytes) -> bytearray: ...

    def write(self, key: bytes, payload: bytes) -> None: ...


class HostStore:
    """One block per slot in host memory, page-locked beside a GPU so that copies run at the full rate of the bus."""

    def __init__(self, kv_cache: torch.Tensor, num_slots: int) -> None:
        shape = (num_slots, *kv_cache.shape[1:])
        self.blocks = torch.empty(shape, dtype=kv_cache.dtype, pin_memory=kv_cache.is_cuda and num_slots > 0)
        self._bytes = self.blocks.view(torch.uint8).view(num_slots, kv_cache[0].nbytes)  # [num_slots, bytes per block]

    def read(self, slot: int) -> bytes:
        return bytes(self._bytes[slot].numpy().data)

    def write(self, slot: int, payload: bytearray) -> None:
        """Fill a slot. Raises ValueError if the payload is not one block."""
        if len(payload) != self._bytes.shape[1]:
            raise ValueError(f"a payload of {len(payload):,} bytes is not a block of {self._bytes.shape[1]:,}")
        self._bytes[slot] = torch.frombuffer(payload, dtype=torch.uint8)


class Mover:
    """Moves blocks of a KV cache [num_blocks, num_layers, 2, block_size, num_kv_heads, head_dim]."""

    def __init__(self, kv_cache: torch.Tensor, *, num_host_slots: int = 0, disk: Files | None = None) -> None:
        self.stats = MoveStats()
        self._kv_cache = kv_cache
        self._host = HostStore(kv_cache, num_host_slots)
        self._disk = disk
        self._timed: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()  # not over yet when they were queued
        # Of one copy between device and host, 0.0 where there is none. Measured before the cache has any content.
        self.seconds_per_block = self._measure() if num_host_slots else 0.0

    def run(self, moves: Moves) -> None:
        """Execute what has not been executed, in the order that `Moves` names, before anything else is computed."""
        if not moves or moves.is_done:
            return
        start = self._mark()
        self._exchange_with_disk(moves)
        for block_id, slot in moves.offloads:
            self._host.blocks[slot].copy_(self._kv_cache[block_id], non_blocking=True)
        copy_blocks(self._kv_cache, self._kv_cache, moves.copies)
        for slot, block_id in moves.loads:
            self._kv_cache[block_id].copy_(self._host.blocks[slot], non_blocking=True)
        moves.is_done = True
        self._count(moves, start)

    def _exchange_with_disk(self, moves: Moves) -> None:
        if not moves.spills and not moves.fills:
            return
        self._synchronize()  # Earlier copies from and to these slots may still be queued on a GPU.
        assert self._disk is not None, "moves to a disk that is not there"
        for slot, key in moves.spills:
            self._disk.write(key, self._host.read(slot))
        for key, slot in moves.fills:
            self._host.write(slot, self._disk.take(key))

    def _measure(self) -> float:
        """Seconds of one copy between device and host, blocks and slots in turn."""
        pairs = [(i % len(self._kv_cache), i % len(self._host.blocks)) for i in range(NUM_MEASURED)]
        for _ in range(2):  # the first round touches the pages
            self._synchronize()
            start = time.perf_counter()
            for block_id, slot in pairs:
                self._host.blocks[slot].copy_(self._kv_cache[block_id], non_blocking=True)
                self._kv_cache[block_id].copy_(self._host.blocks[slot], non_blocking=True)
            self._synchronize()
        return (time.perf_counter() - start) / (2 * NUM_MEASURED)

    def _count(self, moves: Moves, start: float | torch.cuda.Event) -> None:
        block_bytes = self._kv_cache[0].nbytes
        self.stats.offloaded_bytes += len(moves.offloads) * block_bytes
        self.stats.copied_bytes += len(moves.copies) * block_bytes
        self.stats.loaded_bytes += len(moves.loads) * block_bytes
        end = self._mark()
        if isinstance(start, float):
            assert isinstance(end, float)
            self.stats.seconds += end - start
        else:
            assert not isinstance(end, float)
            self._timed.append((start, end))
        while self._timed and self._timed[0][1].query():  # type: ignore[no-untyped-call]
            first, last = self._timed.popleft()
            self.stats.seconds += first.elapsed_time(last) / 1000

    def _mark(self) -> float | torch.cuda.Event:
        """Now, on the clock that the copies run by."""
        if not self._kv_cache.is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _synchronize(self) -> None:
        if self._kv_cache.is_cuda:
            torch.cuda.current_stream(self._kv_cache.device).synchronize()
