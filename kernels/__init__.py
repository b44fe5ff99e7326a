"""Tensors in, tensors out: the operations a model is made of.

Model files call these functions and nothing else; `kernels/operations.py` chooses who computes them.
"""

from kernels.attention import AttentionBatch, attention_block_size, make_kv_cache
from kernels.operations import (
    Weight,
    add_rms_norm,
    copy_blocks,
    embedding,
    gated_linear,
    linear,
    moe_feed_forward,
    paged_attention,
    rms_norm,
    rotary_cos_sin,
    rotate_and_store,
    select_experts,
    select_rows,
)
from kernels.platform import default_dtype

__all__ = [
    "AttentionBatch",
    "Weight",
    "add_rms_norm",
    "attention_block_size",
    "copy_blocks",
    "default_dtype",
    "embedding",
    "gated_linear",
    "linear",
    "make_kv_cache",
    "moe_feed_forward",
    "paged_attention",
    "rms_norm",
    "rotary_cos_sin",
    "rotate_and_store",
    "select_experts",
    "select_rows",
]
