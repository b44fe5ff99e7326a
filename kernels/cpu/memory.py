"""Memory for what is large: in huge pages, where the kernel has them."""

import mmap

import torch

HUGE_PAGE = 2 * 2**20  # bytes


def huge_pages(num_bytes: int) -> torch.Tensor:
    """Zeros, uint8 [num_bytes], that begin at a huge page where they fill one; they take memory when written to.

    A step walks through all weights and contexts: with pages of 4 KiB a tenth of its time goes into finding them. Only
    private memory is backed by huge pages, which a plain `mmap` of Python's is not.
    """
    if num_bytes < HUGE_PAGE // 2 or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(num_bytes, dtype=torch.uint8)
    memory = mmap.mmap(-1, num_bytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % HUGE_PAGE
    return whole[start : start + num_bytes]
