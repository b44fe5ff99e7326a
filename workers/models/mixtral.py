"""Mixtral: Llama with experts, of which the config tells `LlamaLayer`."""

from workers.models.llama import LlamaModel


class MixtralModel(LlamaModel):
    """A Llama whose every feed-forward is one of experts."""
