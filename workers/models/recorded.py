"""A model whose forward pass is a recorded program of CPU kernels."""

import torch

from kernels import AttentionBatch
from kernels.cpu.library import library
from kernels.cpu.program import Program, recording
from kernels.cpu.threads import Threads
from workers.models.config import ModelConfig
from workers.models.decoder import Decoder

HEAD_DIM_UNIT = 32


def can_be_recorded(config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> bool:
    """Whether our CPU kernels compute the model; else PyTorch does."""
    is_ours = torch.device(device).type == "cpu" and library() is not None and dtype == torch.bfloat16
    return is_ours and config.head_dim % HEAD_DIM_UNIT == 0


class RecordedModel:
    """Computes what `decoder`, whose weights are packed, would; at most so many tokens and rows of logits a step."""

    def __init__(
        self, decoder: Decoder, threads: Threads, *, max_tokens: int, max_rows: int, max_positions: int
    ) -> None:
        self.config = decoder.config
        self._decoder = decoder
        self._program = Program(threads, max_tokens=max_tokens, max_rows=max_rows, max_positions=max_positions)
        self._results: tuple[torch.Tensor, torch.Tensor] | None = None  # logits and states, once it is recorded
        self._kv_cache: torch.Tensor | None = None  # which it was recorded for

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: torch.Tensor,
        batch: AttentionBatch,
        logits_rows: torch.Tensor,
    ) -> torch.Tensor:
        """As `Decoder.forward`. The logits are good until the next step, and `kv_cache` is the same in all of them."""
        return self.forward_with_states(input_ids, positions, kv_cache, batch, logits_rows)[0]

    def forward_with_states(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: torch.Tensor,
        batch: AttentionBatch,
        logits_rows: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `Decoder.forward_with_states`, with the same conditions. The program has the states in any case."""
        if self._results is None:
            with recording(self._program):
                self._results = self._decoder.forward_with_states(input_ids, positions, kv_cache, batch, logits_rows)
            self._kv_cache = kv_cache
        assert kv_cache is self._kv_cache, "a program is recorded for one cache"
        self._program.run(input_ids, positions, batch, logits_rows)
        logits, states = self._results
        return logits[: len(logits_rows)], states[: len(input_ids)]
