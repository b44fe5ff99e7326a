"""Sizes and limits of one engine, complete before it starts."""

from dataclasses import dataclass


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
    policy: str = "aging"  # "aging": by aged tier, then arrival; "fcfs": by arrival alone
    aging_threshold_seconds: float
    aging_boost: float  # levels gained per second of waiting beyond the threshold
    watermark: float = 0.02  # share of the blocks that admission leaves to running sequences

    def __post_init__(self) -> None:
        if self.policy not in ("aging", "fcfs"):
            raise ValueError(f"policy is {self.policy!r}; it must be 'aging' or 'fcfs'")
        if self.token_budget < self.max_num_seqs:
            # Every decoding sequence gets its token in every step, so that nothing that runs can starve.
            raise ValueError(
                f"a token budget of {self.token_budget} is smaller than the {self.max_num_seqs} seats; "
                "raise the budget or take fewer seats"
            )

    @property
    def num_watermark_blocks(self) -> int:
        return int(self.watermark * self.num_blocks)


def blocks_needed(num_prompt_tokens: int, max_tokens: int, block_size: int) -> int:
    """Blocks that hold a whole prompt and its longest output; the API counts the same way before it accepts a job."""
    return -(-(num_prompt_tokens + max_tokens) // block_size)
