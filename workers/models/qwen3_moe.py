"""Qwen 3 with experts (30B-A3B, 235B-A22B): Qwen 3 with experts in the layers that the config names."""

from workers.models.qwen3 import Qwen3Model


class Qwen3MoeModel(Qwen3Model):
    """A Qwen 3 whose feed-forwards are ones of experts, in some layers or all."""
