"""Computes a batch: lists to tensors, one forward pass, samples. Owns the KV cache and the block tables' tensor."""

from typing import Protocol

import torch

from kernels import AttentionBatch, make_kv_cache
from workers.engine.batch import Batch
from workers.engine.config import EngineConfig
from workers.engine.outputs import Sample
from workers.engine.sampler import sample


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


class ModelRunner:
    """Runs one model on one device. Between steps it keeps the block tables, which change by a block now and then."""

    def __init__(self, model: Model, config: EngineConfig, device: torch.device | str, dtype: torch.dtype) -> None:
        self.model = model
        self.device = torch.device(device)
        self.kv_cache = make_kv_cache(
            num_blocks=config.num_blocks,
            num_layers=model.config.num_layers,
            block_size=config.block_size,
            num_kv_heads=model.config.num_kv_heads,
            head_dim=model.config.head_dim,
            dtype=dtype,
            device=self.device,
        )
        max_blocks = -(-config.max_model_len // config.block_size)
        self._block_tables = torch.zeros((config.max_num_seqs, max_blocks), dtype=torch.int32, device=self.device)

    @torch.inference_mode()
    def run(self, batch: Batch) -> list[Sample]:
        """One sample per sequence of `batch.sampled`; K and V of all its tokens are in the cache afterwards."""
        logits = self.model.forward(
            self._tensor(batch.input_ids),
            self._tensor(batch.positions),
            self.kv_cache,
            self._attention_batch(batch),
            self._tensor(batch.logits_rows),
        )  # [num_sampled, vocab_size]
        return sample(logits, batch.sampled)

    def _attention_batch(self, batch: Batch) -> AttentionBatch:
        self._update_block_tables(batch)
        max_blocks = max(map(len, batch.block_tables))
        return AttentionBatch(
            slot_mapping=self._tensor(batch.slot_mapping),
            block_tables=self._block_tables[: len(batch), :max_blocks],
            cu_seqlens_q=self._tensor(batch.cu_seqlens_q, torch.int32),
            context_lens=self._tensor(batch.context_lens, torch.int32),
        )

    def _update_block_tables(self, batch: Batch) -> None:
        if batch.new_blocks is not None:
            for row, column, block_id in batch.new_blocks:
                self._block_tables[row, column] = block_id
            return
        max_blocks = max(map(len, batch.block_tables))
        padded = [table + [0] * (max_blocks - len(table)) for table in batch.block_tables]
        self._block_tables[: len(batch), :max_blocks] = self._tensor(padded, torch.int32)

    def _tensor(self, values: list[int] | list[list[int]], dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)
