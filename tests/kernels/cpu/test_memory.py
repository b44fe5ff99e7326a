"""Large memory: zeros, at the beginning of a page, and of the kind that the kernel backs by huge pages."""

from pathlib import Path

import pytest

from kernels.cpu.memory import HUGE_PAGE, huge_pages


@pytest.mark.parametrize("num_bytes", [0, 100, HUGE_PAGE - 1, 3 * HUGE_PAGE + 5])
def test_memory_is_zeros_of_the_size_that_was_asked_for(num_bytes: int) -> None:
    memory = huge_pages(num_bytes)
    assert len(memory) == num_bytes and not memory.any()
    memory.fill_(1)
    assert memory.all()


def test_large_memory_begins_at_a_huge_page_and_may_be_backed_by_some() -> None:
    memory = huge_pages(4 * HUGE_PAGE)
    assert memory.data_ptr() % HUGE_PAGE == 0
    flags = flags_at(memory.data_ptr())
    assert "hg" in flags, "the kernel is advised to use huge pages"
    assert "sh" not in flags, "shared memory gets none, whatever is advised"


def flags_at(address: int) -> set[str]:
    """What the kernel says of the mapping that an address lies in."""
    is_inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head, *words = line.split()
        if head == "VmFlags:" and is_inside:
            return set(words)
        if "-" in head and not head.endswith(":"):
            start, end = (int(part, 16) for part in head.split("-"))
            is_inside = start <= address < end
    raise LookupError(f"{address:x} is not mapped")
