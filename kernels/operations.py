"""One function per operation. While a program is recorded it appends the CPU kernel; else its tensors' device says who
computes: `kernels.cuda` on a GPU, PyTorch's reference elsewhere.

Model files call these functions and nothing else.
"""

from types import ModuleType

import torch

from kernels import reference, reference_attention, reference_moe
from kernels.attention import AttentionBatch, head_dim_of
from kernels.cpu import recorded, recorded_experts
from kernels.cpu.packed import PackedMatrix
from kernels.cpu.program import active
from kernels.quantized import Int4Matrix, Int8Matrix, QuantizedMatrix

# Of a GPU's kernels and the reference, then of the CPU's. Several are rows of several formats, or one for each expert.
Weight = torch.Tensor | QuantizedMatrix | PackedMatrix | tuple[PackedMatrix, ...]
Pairs = list[tuple[int, int]]

PACKED = "a recorded kernel takes packed weights"


def embedding(token_ids: torch.Tensor, weight: Weight, scale: float | None = None) -> torch.Tensor:
    """Rows of `weight` [vocab_size, hidden] at `token_ids` int64 [n], times `scale` rounded to the weight's dtype."""
    if (program := active()) is not None:
        return recorded.embedding(program, _packed(weight), scale)
    computed: torch.Tensor = _backend(token_ids).embedding(token_ids, _plain(weight), scale)
    return computed


def select_rows(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows of x [n, dim] at `rows` int64 [num_rows], copied."""
    if (program := active()) is not None:
        return recorded.select_rows(program, x)
    computed: torch.Tensor = _backend(x).select_rows(x, rows)
    return computed


def linear(
    x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None, *, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """`x @ weight.T + bias`, [n, out] in `out_dtype` or what suits the backend: x [n, in], weight [out, in]."""
    if (program := active()) is not None:
        assert isinstance(weight, PackedMatrix | tuple), PACKED
        return recorded.linear(program, x, weight, bias, out_dtype)
    computed: torch.Tensor = _backend(x).linear(x, _by_rows(weight), bias, out_dtype=out_dtype)
    return computed


def gated_linear(x: torch.Tensor, weight: Weight, activation: str) -> torch.Tensor:
    """activation(gate) * up, [n, dim]: `linear` by a weight of gates and ups [2 * dim, in]; silu or gelu (tanh)."""
    if (program := active()) is not None:
        return recorded.gated_linear(program, x, _packed(weight), activation)
    computed: torch.Tensor = _backend(x).gated_linear(x, _by_rows(weight), activation)
    return computed


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [n, dim] over its root mean square along dim, times `weight` fp32 [dim]; computed in fp32."""
    if (program := active()) is not None:
        return recorded.rms_norm(program, x, weight, eps)
    computed: torch.Tensor = _backend(x).rms_norm(x, weight, eps)
    return computed


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rms_norm(x + residual), x + residual) of x and residual [n, dim]. They may be changed: use what is returned."""
    if (program := active()) is not None:
        return recorded.add_rms_norm(program, x, residual, weight, eps)
    computed: tuple[torch.Tensor, torch.Tensor] = _backend(x).add_rms_norm(x, residual, weight, eps)
    return computed


def rotary_cos_sin(positions: torch.Tensor, inv_freq: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """fp32 [n, 2, head_dim / 2]: cosine and sine of positions int64 [n] times inv_freq fp32 [head_dim / 2], scaled.

    While a program is recorded, those of every position that it may meet.
    """
    if (program := active()) is not None:
        positions = torch.arange(program.max_positions)
    return reference.rotary_cos_sin(positions, inv_freq, scale)


def rotate_and_store(
    qkv: torch.Tensor,
    cos_sin: torch.Tensor,
    kv_layer: torch.Tensor,
    batch: AttentionBatch,
    *,
    num_heads: int,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """Q of every token, rotated, [n, num_heads * head_dim]; its K, rotated, and its V go into the cache.

    `qkv` is [n, (num_heads + 2 * num_kv_heads) * head_dim], `kv_layer` [num_blocks, 2, block_size, num_kv_heads,
    head_dim], on a CPU also in int8. The norms, fp32 [head_dim], are of each head of Q and K, before they are rotated.
    """
    if (program := active()) is not None:
        return recorded.rotate_and_store(
            program, qkv, cos_sin, kv_layer, num_heads=num_heads, q_norm=q_norm, k_norm=k_norm, eps=eps
        )
    q: torch.Tensor = _backend(qkv).rotate_and_store(
        qkv, cos_sin, kv_layer, batch.slot_mapping, num_heads=num_heads, q_norm=q_norm, k_norm=k_norm, eps=eps
    )
    return q


def paged_attention(
    q: torch.Tensor, kv_layer: torch.Tensor, batch: AttentionBatch, scale: float, sliding_window: int | None = None
) -> torch.Tensor:
    """Causal attention of q [n, num_heads * head_dim] over the cache, which has this step's K and V; of q's shape.

    With `sliding_window` w, a query sees the last w positions, its own among them.
    """
    if (program := active()) is not None:
        return recorded.paged_attention(program, q, kv_layer, scale, sliding_window)
    heads = q.view(len(q), -1, head_dim_of(kv_layer))
    backend = _backend(q) if _is_on_gpu(q) else reference_attention
    attended: torch.Tensor = backend.paged_attention(heads, kv_layer, batch, scale, sliding_window)
    return attended.flatten(1)


def select_experts(
    router_logits: torch.Tensor, num_chosen: int, *, is_normalized: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `reference_moe.select_experts`, which computes it where no program is recorded."""
    if (program := active()) is not None:
        return recorded_experts.select_experts(program, router_logits, num_chosen, is_normalized=is_normalized)
    return reference_moe.select_experts(router_logits, num_chosen, is_normalized=is_normalized)


def moe_feed_forward(
    x: torch.Tensor, expert_ids: torch.Tensor, expert_weights: torch.Tensor, gate_up: Weight, down: Weight
) -> torch.Tensor:
    """See `reference_moe.moe_feed_forward`, which computes it where no program is recorded.

    While one is, either weight is a packed matrix for each expert.
    """
    if (program := active()) is not None:
        assert isinstance(gate_up, tuple) and isinstance(down, tuple), PACKED
        return recorded_experts.moe_feed_forward(program, x, expert_ids, expert_weights, gate_up, down)
    return reference_moe.moe_feed_forward(x, expert_ids, expert_weights, _plain(gate_up), _plain(down))


def copy_blocks(source: torch.Tensor, target: torch.Tensor, pairs: Pairs) -> None:
    """target[j] = source[i] for each (i, j), as if one after the other. Both are [num_blocks, ...] of equal blocks: one
    tensor, or two that share no memory."""
    if not _is_on_gpu(target):
        for source_id, target_id in pairs:
            target[target_id].copy_(source[source_id])
        return
    from kernels.triton.copy_blocks import copy_blocks

    copy_blocks(source, target, pairs)


def _backend(x: torch.Tensor) -> ModuleType:
    if not _is_on_gpu(x):
        return reference
    from kernels import cuda  # Triton is there where a GPU is

    return cuda


def _is_on_gpu(x: torch.Tensor) -> bool:
    return x.is_cuda


def _packed(weight: Weight) -> PackedMatrix:
    assert isinstance(weight, PackedMatrix), PACKED
    return weight


def _by_rows(weight: Weight) -> torch.Tensor | QuantizedMatrix:
    assert isinstance(weight, torch.Tensor | Int8Matrix | Int4Matrix), "packed weights are for recorded kernels"
    return weight


def _plain(weight: Weight) -> torch.Tensor:
    assert isinstance(weight, torch.Tensor), "rows are looked up in floats, and experts multiply by them"
    return weight
