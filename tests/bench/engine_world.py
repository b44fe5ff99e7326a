"""What the engine benchmarks share: random models of a size that a CPU can serve, and engines that run them."""

import random
import time
from pathlib import Path
from typing import Any

import torch

from kernels import attention_block_size
from tests.checkpoints import make_checkpoint
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.sequence import SamplingParams, Sequence
from workers.models.decoder import Decoder
from workers.models.loader import load_model

VOCAB_SIZE = 512
BLOCK_SIZE = attention_block_size("cpu")
DEFAULTS: dict[str, Any] = {
    "max_num_seqs": 8,
    "token_budget": 512,
    "max_model_len": 2048,
    "block_size": BLOCK_SIZE,
    "num_blocks": 1024,
    "vocab_size": VOCAB_SIZE,
    "eos_token_ids": frozenset(),
    "aging_threshold_seconds": 30.0,
    "aging_boost": 0.5,
}


def make_model(directory: Path, *, num_layers: int = 4, hidden_size: int = 256) -> Decoder:
    """A Llama with random weights in fp32, two query heads to a KV head."""
    checkpoint = make_checkpoint(
        directory / f"{num_layers}x{hidden_size}",
        vocab_size=VOCAB_SIZE,
        num_hidden_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        num_attention_heads=hidden_size // 64,
        num_key_value_heads=hidden_size // 128,
        head_dim=64,
    )
    return load_model(checkpoint, cache_dir=directory / "cache", dtype=torch.float32, device="cpu")


def make_engine(model: Decoder, **overrides: Any) -> Engine:
    config = EngineConfig(**(DEFAULTS | overrides))
    return build_engine(config, model, device="cpu", dtype=torch.float32)


def make_prompt(rng: random.Random, num_tokens: int) -> list[int]:
    return rng.choices(range(3, VOCAB_SIZE), k=num_tokens)


def make_sequence(id: str, prompt: list[int], *, max_tokens: int, tier: int = 1) -> Sequence:
    """Greedy, as long as `max_tokens` says, arriving now."""
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    return Sequence(id, prompt, params, tier=tier, arrival=time.time())
