"""What config.json says of a model, in one spelling for every architecture. Knows no weights."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.models.errors import UnsupportedModel
from workers.models.experts import Experts, read_experts
from workers.models.quantization import refuse_unsupported
from workers.models.rope import Rope, read_rope

FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "MixtralForCausalLM": "mixtral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3ForConditionalGeneration": "gemma3",  # its text part
}
ACTIVATIONS = {family: "gelu_pytorch_tanh" if family == "gemma3" else "silu" for family in FAMILIES.values()}

# What Gemma's config.json leaves out when it equals the default.
GEMMA3_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "query_pre_attn_scalar": 256,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True)
class ModelConfig:
    """Shape and constants of a decoder. Per-layer facts are tuples with one entry per layer."""

    architecture: str
    family: str  # the module of `workers.models` that computes it
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    attention_scale: float
    sliding_windows: tuple[int | None, ...]  # tokens a query sees; None: its whole context
    ropes: tuple[Rope, ...]
    experts: tuple[Experts | None, ...]  # None: one feed-forward for all tokens
    norm_offset: float  # added to the norms' stored weights: Gemma's checkpoints hold the multiplier less one
    is_tied: bool  # the output head is the embedding
    eos_token_ids: tuple[int, ...]


def read_config(directory: Path) -> ModelConfig:
    """The model in `directory`, from its config.json and generation_config.json; UnsupportedModel says what is not."""
    config = read_json(directory / "config.json")
    generation = read_json(directory / "generation_config.json")
    try:
        return _make_config(config, generation)
    except KeyError as error:
        raise UnsupportedModel(f"config.json in {directory} has no {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty when there is no such file."""
    if not path.exists():
        return {}
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value


def _make_config(config: dict[str, Any], generation: dict[str, Any]) -> ModelConfig:
    architecture = (config.get("architectures") or ["none"])[0]
    if architecture not in FAMILIES:
        raise UnsupportedModel(f"architecture {architecture}; supported are {', '.join(FAMILIES)}")
    family = FAMILIES[architecture]
    if family == "gemma3":
        config = GEMMA3_DEFAULTS | config | config.get("text_config", {})
    _refuse_unsupported(config, family)
    num_heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // num_heads
    windows = _sliding_windows(config)
    ropes = tuple(read_rope(config, is_sliding=window is not None) for window in windows)
    return ModelConfig(
        architecture=architecture,
        family=family,
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=num_heads,
        num_kv_heads=config.get("num_key_value_heads") or num_heads,
        head_dim=head_dim,
        max_position_embeddings=max([config["max_position_embeddings"], *(rope.stretched_length for rope in ropes)]),
        rms_norm_eps=config.get("rms_norm_eps", 1e-6),
        attention_scale=config.get("query_pre_attn_scalar", head_dim) ** -0.5,
        sliding_windows=windows,
        ropes=ropes,
        experts=tuple(read_experts(config, layer) for layer in range(config["num_hidden_layers"])),
        norm_offset=config.get("rms_norm_offset", 1.0 if family == "gemma3" else 0.0),
        is_tied=config.get("tie_word_embeddings", False),
        eos_token_ids=_eos_token_ids(generation, config),
    )


def _refuse_unsupported(config: Mapping[str, Any], family: str) -> None:
    activation = config.get("hidden_activation") or config.get("hidden_act") or ACTIVATIONS[family]
    if activation != ACTIVATIONS[family]:
        raise UnsupportedModel(f"activation {activation} in a {family} model; supported is {ACTIVATIONS[family]}")
    for key in ("attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention"):
        if config.get(key):
            raise UnsupportedModel(f"{key} = {config[key]} in config.json")
    if "quantization_config" in config:
        refuse_unsupported(config["quantization_config"])


def _sliding_windows(config: Mapping[str, Any]) -> tuple[int | None, ...]:
    layers = range(config["num_hidden_layers"])
    window = config.get("sliding_window")
    if window is None or not config.get("use_sliding_window", True):
        return tuple(None for _ in layers)
    if config.get("layer_types"):
        return tuple(window if kind == "sliding_attention" else None for kind in config["layer_types"])
    match config["model_type"]:
        case "gemma3" | "gemma3_text":
            pattern = config.get("_sliding_window_pattern") or config["sliding_window_pattern"]
            return tuple(None if (layer + 1) % pattern == 0 else window for layer in layers)
        case "qwen2" | "qwen3":
            is_on, first = config.get("use_sliding_window", False), config.get("max_window_layers", 28)
            return tuple(window if is_on and layer >= first else None for layer in layers)
        case "qwen3_moe":
            return tuple(window if config.get("use_sliding_window", False) else None for _ in layers)
        case "mistral" | "mixtral":
            return tuple(window for _ in layers)
    return tuple(None for _ in layers)


def _eos_token_ids(*sources: Mapping[str, Any]) -> tuple[int, ...]:
    """Every end-of-sequence id named anywhere, in order: chat models add theirs in generation_config.json."""
    ids: dict[int, None] = {}
    for source in sources:
        named = source.get("eos_token_id")
        ids |= dict.fromkeys([named] if isinstance(named, int) else named or [])
    return tuple(ids)
