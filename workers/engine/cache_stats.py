"""What the KV cache was asked and gave since the start."""

from dataclasses import dataclass


@dataclass(slots=True)
class CacheStats:
    """Counters that only grow."""

    lookups_tokens: int = 0  # of the sequences admitted
    hit_tokens: int = 0  # of those, found in some tier instead of computed
    host_hit_tokens: int = 0  # of those found, the ones that came up from host memory
    disk_hit_tokens: int = 0  # of those, the ones that came from disk before
    evictions: int = 0  # blocks of the device whose content made room for another
    offloaded_blocks: int = 0  # device to host
    loaded_blocks: int = 0  # host to device
