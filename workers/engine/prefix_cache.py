"""Which sequences share which prefixes: keys looked up, announced while they are computed, published when they are."""

from dataclasses import replace

from workers.engine.block_pool import BlockPool
from workers.engine.cache_stats import CacheStats
from workers.engine.chain import Chain
from workers.engine.host_tier import HostTier
from workers.engine.sequence import Sequence


class PrefixCache:
    """Finds the blocks of a sequence by their content, on the device, in host memory and on disk."""

    def __init__(self, pool: BlockPool, host: HostTier, *, block_size: int, layout: bytes, is_caching: bool) -> None:
        self._pool = pool
        self._host = host
        self._block_size = block_size
        self._layout = layout  # of the KV cache, with the epoch of the weights
        self._is_caching = is_caching
        self._chains: dict[Sequence, Chain] = {}  # from a sequence's first look-up until its end
        self._announced: dict[bytes, Sequence] = {}  # by the running sequence that will publish the key
        self._stats = CacheStats()

    @property
    def stats(self) -> CacheStats:
        """A copy, as of now."""
        return replace(
            self._stats,
            evictions=self._pool.num_evictions,
            offloaded_blocks=self._host.num_offloaded_blocks,
            loaded_blocks=self._host.num_loaded_blocks,
        )

    def chain(self, sequence: Sequence) -> Chain:
        chain = self._chains.get(sequence)
        if chain is None:
            chain = self._chains[sequence] = Chain(sequence, block_size=self._block_size, layout=self._layout)
        return chain

    def match(self, sequence: Sequence) -> list[int | None]:
        """The blocks of the longest prefix that can be had now; None for one that must be loaded from the host.

        At least one token is left to compute: the logits of the next one come from computing it.
        """
        chain = self.chain(sequence)
        hits: list[int | None] = []
        for index in range(self._num_matchable(sequence)):
            key = chain.key(index)
            block_id = self._pool.block_of(key)
            if block_id is None and not self._host.has(key):
                break
            hits.append(block_id)
        return hits

    def is_being_computed(self, sequence: Sequence) -> bool:
        """Whether a running sequence computes, or loads, the first block that `sequence` misses."""
        chain = self.chain(sequence)
        for index in range(self._num_matchable(sequence)):
            key = chain.key(index)
            if self._pool.block_of(key) is None:
                if key in self._announced:
                    return True
                if not self._host.has(key):
                    return False
        return False

    def prefetch(self, sequence: Sequence) -> bool:
        """Whether blocks of `sequence` are on their way up from disk; the first call of each wait sends for them.

        What cannot be read, or has no room in host memory, is not waited for.
        """
        if not self._is_caching or not self._host.has_disk:
            return False
        self._host.poll()
        chain = self.chain(sequence)
        if not chain.was_prefetched:
            chain.was_prefetched = True
            self._send_for(sequence, chain)
        return any(map(self._host.is_on_its_way, chain.pins))

    def start(self, sequence: Sequence, hits: list[int | None]) -> None:
        """`sequence` runs from now on: count its hits, and announce the full blocks that it will publish."""
        chain = self.chain(sequence)
        sequence.num_computed_tokens = len(hits) * self._block_size
        if not chain.was_admitted:
            sequence.num_cached_tokens = min(sequence.num_computed_tokens, sequence.num_prompt_tokens)
        chain.was_admitted = True
        self._count(sequence, chain, hits)
        self._unpin(chain)
        # A loaded block is published as a computed one is, when the step that loads it has retired.
        chain.num_published = hits.index(None) if None in hits else len(hits)
        if self._is_caching:
            for index in range(chain.num_published, sequence.num_tokens // self._block_size):
                self._announced.setdefault(chain.key(index), sequence)

    def publish(self, sequence: Sequence) -> None:
        """Let the blocks that retired steps have filled be found by their content."""
        num_full = sequence.num_computed_tokens // self._block_size
        chain = self._chains[sequence]
        if num_full <= chain.num_published or not self._is_caching:
            return
        for index in range(chain.num_published, num_full):
            key = chain.key(index)
            self._announced.pop(key, None)
            self._pool.publish(key, sequence.block_table[index])
        chain.num_published = num_full

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """`child` starts with tokens of `parent`; it need not hash them again."""
        chain, num_full = self.chain(parent), child.num_computed_tokens // self._block_size
        self.chain(child).keys[:] = chain.keys[:num_full]
        self.chain(child).num_published = min(chain.num_published, num_full)

    def keep(self, sequence: Sequence) -> None:
        """Copy its published blocks to host memory and pin them there, from the first up to where the room ends."""
        chain = self.chain(sequence)
        for key, block_id in zip(chain.keys[: chain.num_published], sequence.block_table, strict=False):
            if not self._host.offload(key, block_id):
                break
            self._host.pin(key)
            chain.pins.append(key)

    def pause(self, sequence: Sequence) -> None:
        """`sequence` does not run any more; it may be looked up again."""
        chain = self._chains.get(sequence)
        if chain is None:
            return
        for key in chain.keys[chain.num_published :]:
            if self._announced.get(key) is sequence:
                del self._announced[key]
        chain.was_prefetched = False

    def end(self, sequence: Sequence) -> None:
        """Forget `sequence`, whatever it was doing; what it published stays."""
        self.pause(sequence)
        chain = self._chains.pop(sequence, None)
        if chain is not None:
            self._unpin(chain)

    def revoke(self, sequence: Sequence) -> None:
        """Let nobody find the blocks of `sequence` any more, in any tier: what they hold is not to be trusted."""
        for key in self.chain(sequence).keys:
            self._pool.revoke(key)
            self._host.revoke(key)

    def check_invariants(self) -> None:
        """Assert that announcements and pins belong to sequences that are known."""
        assert set(self._announced.values()) <= self._chains.keys(), "a key is announced by a sequence that is gone"
        self._host.check_invariants([key for chain in self._chains.values() for key in chain.pins])

    def _num_matchable(self, sequence: Sequence) -> int:
        return sequence.num_shareable_tokens // self._block_size if self._is_caching else 0

    def _count(self, sequence: Sequence, chain: Chain, hits: list[int | None]) -> None:
        loaded = [key for key, block_id in zip(chain.keys, hits, strict=False) if block_id is None]
        self._stats.lookups_tokens += sequence.num_tokens
        self._stats.hit_tokens += len(hits) * self._block_size
        self._stats.host_hit_tokens += len(loaded) * self._block_size
        self._stats.disk_hit_tokens += len(chain.read.intersection(loaded)) * self._block_size
        chain.read.clear()

    def _send_for(self, sequence: Sequence, chain: Chain) -> None:
        """Let the blocks that only the disk has come up, and keep them until `sequence` is admitted."""
        for index in range(self._num_matchable(sequence)):
            key = chain.key(index)
            if self._pool.block_of(key) is not None or self._host.has(key):
                continue
            if not self._host.prefetch(key):
                break
            self._host.pin(key)
            chain.pins.append(key)
            chain.read.add(key)

    def _unpin(self, chain: Chain) -> None:
        for key in chain.pins:
            self._host.unpin(key)
        chain.pins.clear()
