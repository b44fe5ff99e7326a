"""Qwen 2 and 2.5: Llama with biases on Q, K and V, which `SelfAttention` takes from the checkpoint."""

from workers.models.llama import LlamaModel


class Qwen2Model(LlamaModel):
    """A Llama by another name."""
