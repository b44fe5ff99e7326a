"""The pool of compute threads, which spin within a step and sleep between steps."""

import weakref
from functools import lru_cache

import torch

from kernels.cpu.library import library


class Threads:
    """`num_threads` of them, the one that calls among them."""

    def __init__(self, num_threads: int) -> None:
        loaded = library()
        assert loaded is not None, "the library of CPU kernels is not built"
        self.num_threads = num_threads
        self.handle = loaded.headrace_pool(num_threads)
        weakref.finalize(self, loaded.headrace_free_pool, self.handle)


@lru_cache
def shared() -> Threads:
    """Those of the process, as many as PyTorch computed with when they were first asked for."""
    return Threads(torch.get_num_threads())
