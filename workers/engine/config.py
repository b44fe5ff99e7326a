"""Sizes and limits of one engine, complete before it starts."""

from dataclasses import dataclass
from pathlib import Path

from workers.engine.eviction import PolicyName


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What one engine may hold, and how it orders its work."""

    max_num_seqs: int  # seats: sequences that may run at once
    token_budget: int  # most tokens computed in one step
    max_model_len: int  # longest prompt plus output of one sequence, in tokens
    block_size: int  # KV slots per block, as the attention backend asks
    num_blocks: int  # blocks of the KV cache
    vocab_size: int
    eos_token_ids: frozenset[int]
    policy: str = "aging"  # aging | fcfs | shortest_first, as `policy.py` has them
    aging_threshold_seconds: float
    aging_boost: float  # levels gained per second of waiting beyond the threshold
    watermark_low: float = (
        0.01  # share of the blocks that admission leaves to running sequences; below it nobody starts
    )
    watermark_high: float = 0.05  # until so many are free again
    target_itl_ms: float | None = None  # longest step that a chunk of a prompt may make beside running sequences
    is_caching: bool = True  # whether equal prefixes are computed once
    host_blocks: int = 0  # blocks of host memory below the cache
    host_policy: PolicyName = "lru"  # which of them go first
    disk_path: Path | None = None  # a directory below that; None: no such tier
    disk_bytes: int = 0
    is_overlapping: bool = False  # the next step is planned and the last one's outputs are used while one computes

    def __post_init__(self) -> None:
        if not 0 <= self.watermark_low <= self.watermark_high < 1:
            raise ValueError(
                f"the watermarks are {self.watermark_low} and {self.watermark_high}; "
                "they must be shares of the cache, the low one not above the high one"
            )
        if self.token_budget < self.max_num_seqs:
            # Every decoding sequence gets its token in every step, so that nothing that runs can starve.
            raise ValueError(
                f"a token budget of {self.token_budget} is smaller than the {self.max_num_seqs} seats; "
                "raise the budget or take fewer seats"
            )

    @property
    def num_low_watermark_blocks(self) -> int:
        return int(self.watermark_low * self.num_blocks)

    @property
    def num_high_watermark_blocks(self) -> int:
        return int(self.watermark_high * self.num_blocks)


def blocks_needed(num_prompt_tokens: int, max_tokens: int, block_size: int, *, num_choices: int = 1) -> int:
    """Blocks that hold a whole prompt and its longest outputs; the API counts the same way before it accepts a job.

    Choices share the prompt's full blocks; each has the last, partial one as its own.
    """
    num_shared = num_prompt_tokens // block_size
    num_own = -(-(num_prompt_tokens + max_tokens) // block_size) - num_shared
    return num_shared + num_choices * num_own
