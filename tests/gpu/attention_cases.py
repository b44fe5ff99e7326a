"""Paged attention: a step of decoding, and a chunk of one prompt."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from kernels import reference_attention
from kernels.attention import AttentionBatch
from kernels.triton import attention
from tests.gpu.measure import Case

if TYPE_CHECKING:
    from tests.gpu.kernel_cases import Sizes

# The weights of V are rounded to its dtype before they multiply it, as PyTorch's own attention does; the reference is
# fp32 throughout.
SLACK = 2.0


def attention_cases(sizes: "Sizes") -> Iterator[Case]:
    yield _case("paged_attention, decode", sizes, num_seqs=sizes.num_seqs, num_queries=1, window=None)
    yield _case("paged_attention, window", sizes, num_seqs=sizes.num_seqs, num_queries=1, window=sizes.context_len // 2)
    yield _case("paged_attention, chunk", sizes, num_seqs=1, num_queries=sizes.chunk, window=None)


def _case(name: str, sizes: "Sizes", *, num_seqs: int, num_queries: int, window: int | None) -> Case:
    """The last `num_queries` tokens of each of `num_seqs` sequences attend over its context."""
    context_len = max(sizes.context_len, num_queries)
    max_blocks = -(-context_len // sizes.block_size)
    shape = (num_seqs * max_blocks, 2, sizes.block_size, sizes.num_kv_heads, sizes.head_dim)
    cache = torch.randn(shape, dtype=sizes.dtype)
    q = torch.randn(num_seqs * num_queries, sizes.num_heads, sizes.head_dim, dtype=sizes.dtype)
    batch = AttentionBatch(
        slot_mapping=torch.arange(len(q)),
        block_tables=torch.randperm(num_seqs * max_blocks).int().view(num_seqs, max_blocks),
        cu_seqlens_q=(torch.arange(num_seqs + 1) * num_queries).int(),
        context_lens=torch.full((num_seqs,), context_len).int(),
    )
    scale = sizes.head_dim**-0.5
    num_keys = num_seqs * min(context_len, window or context_len)
    attend = reference_attention.paged_attention
    return Case(
        name,
        f"{num_seqs} x {num_queries} of {context_len}",
        run=lambda: (attention.paged_attention(q, cache, batch, scale, window),),
        reference=lambda: (attend(q, cache, batch, scale, window),),
        exact=lambda: (attend(q.float(), cache, batch, scale, window),),
        num_bytes=2 * q.nbytes + num_keys * cache[0, :, 0].nbytes,
        slack=SLACK,
    )
