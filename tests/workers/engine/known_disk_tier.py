"""A disk tier for tests of what an earlier run left: whether that is found must not be up to a thread's first look."""

from typing import Any

from workers.engine.disk_tier import DiskTier


class KnownDiskTier(DiskTier):
    """Has found what an earlier run left before it is asked for anything."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert self.wait_until_idle(30)
