"""Tiny random checkpoints in Hugging Face's layout, with a real byte-level BPE tokenizer.

The weights are noise of unit gain, so logits are well spread and greedy choices are not ties. Everything is a function
of the arguments. Only numpy and tokenizers are needed, so a test that runs no model imports no torch.
"""

import json
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"  # ids 0, 1, 2
EOS_TOKEN_ID = 0
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = """\
A headrace is the channel that feeds a mill wheel. The water comes down the hill, slowly in summer and quickly in
spring, and the wheel turns as long as there is water. When the stream is low, the miller waits; when it is high, the
miller opens the gate and lets the rest of the water run past the mill. Every sack of corn that was brought in the
morning is ground in the order in which it came, and nobody's flour is lost. The quick brown fox jumps over
the lazy dog.
def mill(sacks: list[str], water: float = 1.0) -> int:
    return sum(len(sack) for sack in sacks if water > 0.5)
Der Müller mahlt das Korn. Le meunier moud le grain à l'été. 0 1 2 3 4 5 6 7 8 9 10 100 1000. Hello, world!
Здравствуй, мир!
"""

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "hidden_act": "silu",
    "bos_token_id": EOS_TOKEN_ID,
    "eos_token_id": EOS_TOKEN_ID,
    "torch_dtype": "float32",
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "mlp_bias": False},
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 24},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": False},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "use_sliding_window": False},
    "mixtral": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "sliding_window": None,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
    },
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "use_sliding_window": False,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 48,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "sliding_window": 24,
        "query_pre_attn_scalar": 20,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    },
}


def make_checkpoint(
    directory: Path, architecture: str = "llama", *, seed: int = 0, vocab_size: int = 512, **overrides: Any
) -> Path:
    """Write `directory` (config.json, model.safetensors, tokenizer.json and what goes with them) and return it.

    `overrides` replace keys of config.json. A directory that already holds a checkpoint is left as it is.
    """
    if (directory / "model.safetensors").exists():
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    config = SHAPE | ARCHITECTURES[architecture] | {"vocab_size": vocab_size} | overrides
    write_json(directory / "config.json", config)
    write_json(directory / "generation_config.json", {"bos_token_id": EOS_TOKEN_ID, "eos_token_id": EOS_TOKEN_ID})
    specials = {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT, "pad_token": END_OF_TEXT}
    tokenizer_config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": CHAT_TEMPLATE} | specials
    write_json(directory / "tokenizer_config.json", tokenizer_config)
    (directory / "tokenizer.json").write_text(tokenizer_json(vocab_size))
    save_file(make_weights(config, seed), directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2))


@cache
def tokenizer_json(vocab_size: int) -> str:
    """A byte-level BPE of `CORPUS`, filled up to `vocab_size` with tokens that encoding never makes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=min(vocab_size, 480),
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([CORPUS], trainer)
    state = json.loads(tokenizer.to_str())
    vocab = state["model"]["vocab"]
    for token_id in range(len(vocab), vocab_size):
        vocab[f"Ġw{token_id}"] = token_id
    return json.dumps(state)


def make_weights(config: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Every tensor by its Hugging Face name, fp32; each depends on the seed and its own name alone."""
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    num_q, num_kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    family = config["model_type"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, num_rows in (("q", num_q), ("k", num_kv), ("v", num_kv)):
            shapes[f"{prefix}self_attn.{name}_proj.weight"] = (num_rows, hidden)
            if family == "qwen2" or config["attention_bias"]:
                shapes[f"{prefix}self_attn.{name}_proj.bias"] = (num_rows,)
        shapes[f"{prefix}self_attn.o_proj.weight"] = (hidden, num_q)
        if config["attention_bias"]:
            shapes[f"{prefix}self_attn.o_proj.bias"] = (hidden,)
        shapes |= feed_forward_shapes(config, layer)
        shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
        if family in ("qwen3", "qwen3_moe", "gemma3_text"):
            shapes[f"{prefix}self_attn.q_norm.weight"] = (head_dim,)
            shapes[f"{prefix}self_attn.k_norm.weight"] = (head_dim,)
        if family == "gemma3_text":
            shapes[f"{prefix}pre_feedforward_layernorm.weight"] = (hidden,)
            shapes[f"{prefix}post_feedforward_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return {name: make_tensor(name, shape, seed, family) for name, shape in shapes.items()}


def feed_forward_shapes(config: dict[str, Any], layer: int) -> dict[str, tuple[int, ...]]:
    """The layer's one feed-forward, or its experts and their router."""
    hidden, inner, prefix = config["hidden_size"], config["intermediate_size"], f"model.layers.{layer}.mlp."
    names, num_experts = ("gate_proj", "up_proj", "down_proj"), 0
    if config["model_type"] == "mixtral":
        names, num_experts = ("w1", "w3", "w2"), config["num_local_experts"]
        prefix = f"model.layers.{layer}.block_sparse_moe."
    elif config["model_type"] == "qwen3_moe":
        is_sparse = (layer + 1) % config["decoder_sparse_step"] == 0 and layer not in config["mlp_only_layers"]
        if is_sparse:
            inner, num_experts = config["moe_intermediate_size"], config["num_experts"]
    gate, up, down = names
    shapes = {gate: (inner, hidden), up: (inner, hidden), down: (hidden, inner)}
    if not num_experts:
        return {f"{prefix}{name}.weight": shape for name, shape in shapes.items()}
    experts = {
        f"{prefix}experts.{expert}.{name}.weight": shape
        for expert in range(num_experts)
        for name, shape in shapes.items()
    }
    return experts | {f"{prefix}gate.weight": (num_experts, hidden)}


def make_tensor(name: str, shape: tuple[int, ...], seed: int, family: str) -> np.ndarray:
    noise = np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(shape).astype(np.float32)
    if "norm" in name:
        return 0.1 * noise + (0.0 if family == "gemma3_text" else 1.0)  # transformers' Gemma adds 1 itself
    if name.endswith("embed_tokens.weight"):
        return (0.06 if family == "gemma3_text" else 0.3) * noise  # Gemma multiplies embeddings by sqrt(hidden)
    return noise * shape[-1] ** -0.5 if len(shape) == 2 else 0.1 * noise
