"""Computes a batch: lists to tensors, one forward pass, samples. Owns the KV cache and the block tables' tensor."""

from typing import Protocol

import torch

from kernels import AttentionBatch, make_kv_cache
from workers.engine.batch import Batch
from workers.engine.config import EngineConfig
from workers.engine.mover import Files, Mover
from workers.engine.outputs import Computed, TokenLogprobs
from workers.engine.pooling import pool
from workers.engine.sampler import prompt_logprobs, sample


class ModelShape(Protocol):
    """What the KV cache must know of a model."""

    @property
    def num_layers(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


class Model(Protocol):
    """What the engine asks of a model."""

    @property
    def config(self) -> ModelShape: ...

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: torch.Tensor,
        batch: AttentionBatch,
        logits_rows: torch.Tensor,
    ) -> torch.Tensor:
        """Store K and V of the tokens [num_tokens]; float32 logits [num_rows, vocab_size] of the rows asked for."""
        ...

    def forward_with_states(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: torch.Tensor,
        batch: AttentionBatch,
        logits_rows: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same, and the last hidden states [num_tokens, hidden_size] of all tokens; good until the next step."""
        ...


class ModelRunner:
    """Runs one model on one device. Between steps it keeps the block tables, which change by a block now and then."""

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        device: torch.device | str,
        dtype: torch.dtype,
        *,
        disk: Files | None = None,
    ) -> None:
        """`dtype` is the KV cache's. `disk` holds the blocks of the lowest tier; None: there is none."""
        self.model = model
        self.device = torch.device(device)
        self.kv_cache = make_cache(model, config.num_blocks, config.block_size, dtype=dtype, device=self.device)
        self.mover = Mover(self.kv_cache, num_host_slots=config.host_blocks, disk=disk)
        self._eos_token_ids = config.eos_token_ids
        max_blocks = -(-config.max_model_len // config.block_size)
        self._last_ids: list[int] = []  # what the last step sampled
        self._block_tables = torch.zeros((config.max_num_seqs, max_blocks), dtype=torch.int32, device=self.device)

    @torch.inference_mode()
    def run(self, batch: Batch) -> Computed:
        """One sample per sequence of `batch.sampled`; K and V of all its tokens are in the cache afterwards."""
        self.mover.run(batch.moves)
        for index, row in batch.future_rows:
            batch.input_ids[index] = max(0, self._last_ids[row])  # a failed row's successor is not used
        rows = batch.logits_rows + [row for each in batch.prompt_rows for row in each.rows]
        input_ids, positions, slot_mapping, logits_rows = self._tensors(
            torch.int64, batch.input_ids, batch.positions, batch.slot_mapping, rows
        )
        attention = self._attention_batch(batch, slot_mapping)
        logits, states = self.model.forward_with_states(
            input_ids, positions, self.kv_cache, attention, logits_rows
        )  # [num_sampled + num_prompt_rows, vocab_size], [num_tokens, hidden_size]
        num_sampled = len(batch.sampled)
        samples = sample(logits[:num_sampled], batch.sampled, batch.output_indices, self._eos_token_ids)
        self._last_ids = [each.token_id for each in samples]
        return Computed(samples, prompt_logprobs_of(logits[num_sampled:], batch), pool(states, batch.pooled_rows))

    def _attention_batch(self, batch: Batch, slot_mapping: torch.Tensor) -> AttentionBatch:
        self._update_block_tables(batch)
        cu_seqlens_q, context_lens = self._tensors(torch.int32, batch.cu_seqlens_q, batch.context_lens)
        return AttentionBatch(
            slot_mapping=slot_mapping,
            block_tables=self._block_tables[: len(batch), : max(map(len, batch.block_tables))],
            cu_seqlens_q=cu_seqlens_q,
            context_lens=context_lens,
        )

    def _update_block_tables(self, batch: Batch) -> None:
        if batch.new_blocks is not None:
            for row, column, block_id in batch.new_blocks:
                self._block_tables[row, column] = block_id
            return
        max_blocks = max(map(len, batch.block_tables))
        padded = [table + [0] * (max_blocks - len(table)) for table in batch.block_tables]
        self._block_tables[: len(batch), :max_blocks] = torch.tensor(padded, dtype=torch.int32, device=self.device)

    def _tensors(self, dtype: torch.dtype, *lists: list[int]) -> tuple[torch.Tensor, ...]:
        """One tensor per list, all of them copied to the device in one go."""
        joined = torch.tensor([value for values in lists for value in values], dtype=dtype, device=self.device)
        return joined.split_with_sizes(list(map(len, lists)))


def prompt_logprobs_of(logits: torch.Tensor, batch: Batch) -> list[list[TokenLogprobs]]:
    """For each of `batch.prompt_rows`: float32 logits [num_prompt_rows, vocab_size] of all of them, in order."""
    found, start = [], 0
    for each in batch.prompt_rows:
        num_top = each.sequence.params.prompt_logprobs
        assert num_top is not None
        token_ids = each.sequence.token_ids[each.first : each.first + len(each.rows)]
        found.append(prompt_logprobs(logits[start : start + len(each.rows)], token_ids, num_top))
        start += len(each.rows)
    return found


def make_cache(
    model: Model, num_blocks: int, block_size: int, *, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """The KV cache of a model, as `make_kv_cache` lays it out."""
    return make_kv_cache(
        num_blocks=num_blocks,
        num_layers=model.config.num_layers,
        block_size=block_size,
        num_kv_heads=model.config.num_kv_heads,
        head_dim=model.config.head_dim,
        dtype=dtype,
        device=device,
    )
