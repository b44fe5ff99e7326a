"""Copies of whole blocks of the KV cache, within the GPU and between it and page-locked host memory."""

import torch
import triton
import triton.language as tl

Pairs = list[tuple[int, int]]
PROGRAM_BYTES = 16384  # that one program copies


def copy_blocks(source: torch.Tensor, target: torch.Tensor, pairs: Pairs) -> None:
    """target[j] = source[i] for each (i, j), as if one after the other; one launch for all that do not touch.

    Both are [num_blocks, ...] with equal, contiguous blocks of one dtype: the same tensor, or two that share no memory;
    one of them may be in page-locked host memory, which a GPU reads and writes in place.
    """
    assert source.shape[1:] == target.shape[1:] and source.dtype == target.dtype, "blocks of different kinds"
    assert source[:1].is_contiguous() and target[:1].is_contiguous(), "a block is in pieces"
    device = source.device if source.is_cuda else target.device
    num_elements = source[:1].numel()
    for apart in _cut(pairs, is_within=source.data_ptr() == target.data_ptr()):
        ids = torch.tensor(apart, pin_memory=device.type == "cuda")  # int64 [num_pairs, 2]
        size = PROGRAM_BYTES // source.element_size()
        _copy[(len(apart), triton.cdiv(num_elements, size))](
            source,
            target,
            ids.to(device, non_blocking=True),
            source.stride(0),
            target.stride(0),
            num_elements,
            SIZE=size,
        )


def _cut(pairs: Pairs, *, is_within: bool) -> list[Pairs]:
    """`pairs` in runs whose copies may happen in any order: none writes what another one writes or, within one tensor,
    reads."""
    runs: list[Pairs] = []
    read: set[int] = set()
    written: set[int] = set()
    for source_id, target_id in pairs:
        touches = target_id in written or (is_within and (target_id in read or source_id in written))
        if touches or not runs:
            runs.append([])
            read, written = set(), set()
        runs[-1].append((source_id, target_id))
        read.add(source_id)
        written.add(target_id)
    return runs


@triton.jit
def _copy(source_ptr, target_ptr, ids_ptr, source_stride, target_stride, num_elements, SIZE: tl.constexpr):
    pair = tl.program_id(0)
    elements = tl.program_id(1).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    mask = elements < num_elements
    source_id, target_id = tl.load(ids_ptr + pair * 2), tl.load(ids_ptr + pair * 2 + 1)
    values = tl.load(source_ptr + source_id * source_stride + elements, mask=mask)
    tl.store(target_ptr + target_id * target_stride + elements, values, mask=mask)
