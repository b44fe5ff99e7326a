"""A GGUF file's metadata as the JSON files of a Hugging Face checkpoint."""

from collections.abc import Mapping
from typing import Any

from gguf import ReaderTensor, dequantize

from workers.models.errors import UnsupportedModel

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}
MODEL_TYPES = {"gemma3": "gemma3_text", "qwen3moe": "qwen3_moe"}  # of those with another name than GGUF's
# Files of chat models may name only the end of the text; these end a turn wherever they are in the vocabulary.
END_OF_TURN = ("<end_of_turn>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>")


def make_config(kv: Mapping[str, Any], tensors: Mapping[str, ReaderTensor]) -> dict[str, Any]:
    """config.json of the model that `kv` and the tensors' shapes describe."""
    family = kv["general.architecture"]
    if family not in ARCHITECTURES:
        raise UnsupportedModel(f"GGUF architecture {family}; supported are {', '.join(ARCHITECTURES)}")
    if kv.get("split.count", 1) > 1:
        raise UnsupportedModel(
            f"one of {kv['split.count']} parts of a GGUF file; join them with llama-gguf-split --merge"
        )
    facts = {key.removeprefix(f"{family}."): value for key, value in kv.items()}
    num_heads, hidden_size = facts["attention.head_count"], facts["embedding_length"]
    config = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": MODEL_TYPES.get(family, family),
        "vocab_size": int(tensors["token_embd.weight"].shape[1]),
        "hidden_size": hidden_size,
        "intermediate_size": facts["feed_forward_length"],
        "num_hidden_layers": facts["block_count"],
        "num_attention_heads": num_heads,
        "num_key_value_heads": facts.get("attention.head_count_kv", num_heads),
        "head_dim": facts.get("attention.key_length", hidden_size // num_heads),
        "max_position_embeddings": facts["context_length"],
        "rms_norm_eps": facts["attention.layer_norm_rms_epsilon"],
        "rms_norm_offset": 0.0,  # norms hold the multiplier itself, Gemma's too
        "tie_word_embeddings": "output.weight" not in tensors,
        "rope_theta": facts.get("rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(facts, tensors),
        "bos_token_id": facts.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": facts.get("tokenizer.ggml.eos_token_id"),
    }
    if facts.get("expert_count"):
        config |= _experts(facts, family)
    return config | _gemma3(facts, config) if family == "gemma3" else config


def make_generation_config(kv: Mapping[str, Any]) -> dict[str, Any]:
    """generation_config.json: every token that ends an answer."""
    named = [kv.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    ids = {piece: token_id for token_id, piece in enumerate(kv["tokenizer.ggml.tokens"])}
    found = named + [ids.get(piece) for piece in END_OF_TURN]
    return {"eos_token_id": list(dict.fromkeys(token_id for token_id in found if token_id is not None))}


def make_tokenizer_config(kv: Mapping[str, Any]) -> dict[str, Any]:
    """tokenizer_config.json: the spelling of the special tokens, and the chat template if there is one."""
    pieces = kv["tokenizer.ggml.tokens"]
    config: dict[str, Any] = {}
    for name in ("bos", "eos"):
        token_id = kv.get(f"tokenizer.ggml.{name}_token_id")
        if token_id is not None:
            config[f"{name}_token"] = pieces[token_id]
    if "tokenizer.chat_template" in kv:
        config["chat_template"] = kv["tokenizer.chat_template"]
    return config


def _rope_scaling(facts: Mapping[str, Any], tensors: Mapping[str, ReaderTensor]) -> dict[str, Any] | None:
    if "rope_freqs.weight" in tensors:  # llama3 scaling, worked out by whoever wrote the file
        tensor = tensors["rope_freqs.weight"]
        return {"rope_type": "factors", "factors": dequantize(tensor.data, tensor.tensor_type).tolist()}
    kind = facts.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    return {
        "rope_type": kind,
        "factor": facts.get("rope.scaling.factor", 1.0),
        "original_max_position_embeddings": facts.get("rope.scaling.original_context_length"),
        "beta_fast": facts.get("rope.scaling.yarn_beta_fast"),
        "beta_slow": facts.get("rope.scaling.yarn_beta_slow"),
    }


def _experts(facts: Mapping[str, Any], family: str) -> dict[str, Any]:
    scale = facts.get("expert_weights_scale") or 1.0
    if family not in ("llama", "qwen3moe") or scale != 1.0:
        raise UnsupportedModel(f"experts in a GGUF file (architecture {family}, their weights scaled by {scale})")
    experts: dict[str, Any] = {
        "num_experts": facts["expert_count"],
        "num_experts_per_tok": facts["expert_used_count"],
        "norm_topk_prob": facts.get("expert_weights_norm", True),
    }
    if family == "llama":  # a Mixtral is one to GGUF
        experts |= {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
    return experts


def _gemma3(facts: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    num_layers, pattern = facts["block_count"], facts.get("attention.sliding_window_pattern", 6)
    if isinstance(pattern, list):  # one flag per layer
        is_sliding = [bool(flag) for flag in pattern[:num_layers]]
    else:
        is_sliding = [(layer + 1) % pattern != 0 for layer in range(num_layers)]
    # The file does not say it: the 27B model, alone in having 62 layers, scales by hidden size over heads.
    scalar = facts["embedding_length"] / facts["attention.head_count"] if num_layers == 62 else config["head_dim"]
    return {
        "sliding_window": facts["attention.sliding_window"],
        "layer_types": ["sliding_attention" if flag else "full_attention" for flag in is_sliding],
        "rope_local_base_freq": facts.get("rope.freq_base_swa", 10000.0),
        "query_pre_attn_scalar": scalar,
    }
