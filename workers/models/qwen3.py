"""Qwen 3 (dense): Llama with a norm on each head of Q and K."""

from workers.models.llama import LlamaModel


class Qwen3Model(LlamaModel):
    """A Llama that normalizes Q and K before they are rotated."""

    has_qk_norm = True
