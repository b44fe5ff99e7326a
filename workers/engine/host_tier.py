"""What host memory holds of the blocks that the device gave up. Knows keys and slots, never tensors."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from workers.engine.eviction import PolicyName, make_eviction_policy
from workers.engine.moves import Moves


class Disk(Protocol):
    """What the host tier asks of the tier below it; `DiskTier` is the one there is. Nothing here waits for a disk."""

    def has(self, key: bytes) -> bool: ...

    def prefetch(self, key: bytes) -> None:
        """Start to read the block."""
        ...

    def poll(self) -> list[tuple[bytes, bool]]:
        """The keys whose reading has ended since the last call, and whether there is something to fill a slot with."""
        ...

    def discard(self, key: bytes) -> None:
        """Nobody will fill a slot with what was read."""
        ...

    def revoke(self, key: bytes) -> None:
        """Never give this block again."""
        ...

    def close(self) -> None: ...


class State(Enum):
    """Where a slot's content is."""

    READING = "reading"  # on its way from disk
    QUEUED = "queued"  # written by a move of the next batch, whose loads come after it
    FLYING = "flying"  # written by a step that has not retired
    LANDED = "landed"


@dataclass(slots=True)
class _Entry:
    slot: int
    state: State
    num_uses: int = 1
    num_holds: int = 1  # until the content has landed; then pins and loads that are not taken yet
    is_void: bool = False  # its content must not be used; goes with the last hold


class HostTier:
    """Keys and host slots, one to one. What is not held may be evicted, to disk if there is one.

    It queues the moves between the tiers. A slot that is the source of a queued load is held until the moves are
    taken; one that is written is held until the step that writes it has retired.
    """

    def __init__(self, num_slots: int = 0, *, policy: PolicyName = "lru", disk: Disk | None = None) -> None:
        self.num_slots = num_slots
        self.num_offloaded_blocks = 0
        self.num_loaded_blocks = 0
        self._disk = disk
        self._evictable = make_eviction_policy(policy)
        self._free = list(range(num_slots))
        self._entries: dict[bytes, _Entry] = {}
        self._keys: dict[int, bytes] = {}  # by slot
        self._used: list[bytes] = []  # held by loads until the moves are taken
        self._moves = Moves()
        self._loads: dict[int, int] = {}  # block -> slot

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def has_disk(self) -> bool:
        return self._disk is not None

    def has(self, key: bytes) -> bool:
        """Whether a load of the next batch would find the block."""
        entry = self._entries.get(key)
        return entry is not None and not entry.is_void and entry.state in (State.LANDED, State.QUEUED)

    def is_on_its_way(self, key: bytes) -> bool:
        entry = self._entries.get(key)
        return entry is not None and not entry.is_void and entry.state in (State.READING, State.FLYING)

    def offload(self, key: bytes, block_id: int) -> bool:
        """Keep the content of a block that the device may give up; False if nothing here may go for it."""
        if key in self._entries:
            self._touch(key)
            return not self._entries[key].is_void
        entry = self._enter(key, State.QUEUED)
        if entry is None:
            return False
        self._moves.offloads.append((block_id, entry.slot))
        self.num_offloaded_blocks += 1
        return True

    def use(self, key: bytes) -> None:
        """Hold the block, which is to be loaded by the next batch."""
        self.pin(key)
        self._entries[key].num_uses += 1
        self._used.append(key)

    def load(self, key: bytes, block_id: int) -> None:
        """Bring a block that `use` holds to the device."""
        self._loads[block_id] = self._entries[key].slot

    def cancel_load(self, block_id: int) -> None:
        """The block was given up before it was loaded."""
        self._loads.pop(block_id, None)

    def pin(self, key: bytes) -> None:
        """Keep the block until as many `unpin` as `pin` have been called."""
        entry = self._entries[key]
        if not entry.num_holds:
            self._evictable.remove(key)
        entry.num_holds += 1

    def unpin(self, key: bytes) -> None:
        entry = self._entries[key]
        assert entry.num_holds > 0, "a block is unpinned twice"
        entry.num_holds -= 1
        if entry.num_holds == 0:
            self._end_hold(key, entry)

    def prefetch(self, key: bytes) -> bool:
        """Start to bring a block up from disk; False if it is not there, or nothing here may go for it."""
        if key in self._entries:
            return not self._entries[key].is_void
        if self._disk is None or not self._disk.has(key) or self._enter(key, State.READING) is None:
            return False
        self._disk.prefetch(key)
        return True

    def poll(self) -> None:
        """Queue what has been read from disk since the last call."""
        if self._disk is None:
            return
        for key, is_good in self._disk.poll():
            entry = self._entries[key]
            if is_good and not entry.is_void:
                entry.state = State.QUEUED
                self._moves.fills.append((key, entry.slot))
                continue
            self._land(entry, is_good=False)
            self._disk.discard(key)

    def close(self) -> None:
        if self._disk is not None:
            self._disk.close()

    def revoke(self, key: bytes) -> None:
        """Never give this block again, from here or from disk: its content is not what the key says."""
        if self._disk is not None:
            self._disk.revoke(key)
        entry = self._entries.get(key)
        if entry is not None:
            entry.is_void = True
            if not entry.num_holds:
                self._evictable.remove(key)
                self._end_hold(key, entry)

    def take_moves(self) -> Moves:
        """What the next batch must execute."""
        moves, self._moves = self._moves, Moves()
        moves.loads = [(slot, block_id) for block_id, slot in self._loads.items()]
        self.num_loaded_blocks += len(moves.loads)
        self._loads = {}
        for slot in _written(moves):
            self._entries[self._keys[slot]].state = State.FLYING
        used, self._used = self._used, []
        for key in used:
            self.unpin(key)
        return moves

    def land(self, moves: Moves) -> None:
        """The step that was to execute `moves` is over; what they wrote can be used if it did execute them.

        A step that computes again for a part of a failed one brings the same moves; they land once.
        """
        if moves.is_landed:
            return
        moves.is_landed = True
        for slot in _written(moves):
            self._land(self._entries[self._keys[slot]], is_good=moves.is_done)
        if not moves.is_done and self._disk is not None:
            for key, _ in moves.fills:
                self._disk.discard(key)

    def check_invariants(self, pins: Iterable[bytes]) -> None:
        """Assert that slots, keys and holds agree, given every pin that others hold."""
        slots = {entry.slot: key for key, entry in self._entries.items()}
        assert slots == self._keys and len(slots) == len(self._entries), "host slots and keys differ"
        assert sorted([*slots, *self._free]) == list(range(self.num_slots)), "host slots are lost or shared"
        num_holds = Counter([*pins, *self._used])
        num_holds.update(key for key, entry in self._entries.items() if entry.state is not State.LANDED)
        holds = {key: entry.num_holds for key, entry in self._entries.items() if entry.num_holds}
        assert holds == num_holds, "host blocks are held by nobody, or not held by somebody"

    def _enter(self, key: bytes, state: State) -> _Entry | None:
        """An entry for a new key, held until its content has landed; None if nothing may go for it."""
        slot = self._free.pop() if self._free else self._evict()
        if slot is None:
            return None
        self._keys[slot] = key
        entry = self._entries[key] = _Entry(slot, state)
        return entry

    def _evict(self) -> int | None:
        """The slot of the block that goes first, which goes to disk if there is one."""
        key = self._evictable.pop()
        if key is None:
            return None
        slot = self._entries.pop(key).slot
        if self._disk is not None and not self._disk.has(key):
            self._moves.spills.append((slot, key))
        return slot

    def _touch(self, key: bytes) -> None:
        entry = self._entries[key]
        entry.num_uses += 1
        if not entry.num_holds:
            self._evictable.remove(key)
            self._evictable.add(key, entry.num_uses)

    def _land(self, entry: _Entry, *, is_good: bool) -> None:
        entry.state = State.LANDED
        entry.is_void = entry.is_void or not is_good
        self.unpin(self._keys[entry.slot])

    def _end_hold(self, key: bytes, entry: _Entry) -> None:
        if not entry.is_void:
            self._evictable.add(key, entry.num_uses)
            return
        del self._entries[key], self._keys[entry.slot]
        self._free.append(entry.slot)


def _written(moves: Moves) -> list[int]:
    """The host slots that these moves write."""
    return [slot for _, slot in moves.fills] + [slot for _, slot in moves.offloads]
