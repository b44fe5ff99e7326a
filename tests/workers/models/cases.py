"""Every architecture, and what its config may say of attention, positions and experts: a name, then config keys."""

from pathlib import Path
from typing import Any

from tests.checkpoints import make_checkpoint

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
SLIDING = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, llama3 rope": {"rope_scaling": LLAMA3, "rope_theta": 500.0},
    "llama, linear rope": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama, biases": {"attention_bias": True},
    "llama, tied, one head per KV head": {"tie_word_embeddings": True, "num_key_value_heads": 4},
    "llama, yarn rope": {"rope_scaling": YARN},
    "mistral, sliding window": {},
    "mistral, no sliding window": {"sliding_window": None},
    "mistral, yarn rope of its own factors": {
        "rope_scaling": YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "truncate": False, "attention_factor": 1.2}
    },
    "mixtral, no sliding window": {},
    "mixtral, sliding window": {"sliding_window": 24},
    "mixtral, llama3 rope": {"rope_scaling": LLAMA3, "rope_theta": 500.0},
    "qwen2": {},
    "qwen2, upper layers sliding": SLIDING,
    "qwen2, yarn rope": {"rope_scaling": YARN},
    "qwen3": {},
    "qwen3, upper layers sliding": SLIDING,
    "qwen3, linear rope": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "qwen3_moe": {},
    "qwen3_moe, sliding window": SLIDING,
    "qwen3_moe, yarn rope": {"rope_scaling": YARN},
    "qwen3_moe, experts of every second layer, weights not normalized": {
        "num_hidden_layers": 4,
        "decoder_sparse_step": 2,
        "norm_topk_prob": False,
    },
    "qwen3_moe, layers without experts": {"num_hidden_layers": 3, "mlp_only_layers": [0, 2]},
    "gemma3": {},
    "gemma3, linear rope in the full layers": {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
}


def make_case(directory: Path, name: str) -> Path:
    """The checkpoint of a case, whose name starts with its architecture."""
    return make_checkpoint(directory, name.split(",")[0], **CASES[name])
