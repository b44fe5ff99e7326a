"""Time-ordered UUIDs, and the prefixed spelling in which clients see them."""

import os
import time
from uuid import UUID


def new_id(now: float | None = None) -> UUID:
    """A version 7 UUID (RFC 9562): 48 bits of Unix milliseconds, then randomness, so that ids sort by creation."""
    milliseconds = int((time.time() if now is None else now) * 1000)
    value = milliseconds << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 7 << 76
    value = value & ~(0x3 << 62) | 2 << 62
    return UUID(int=value)


def first_id_at(timestamp: float) -> UUID:
    """The smallest version 7 UUID made at `timestamp` (Unix seconds) or later: a partition's bound."""
    return UUID(int=int(timestamp * 1000) << 80)


def public_id(prefix: str, value: UUID) -> str:
    """`job_0193...`: the prefix (`job_`, `evt_`, ...) and 32 hexadecimal digits."""
    return prefix + value.hex


def parse_id(prefix: str, text: str) -> UUID | None:
    """The UUID behind a public id, or None when `text` is not one."""
    digits = text.removeprefix(prefix)
    if digits == text or len(digits) != 32 or not set(digits) <= set("0123456789abcdef"):
        return None
    return UUID(hex=digits)
