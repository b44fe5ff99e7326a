"""The plainest loop that decodes with a model: no engine, a cache laid out by hand, greedy."""

import torch

from kernels import AttentionBatch, make_kv_cache
from tests.bench.engine_world import BLOCK_SIZE
from workers.models.decoder import Decoder


class BareLoop:
    """Decodes some sequences side by side, each in a run of blocks of its own."""

    def __init__(self, model: Decoder, prompts: list[list[int]], *, max_len: int) -> None:
        """All prompts are of one length, and computed here."""
        self._model = model
        self._num_seqs, self._length = len(prompts), len(prompts[0])
        num_blocks = -(-max_len // BLOCK_SIZE)
        shape = model.config
        self._kv_cache = make_kv_cache(
            num_blocks=self._num_seqs * num_blocks,
            num_layers=shape.num_layers,
            block_size=BLOCK_SIZE,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            dtype=torch.float32,
            device="cpu",
        )
        self._block_tables = torch.arange(self._num_seqs * num_blocks, dtype=torch.int32).view(self._num_seqs, -1)
        self._first_slots = torch.arange(self._num_seqs) * num_blocks * BLOCK_SIZE  # [num_seqs]
        positions = torch.arange(self._length)
        slots = (self._first_slots.unsqueeze(1) + positions).flatten()
        self._next = self._forward(torch.tensor(prompts).flatten(), positions.repeat(self._num_seqs), slots)
        self._length += 1

    def step(self) -> list[int]:
        """The tokens sampled last; the next ones are computed from them."""
        token_ids = self._next.tolist()
        positions = torch.full((self._num_seqs,), self._length - 1)
        self._next = self._forward(self._next, positions, self._first_slots + self._length - 1)
        self._length += 1
        return token_ids

    @torch.inference_mode()
    def _forward(self, input_ids: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Token ids [num_seqs] that follow the last row of each."""
        per_seq = len(input_ids) // self._num_seqs
        num_used = -(-self._length // BLOCK_SIZE)
        batch = AttentionBatch(
            slot_mapping=slots,
            block_tables=self._block_tables[:, :num_used],
            cu_seqlens_q=torch.arange(0, len(input_ids) + 1, per_seq, dtype=torch.int32),
            context_lens=torch.full((self._num_seqs,), self._length, dtype=torch.int32),
        )
        rows = torch.arange(per_seq - 1, len(input_ids), per_seq)
        return self._model.forward(input_ids, positions, self._kv_cache, batch, rows).argmax(dim=-1)
