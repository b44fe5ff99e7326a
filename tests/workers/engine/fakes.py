"""A small world for engine tests: a model whose KV cache can be read back, and one-line engines and sequences."""

import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from kernels import AttentionBatch
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.outputs import Sample, StepOutput
from workers.engine.sampler import sample
from workers.engine.sequence import SamplingParams, Sequence

VOCAB_SIZE = 50
EOS = 49
TOKENS = torch.arange(1, VOCAB_SIZE + 1, dtype=torch.float32)


def logits_of(context: list[int]) -> torch.Tensor:
    """Logits [vocab_size] that are a function of the whole context, so that one wrong token changes what follows."""
    checksum = zlib.crc32(array("i", context).tobytes())
    return 3 * torch.sin(TOKENS * (1 + checksum % 9973) + checksum % 7)


def state_of(token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Hidden states [num_tokens, 3] of tokens at their positions."""
    return torch.stack([token_ids.float(), 1.0 + positions, torch.sin(token_ids + 0.3 * positions)], dim=1)


@dataclass(frozen=True)
class FakeShape:
    num_layers: int = 1
    num_kv_heads: int = 1
    head_dim: int = 1


@dataclass
class FakeModel:
    """Stores each token id as K and its position as V, and reads every context back through the block table.

    A wrong slot, a block that two sequences share or a token computed twice or never therefore changes the output.
    """

    config: FakeShape = field(default_factory=FakeShape)
    nan_tokens: set[int] = field(default_factory=set)  # contexts with one of these give NaN
    num_rows: list[int] = field(default_factory=list)  # sequences in each step so far

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: torch.Tensor,
        batch: AttentionBatch,
        logits_rows: torch.Tensor,
    ) -> torch.Tensor:
        assert len(set(batch.slot_mapping.tolist())) == len(input_ids), "two tokens share a slot"
        block_size = kv_cache.shape[3]
        blocks, offsets = batch.slot_mapping // block_size, batch.slot_mapping % block_size
        kv_cache[blocks, 0, 0, offsets, 0, 0] = input_ids.to(kv_cache.dtype)
        kv_cache[blocks, 0, 1, offsets, 0, 0] = positions.to(kv_cache.dtype)
        ends = batch.cu_seqlens_q.tolist()[1:]
        self.num_rows.append(len(ends))
        logits = torch.empty((len(logits_rows), VOCAB_SIZE))
        for i, row in enumerate(logits_rows.tolist()):
            index = bisect_right(ends, row)
            context_len = int(batch.context_lens[index]) - (ends[index] - 1 - row)
            kv = kv_cache[batch.block_tables[index].long(), 0]  # [max_blocks, 2, block_size, 1, 1]
            keys, values = kv.transpose(0, 1).reshape(2, -1)[:, :context_len].int().tolist()
            assert values == list(range(len(values))), f"positions in the cache are {values}"
            logits[i] = torch.nan if self.nan_tokens & set(keys) else logits_of(keys)
        return logits

    def forward_with_states(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: torch.Tensor,
        batch: AttentionBatch,
        logits_rows: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A state is a function of its token and its place alone."""
        logits = self.forward(input_ids, positions, kv_cache, batch, logits_rows)
        states = state_of(input_ids, positions)
        for token_id in self.nan_tokens:
            states[input_ids == token_id] = torch.nan
        return logits, states


def make_config(**overrides: Any) -> EngineConfig:
    sizes: dict[str, Any] = {
        "max_num_seqs": 8,
        "token_budget": 16,
        "max_model_len": 64,
        "block_size": 4,
        "num_blocks": 64,
        "vocab_size": VOCAB_SIZE,
        "eos_token_ids": frozenset({EOS}),
        "aging_threshold_seconds": 30.0,
        "aging_boost": 0.5,
        "watermark_low": 0.0,
        "watermark_high": 0.0,
    }
    return EngineConfig(**(sizes | overrides))


@dataclass
class Clock:
    """Time that moves when a test says so."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def make_engine(*, model: FakeModel | None = None, clock: Clock | None = None, **overrides: Any) -> Engine:
    config = make_config(**overrides)
    return build_engine(config, model or FakeModel(), device="cpu", dtype=torch.float32, clock=clock or Clock())


def know_steps_to_be_slow(engine: Engine) -> None:
    """As if steps had been measured, so that copying blocks is the cheaper way to give way."""
    for num_rows in range(1, 20):
        engine.step_time.observe(num_rows, num_rows, num_rows * num_rows)


def make_params(max_tokens: int = 8, **overrides: Any) -> SamplingParams:
    """Greedy and without an early end, unless told otherwise."""
    return SamplingParams(max_tokens=max_tokens, **({"temperature": 0.0, "ignore_eos": True} | overrides))


def make_sequence(
    id: str,
    prompt: int | Iterable[int] = 5,
    *,
    output_ids: Iterable[int] = (),
    tier: int = 1,
    arrival: float = 0.0,
    **params: Any,
) -> Sequence:
    """A sequence with the given prompt, or with one of that many tokens which differs from every other id's."""
    if isinstance(prompt, int):
        first = zlib.crc32(id.encode())
        prompt = [(first >> (i % 24)) % EOS for i in range(prompt)]
    return Sequence(id, prompt, make_params(**params), output_ids=output_ids, tier=tier, arrival=arrival)


def expected_samples(sequence: Sequence, config: EngineConfig) -> list[Sample]:
    """What an undisturbed loop over the model gives after the tokens that `sequence` has now."""
    alone = Sequence("alone", sequence.token_ids, sequence.params, tier=1, arrival=0)
    alone.num_prompt_tokens = sequence.num_prompt_tokens
    samples = []
    while alone.finish_reason(config.eos_token_ids, config.max_model_len) is None:
        [drawn] = sample(logits_of(alone.token_ids).unsqueeze(0), [alone], [alone.num_output_tokens])
        alone.token_ids.append(drawn.token_id)
        samples.append(drawn)
    return samples


def run_to_end(engine: Engine) -> dict[str, list[StepOutput]]:
    """Step until there is no work, with invariants checked after every step; outputs by sequence id."""
    outputs: dict[str, list[StepOutput]] = {}
    while engine.has_work:
        for output in engine.step():
            outputs.setdefault(output.sequence_id, []).append(output)
        engine.scheduler.check_invariants()
    return outputs


def tokens_of(outputs: dict[str, list[StepOutput]]) -> dict[str, list[int]]:
    return {sequence_id: [output.token_id for output in each] for sequence_id, each in outputs.items()}
