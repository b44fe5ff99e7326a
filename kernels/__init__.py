"""Tensors in, tensors out: the operations a model is made of.

Model files call these functions and nothing else. Today every one of them is the plain PyTorch reference.
"""

from kernels.attention import AttentionBatch, attention_block_size, make_kv_cache
from kernels.platform import default_dtype
from kernels.reference import (
    add_rms_norm,
    apply_rotary,
    embedding,
    gelu_and_mul,
    linear,
    rms_norm,
    rotary_cos_sin,
    select_rows,
    silu_and_mul,
    store_kv,
)
from kernels.reference_attention import paged_attention
from kernels.reference_moe import grouped_linear, moe_feed_forward, select_experts

__all__ = [
    "AttentionBatch",
    "add_rms_norm",
    "apply_rotary",
    "attention_block_size",
    "default_dtype",
    "embedding",
    "gelu_and_mul",
    "grouped_linear",
    "linear",
    "make_kv_cache",
    "moe_feed_forward",
    "paged_attention",
    "rms_norm",
    "rotary_cos_sin",
    "select_experts",
    "select_rows",
    "silu_and_mul",
    "store_kv",
]
