"""The names of blocks: each says the content of its block and of all blocks before it."""

import hashlib
import struct
from collections.abc import Sequence as ListLike

from workers.engine.sequence import Sequence

DOMAIN = b"headrace.kv.block.1"


def block_key(parent: bytes, token_ids: ListLike[int], *, salt: bytes, layout: bytes) -> bytes:
    """The name of a full block's content: 32 bytes, SHA-256 over everything that its K and V depend on.

    `parent` is the key of the block before it, empty for the first; `salt` separates those who may not share;
    `layout` says weights, adapter and KV layout. Each field carries its length, so that no two can be confused.
    """
    tokens = struct.pack(f"<{len(token_ids)}I", *token_ids)
    fields = (DOMAIN, layout, salt, parent, tokens)
    return hashlib.sha256(b"".join([part for each in fields for part in (struct.pack("<I", len(each)), each)])).digest()


class Chain:
    """The keys of one sequence's full blocks, each hashed once, when it is first asked for; and who knows of them.

    Written by the prefix cache only.
    """

    def __init__(self, sequence: Sequence, *, block_size: int, layout: bytes) -> None:
        self.keys: list[bytes] = []
        self.num_published = 0  # leading blocks of the block table that need not be published any more
        self.was_admitted = False
        self.was_prefetched = False  # what the disk had was sent for, once per wait
        self.pins: list[bytes] = []  # keys that the host tier keeps until the sequence is admitted
        self.read: set[bytes] = set()  # those of them that came from disk
        self._sequence = sequence
        self._block_size = block_size
        self._layout = layout

    def key(self, index: int) -> bytes:
        """The key of block `index`, all of whose tokens are known."""
        while len(self.keys) <= index:
            start = len(self.keys) * self._block_size
            token_ids = self._sequence.token_ids[start : start + self._block_size]
            assert len(token_ids) == self._block_size, "only full blocks have keys"
            parent = self.keys[-1] if self.keys else b""
            self.keys.append(block_key(parent, token_ids, salt=self._sequence.salt, layout=self._layout))
        return self.keys[index]
