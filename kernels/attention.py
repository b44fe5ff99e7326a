"""What every attention backend agrees on: the KV cache's layout and the batch a step attends with."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from kernels.cpu.memory import huge_pages

CPU_BLOCK_SIZE = 16
CUDA_BLOCK_SIZE = 32
SCALE_BYTES = 4  # of an int8 cache: a float for K and one for V of each token and head


@dataclass(frozen=True)
class AttentionBatch:
    """Where the tokens of one step live in the KV cache. Made anew for each step; its tensors do not change.

    The tokens of sequence i are rows `cu_seqlens_q[i]:cu_seqlens_q[i + 1]`, the last ones of its context, in order:
    with `context_lens[i]` = 10 and three rows, they stand at positions 7, 8 and 9.
    """

    slot_mapping: torch.Tensor  # int64 [num_tokens]: block_id * block_size + offset, where this step's K and V go
    block_tables: torch.Tensor  # int32 [num_seqs, max_blocks]: past a sequence's own blocks, any block id
    cu_seqlens_q: torch.Tensor  # int32 [num_seqs + 1]: running sum of the tokens each sequence computes
    context_lens: torch.Tensor  # int32 [num_seqs]: tokens in the cache once this step's are stored
    # Written by the attention backend alone: what it derives from the batch once, then uses in every layer.
    plans: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)


def attention_block_size(
    device: torch.device | str, *, dtype: torch.dtype | None = None, head_dim: int | None = None
) -> int:
    """Slots in a KV block, which the attention backend of `device` names; flash-attn's where it takes such a cache."""
    if torch.device(device).type == "cpu":
        return CPU_BLOCK_SIZE
    from kernels import flash_attention  # here: it imports this module

    if dtype is not None and head_dim is not None and flash_attention.can_attend(device, dtype, head_dim):
        return flash_attention.BLOCK_SIZE
    return CUDA_BLOCK_SIZE


def make_kv_cache(
    *,
    num_blocks: int,
    num_layers: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> torch.Tensor:
    """Zeros [num_blocks, num_layers, 2 (K, V), block_size, num_kv_heads, head_dim]: a block moves in one copy.

    A layer attends over the view `kv_cache[:, layer]`. With int8 the last dimension also holds a scale: see
    `kernels.int8_kv`.
    """
    shape = (num_blocks, num_layers, 2, block_size, num_kv_heads, head_width(head_dim, dtype))
    if torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # By writing to it the memory is taken now, not in the midst of a step.
    memory = huge_pages(math.prod(shape) * dtype.itemsize).zero_()
    return memory.view(dtype).view(shape)


def head_width(head_dim: int, dtype: torch.dtype) -> int:
    """Elements that K or V of one head take in a cache of `dtype`."""
    return head_dim + SCALE_BYTES if dtype == torch.int8 else head_dim


def head_dim_of(kv_layer: torch.Tensor) -> int:
    """Elements of a head whose K and V are in a layer of a cache, or in the whole of it."""
    return kv_layer.shape[-1] - SCALE_BYTES if kv_layer.dtype == torch.int8 else kv_layer.shape[-1]
