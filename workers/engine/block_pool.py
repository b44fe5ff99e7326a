"""The blocks of the device: how often each is referenced, which are free, and which can be found by their content."""

from collections import OrderedDict, deque

from workers.engine.host_tier import HostTier


class BlockPool:
    """Every block is held, by one or more block tables, or free. A key names what a full block holds.

    A block keeps its key when it is freed, until another takes it over: blank blocks go first, then those with a key,
    the least recently used first. What is taken over goes to the host tier.
    """

    def __init__(self, num_blocks: int, host: HostTier) -> None:
        self.num_evictions = 0
        self._host = host
        self._ref_counts = [0] * num_blocks
        self._blank = deque(range(num_blocks))  # free, without a key
        self._cached: OrderedDict[int, None] = OrderedDict()  # free, with a key; the least recently used first
        self._blocks: dict[bytes, int] = {}  # by key
        self._keys: dict[int, bytes] = {}  # by block

    @property
    def num_free(self) -> int:
        return len(self._blank) + len(self._cached)

    @property
    def num_keys(self) -> int:
        return len(self._blocks)

    def is_free(self, block_id: int) -> bool:
        return self._ref_counts[block_id] == 0

    def is_writable(self, block_id: int) -> bool:
        """Whether its one holder may write to it: nobody else reads it, and nobody finds it."""
        return self._ref_counts[block_id] == 1 and block_id not in self._keys

    def take(self) -> int:
        """A free block, held once from now on, whose content may be overwritten by the next batch."""
        if self._blank:
            block_id = self._blank.popleft()
        else:
            block_id, _ = self._cached.popitem(last=False)
            self._host.offload(self._forget(block_id), block_id)
            self.num_evictions += 1
        self._ref_counts[block_id] = 1
        return block_id

    def hold(self, block_id: int) -> None:
        """One more reference to a block that is held or has a key."""
        if self._ref_counts[block_id] == 0:
            del self._cached[block_id]
        self._ref_counts[block_id] += 1

    def drop(self, block_id: int) -> None:
        """One reference less."""
        assert self._ref_counts[block_id] > 0, f"block {block_id} is released twice"
        self._ref_counts[block_id] -= 1
        if self._ref_counts[block_id]:
            return
        if block_id in self._keys:
            self._cached[block_id] = None
        else:
            self._host.cancel_load(block_id)
            self._blank.append(block_id)

    def block_of(self, key: bytes) -> int | None:
        return self._blocks.get(key)

    def publish(self, key: bytes, block_id: int) -> None:
        """Let a held block be found under `key`. A key that another block has stays with that one."""
        if key not in self._blocks:
            assert block_id not in self._keys, f"block {block_id} has another key"
            self._blocks[key] = block_id
            self._keys[block_id] = key

    def revoke(self, key: bytes) -> None:
        """Let no block be found under `key` any more."""
        block_id = self._blocks.get(key)
        if block_id is None:
            return
        self._forget(block_id)
        if block_id in self._cached:
            del self._cached[block_id]
            self._blank.append(block_id)

    def check_invariants(self, counts: list[int]) -> None:
        """Assert that references, free blocks and keys agree, given how often block tables name each block."""
        assert counts == self._ref_counts, "reference counts differ from the block tables"
        free = sorted([*self._blank, *self._cached])
        assert free == [block_id for block_id, count in enumerate(counts) if count == 0], "free blocks differ"
        assert {block_id: key for key, block_id in self._blocks.items()} == self._keys, "keys and blocks differ"
        assert not self._keys.keys() & set(self._blank), "a blank block has a key"
        assert self._cached.keys() <= self._keys.keys(), "a cached block has no key"

    def _forget(self, block_id: int) -> bytes:
        key = self._keys.pop(block_id)
        del self._blocks[key]
        return key
