"""The engine on a GPU with random weights: its tokens beside the CPU's, and nano-vllm's load on a Qwen3-0.6B shape."""

import json
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels import attention_block_size, default_dtype
from tests.gpu.random_weights import RandomCheckpoint
from tests.workers.engine.host_accelerator import HostAccelerator
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.sequence import SamplingParams, Sequence
from workers.models.config import ModelConfig, read_config
from workers.models.device_weights import DeviceWeights
from workers.models.packings import AS_STORED
from workers.models.qwen3 import Qwen3Model

MEMORY_SHARE = 0.85  # of what is free, for the KV cache
TOKEN_BUDGET = 16384
COMPARED_PROMPTS = (1, 31, 32, 33, 100)
NUM_COMPARED_TOKENS = 24


@dataclass(frozen=True)
class Shape:
    """A Qwen3 by its sizes."""

    name: str
    hidden: int
    inner: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int

    def config(self) -> ModelConfig:
        values = {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": 40960,
            "rope_theta": 1000000.0,
            "tie_word_embeddings": True,
            "use_sliding_window": False,
            "hidden_act": "silu",
        }
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "config.json").write_text(json.dumps(values))
            return read_config(Path(directory))


TINY = Shape("a tiny shape", 64, 96, 2, 4, 2, 16, 257)
QWEN3_0_6B = Shape("Qwen3-0.6B's shape, random weights", 1024, 3072, 28, 16, 8, 128, 151936)


@dataclass(frozen=True)
class Load:
    """Sequences whose prompts and outputs have random lengths; as it stands, what nano-vllm publishes."""

    num_sequences: int = 256
    shortest: int = 100
    longest: int = 1024

    def __str__(self) -> str:
        return f"{self.num_sequences} sequences, {self.shortest} to {self.longest} tokens in and out"


@dataclass(frozen=True)
class Variant:
    """How a model is run."""

    device: str
    quantization: str = AS_STORED
    has_graphs: bool = True
    is_plain: bool = False  # by the CPU's runner, without slots, graphs and overlap

    def __str__(self) -> str:
        weights = "bf16" if self.quantization == AS_STORED else self.quantization
        return weights if self.has_graphs else f"{weights} without graphs"


def compare(variant: Variant) -> tuple[int, int]:
    """(tokens that are the same, tokens) of prompts together in fp32 and one at a time by the CPU's runner."""
    together = _compared_tokens("all", variant)
    plain = Variant("cpu", variant.quantization, is_plain=True)
    alone = [_compared_tokens(str(i), plain, only=i)[0] for i in range(len(COMPARED_PROMPTS))]
    pairs = [pair for ours, theirs in zip(together, alone, strict=True) for pair in zip(ours, theirs, strict=True)]
    return sum(ours == theirs for ours, theirs in pairs), len(pairs)


def run_load(shape: Shape, load: Load, variant: Variant, *, seconds: float) -> str:
    """What the engine makes of `load`, cut short after `seconds`."""
    rng = random.Random(0)
    lengths = [
        (rng.randint(load.shortest, load.longest), rng.randint(load.shortest, load.longest))
        for _ in range(load.num_sequences)
    ]
    num_tokens = sum(map(sum, lengths))
    dtype = default_dtype(variant.device)
    engine = _make_engine(shape, variant, dtype, num_tokens=num_tokens, num_sequences=load.num_sequences)
    _run(engine, [_sequence("warm", [1] * 64, max_tokens=8, temperature=0.6)], seconds=seconds)
    sequences = [
        _sequence(
            str(i),
            [rng.randrange(shape.vocab_size) for _ in range(num_prompt)],
            max_tokens=num_output,
            temperature=0.6,
        )
        for i, (num_prompt, num_output) in enumerate(lengths)
    ]
    took = _run(engine, sequences, seconds=seconds)
    num_output = sum(sequence.num_tokens - sequence.num_prompt_tokens for sequence in sequences)
    note = "; cut short" if engine.has_work else ""
    engine.close()
    return f"{num_output:,} tokens in {took:.1f} s: {num_output / took:,.0f} a second{note}"


def _compared_tokens(name: str, variant: Variant, *, only: int | None = None) -> list[list[int]]:
    rng = random.Random(1)
    prompts = [[rng.randrange(TINY.vocab_size) for _ in range(num)] for num in COMPARED_PROMPTS]
    chosen = prompts if only is None else [prompts[only]]
    engine = _make_engine(TINY, variant, torch.float32, num_tokens=4096, num_sequences=8, token_budget=64)
    sequences = [
        _sequence(f"{name}-{i}", prompt, max_tokens=NUM_COMPARED_TOKENS, temperature=0.0)
        for i, prompt in enumerate(chosen)
    ]
    _run(engine, sequences, seconds=600)
    engine.close()
    return [sequence.token_ids[sequence.num_prompt_tokens :] for sequence in sequences]


def _make_engine(
    shape: Shape,
    variant: Variant,
    dtype: torch.dtype,
    *,
    num_tokens: int,
    num_sequences: int,
    token_budget: int = TOKEN_BUDGET,
) -> Engine:
    """With blocks for all of `num_tokens`, or as many as fit. On a CPU in a GPU's place all is done as there."""
    config, device = shape.config(), variant.device
    checkpoint = RandomCheckpoint(config, shape.inner)
    weights = DeviceWeights(checkpoint, dtype=dtype, device=device, quantization=variant.quantization)
    model, block_size = Qwen3Model(config, weights), attention_block_size(device)
    num_blocks = num_tokens // block_size + num_sequences
    if device == "cuda":
        block_bytes = shape.num_layers * 2 * block_size * shape.num_kv_heads * shape.head_dim * dtype.itemsize
        num_blocks = min(num_blocks, int(MEMORY_SHARE * torch.cuda.mem_get_info()[0]) // block_bytes)
    engine_config = EngineConfig(
        max_num_seqs=num_sequences,
        token_budget=token_budget,
        max_model_len=min(4096, num_blocks * block_size),
        block_size=block_size,
        num_blocks=num_blocks,
        vocab_size=shape.vocab_size,
        eos_token_ids=frozenset(),
        aging_threshold_seconds=30.0,
        aging_boost=0.5,
        is_overlapping=not variant.is_plain,
    )
    accelerator = HostAccelerator() if device == "cpu" and not variant.is_plain else None
    return build_engine(
        engine_config, model, device=device, dtype=dtype, accelerator=accelerator, has_graphs=variant.has_graphs
    )


def _sequence(id: str, prompt_ids: list[int], *, max_tokens: int, temperature: float) -> Sequence:
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, ignore_eos=True)
    return Sequence(id, prompt_ids, params, tier=1, arrival=time.time())


def _run(engine: Engine, sequences: list[Sequence], *, seconds: float) -> float:
    """Run to the end or for `seconds`; how long that took."""
    for sequence in sequences:
        engine.add(sequence)
    began = time.perf_counter()
    while engine.has_work and time.perf_counter() - began < seconds:
        for output in engine.step():
            assert output.error is None, output.error
    return time.perf_counter() - began
