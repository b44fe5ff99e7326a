"""How much one worker holds: seats, blocks, the longest sequence. Resolved here, once, and nowhere else."""

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from db.settings import Settings

if TYPE_CHECKING:
    import torch

    from workers.engine.runner import Model, ModelShape

log = logging.getLogger(__name__)

GIB = 2**30


@dataclass(frozen=True)
class Capacity:
    """What the engine may hold, and one step compute."""

    max_num_seqs: int
    token_budget: int
    max_model_len: int  # tokens of prompt and output
    block_size: int  # KV slots
    num_blocks: int
    host_blocks: int  # in host memory, below the cache


class NoRoom(ValueError):
    """Not even one short sequence fits beside the weights; the message has the numbers and the way out."""


def resolve(settings: Settings, *, longest: int, block_size: int, num_blocks: int, block_bytes: int) -> Capacity:
    """The capacity for so many blocks; `longest` is what the model itself can take. Logged, as nothing else says it."""
    capacity = Capacity(
        max_num_seqs=settings.max_num_seqs,
        token_budget=max(settings.token_budget, settings.max_num_seqs),
        max_model_len=min(settings.max_model_len or longest, longest, num_blocks * block_size),
        block_size=block_size,
        num_blocks=num_blocks,
        host_blocks=int(settings.host_cache_gb * GIB) // block_bytes,
    )
    gigabytes = round(num_blocks * block_bytes / GIB, 3)
    log.info("capacity", extra=asdict(capacity) | {"kv_cache_gb": gigabytes, "kv_tokens": num_blocks * block_size})
    return capacity


def block_bytes(shape: "ModelShape", block_size: int, dtype: "torch.dtype") -> int:
    """Bytes of one block of a cache of `dtype`: K and V of all layers."""
    from kernels.attention import head_width

    width = head_width(shape.head_dim, dtype)
    return 2 * shape.num_layers * block_size * shape.num_kv_heads * width * dtype.itemsize


def blocks_that_fit(free_bytes: int, total_bytes: int, *, share: float, bytes_per_block: int) -> int:
    """Blocks for which there is room when `share` of the memory may be used in all. Raises NoRoom for none.

    `free_bytes` is what a worst step, which has just been computed, leaves.
    """
    num_blocks = int(free_bytes - (1 - share) * total_bytes) // bytes_per_block
    if num_blocks < 1:
        raise NoRoom(
            f"{free_bytes / GIB:.1f} of {total_bytes / GIB:.1f} GB are free beside the weights and a step's work, and "
            f"HEADRACE_GPU_MEMORY_SHARE is {share:g}: no KV block of {bytes_per_block / 2**20:.1f} MB fits. "
            "Take a smaller HEADRACE_TOKEN_BUDGET, a smaller dtype, or a larger share"
        )
    return num_blocks


def warm_up(
    model: "Model",
    settings: Settings,
    *,
    block_size: int,
    dtype: "torch.dtype",
    device: "torch.device",
    free_memory: Callable[[], tuple[int, int]],
) -> tuple[int, int]:
    """(free, total) bytes of the device as the worst step leaves them, which is computed here.

    That is one with the whole token budget in one prompt, and logits for every seat. `free_memory` is
    `torch.cuda.mem_get_info`, whose caching allocator keeps what the step took.
    """
    import torch

    from kernels import AttentionBatch, make_kv_cache

    num_tokens = max(settings.token_budget, settings.max_num_seqs)
    num_blocks = -(-num_tokens // block_size)
    cache = make_kv_cache(
        num_blocks=num_blocks,
        num_layers=model.config.num_layers,
        block_size=block_size,
        num_kv_heads=model.config.num_kv_heads,
        head_dim=model.config.head_dim,
        dtype=dtype,
        device=device,
    )
    positions = torch.arange(num_tokens, device=device)
    batch = AttentionBatch(
        slot_mapping=positions,
        block_tables=torch.arange(num_blocks, dtype=torch.int32, device=device)[None],
        cu_seqlens_q=torch.tensor([0, num_tokens], dtype=torch.int32, device=device),
        context_lens=torch.tensor([num_tokens], dtype=torch.int32, device=device),
    )
    with torch.inference_mode():
        logits = model.forward(torch.zeros_like(positions), positions, cache, batch, positions[: settings.max_num_seqs])
        logits.log_softmax(dim=-1)
    free, total = free_memory()
    return free + cache.nbytes, total
