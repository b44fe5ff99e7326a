"""Who holds which block of the KV cache. Knows counts, keys and ids, never tensors."""

from collections.abc import Iterable

from workers.engine.block_pool import BlockPool
from workers.engine.cache_stats import CacheStats
from workers.engine.host_tier import HostTier
from workers.engine.moves import Moves
from workers.engine.prefix_cache import PrefixCache
from workers.engine.sequence import Sequence


class BlockManager:
    """Hands out fixed runs of KV slots, shares those of equal content, and keeps what admission promised.

    Every free block is available or reserved. A reservation is a number, not a set of blocks: a sequence is admitted
    with its whole prompt reserved, and takes the blocks one by one as its chunks run.

        [ held by block tables | reserved | available ]     sums to num_blocks
                               [ blank    |    cached ]     the same free blocks: without and with content to be found

    What is to be copied, between blocks and to and from the tiers below, is queued for the next batch as `Moves`.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        is_caching: bool = True,
        host: HostTier | None = None,
        layout: bytes = b"",
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_reserved = 0
        self._host = HostTier() if host is None else host
        self._pool = BlockPool(num_blocks, self._host)
        self._prefixes = PrefixCache(
            self._pool, self._host, block_size=block_size, layout=layout, is_caching=is_caching
        )
        self._copies: list[tuple[int, int]] = []

    @property
    def num_available(self) -> int:
        """Free blocks that nobody was promised."""
        return self._pool.num_free - self.num_reserved

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that can be found by their content, held or free."""
        return self._pool.num_keys

    @property
    def stats(self) -> CacheStats:
        """A copy, as of now."""
        return self._prefixes.stats

    def prefetch(self, sequence: Sequence) -> bool:
        """Whether blocks of `sequence` are on their way up from disk, so that its admission should wait for them."""
        return self._prefixes.prefetch(sequence)

    def close(self) -> None:
        """End what the tiers run beside the engine's thread."""
        self._host.close()

    def is_being_computed(self, sequence: Sequence) -> bool:
        """Whether the first block that `sequence` misses will soon be there: a running sequence computes it."""
        return self._prefixes.is_being_computed(sequence)

    def admit(self, sequence: Sequence, *, leave: int) -> bool:
        """Take the longest cached prefix and promise blocks for the rest of the tokens; else change nothing.

        `leave` other blocks stay available. What was found counts as computed.
        """
        assert not sequence.block_table and not sequence.num_reserved_blocks, sequence.id
        hits = self._prefixes.match(sequence)
        num_needed = self._blocks_of(sequence.num_tokens)
        num_shared = sum(block_id is not None and not self._pool.is_free(block_id) for block_id in hits)
        if num_needed - num_shared + leave > self.num_available:
            return False
        self._claim(sequence, hits)
        self._promise(sequence, num_needed - len(hits))
        self._prefixes.start(sequence, hits)
        return True

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """Let `sequence` write its tokens from the first one not started up to `num_tokens`; else change nothing.

        The block table grows, from the reservation first. A block that others hold too is replaced by a copy before
        the sequence writes behind what they share; the last holder writes in place.
        """
        block_table = sequence.block_table
        block_size, start = self.block_size, sequence.num_computed_tokens + sequence.num_flying_tokens
        column = start // block_size
        is_shared = start % block_size > 0 and not self._pool.is_writable(block_table[column])
        if num_tokens <= len(block_table) * block_size and not is_shared:
            return True
        num_new = max(0, self._blocks_of(num_tokens) - len(block_table))
        num_promised = min(num_new, sequence.num_reserved_blocks)
        if num_new + is_shared - num_promised > self.num_available:
            return False
        self._promise(sequence, -num_promised)
        if is_shared:
            self._copy(block_table, column)
        block_table.extend(self._pool.take() for _ in range(num_new))
        return True

    def publish(self, sequence: Sequence) -> None:
        """Let the blocks that a retired step has filled be found by their content; a key's first block keeps it."""
        self._prefixes.publish(sequence)

    def fork(self, parent: Sequence, child: Sequence, *, num_computed_tokens: int | None = None) -> None:
        """Let `child` start with the first `num_computed_tokens` tokens of `parent`, by default all that it computed.

        They share the blocks, a partial last one included. The child was promised nothing.
        """
        assert not child.block_table and child.salt == parent.salt, child.id
        num_tokens = parent.num_computed_tokens if num_computed_tokens is None else num_computed_tokens
        assert num_tokens <= parent.num_computed_tokens, parent.id
        child.num_computed_tokens = num_tokens
        child.block_table.extend(parent.block_table[: self._blocks_of(num_tokens)])
        for block_id in child.block_table:
            self._pool.hold(block_id)
        self._prefixes.fork(parent, child)

    def release(self, sequence: Sequence) -> None:
        """Take back everything `sequence` holds or was promised, at its end, wherever that finds it."""
        self._free(sequence)
        self._prefixes.end(sequence)

    def preempt(self, sequence: Sequence, *, to_host: bool) -> None:
        """Take back everything `sequence` holds or was promised; it will be admitted again.

        With `to_host` its published blocks are kept in host memory until then, as far as there is room.
        """
        if to_host:
            self._prefixes.keep(sequence)
        self._free(sequence)
        self._prefixes.pause(sequence)

    def revoke(self, sequence: Sequence) -> None:
        """Let nobody find the blocks of `sequence` any more, in any tier: what they hold is not to be trusted."""
        self._prefixes.revoke(sequence)

    def take_moves(self) -> Moves:
        """What the next batch must execute before it computes."""
        moves = self._host.take_moves()
        moves.copies, self._copies = self._copies, []
        return moves

    def land(self, moves: Moves) -> None:
        """The step that was to execute `moves` is over, well or not."""
        self._host.land(moves)

    def check_invariants(self, sequences: Iterable[Sequence]) -> None:
        """Assert that counts, keys, tiers and block tables agree, given all sequences that hold something."""
        counts = [0] * self.num_blocks
        num_reserved = 0
        for sequence in sequences:
            num_reserved += sequence.num_reserved_blocks
            for block_id in sequence.block_table:
                counts[block_id] += 1
        self._pool.check_invariants(counts)
        self._prefixes.check_invariants()
        assert num_reserved == self.num_reserved, "reservations do not add up"
        assert self.num_available >= 0, "more blocks are promised than free"

    def _claim(self, sequence: Sequence, hits: list[int | None]) -> None:
        """Fill the block table with the hits."""
        keys = self._prefixes.chain(sequence).keys
        # All are held before the first block is taken for a load: what makes room for that must not be a hit itself.
        for key, block_id in zip(keys, hits, strict=False):
            if block_id is None:
                self._host.use(key)
            else:
                self._pool.hold(block_id)
        for key, block_id in zip(keys, hits, strict=False):
            if block_id is None:
                block_id = self._pool.take()
                self._host.load(key, block_id)
            sequence.block_table.append(block_id)

    def _copy(self, block_table: list[int], column: int) -> None:
        """Replace a shared block by a copy of its own."""
        shared = block_table[column]
        block_table[column] = self._pool.take()
        self._copies.append((shared, block_table[column]))
        self._pool.drop(shared)

    def _free(self, sequence: Sequence) -> None:
        self._promise(sequence, -sequence.num_reserved_blocks)
        # The last block first: the head of a prompt, which others are likeliest to share, stays longest.
        for block_id in reversed(sequence.block_table):
            self._pool.drop(block_id)
        sequence.block_table.clear()

    def _promise(self, sequence: Sequence, num_blocks: int) -> None:
        sequence.num_reserved_blocks += num_blocks
        self.num_reserved += num_blocks

    def _blocks_of(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)
