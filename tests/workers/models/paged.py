"""Drives a model over a paged cache by hand, as the engine does, one token run at a time."""

from pathlib import Path

import torch

from kernels import AttentionBatch, attention_block_size, make_kv_cache
from kernels.cpu.threads import Threads
from workers.models.decoder import Decoder
from workers.models.loader import load_model
from workers.models.recorded import RecordedModel


def load(path: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    return load_model(path, cache_dir=path.parent / "cache", dtype=dtype, device="cpu")


def load_recorded(path: Path, packing: str = "bf16", *, num_threads: int = 1) -> RecordedModel:
    decoder = load_model(path, cache_dir=path.parent / "cache", dtype=torch.bfloat16, device="cpu", packing=packing)
    return RecordedModel(decoder, Threads(num_threads), max_tokens=320, max_rows=320, max_positions=320)


class PagedModel:
    """A model with room for `num_seqs` sequences of `max_len` tokens, whose blocks are dealt out shuffled."""

    def __init__(
        self,
        model: Decoder | RecordedModel,
        *,
        num_seqs: int = 1,
        max_len: int = 256,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        """`kv_dtype` is the cache's; by default the model's."""
        self.model = model
        self.block_size = attention_block_size("cpu")
        blocks_per_seq = -(-max_len // self.block_size)
        config = model.config
        self.kv_cache = make_kv_cache(
            num_blocks=num_seqs * blocks_per_seq,
            num_layers=config.num_layers,
            block_size=self.block_size,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=kv_dtype or _dtype(model),
            device="cpu",
        )
        self.kv_cache.view(torch.int8).fill_(-1)  # as any float a NaN: a slot that nobody wrote must not matter
        generator = torch.Generator().manual_seed(1)
        self.block_tables = torch.randperm(num_seqs * blocks_per_seq, generator=generator).view(num_seqs, -1).int()
        self.num_computed = [0] * num_seqs

    @torch.inference_mode()
    def step(self, runs: dict[int, list[int]]) -> list[torch.Tensor]:
        """Append each run of tokens to its sequence; logits [num_tokens, vocab_size] of every run, in order."""
        positions, slots, lengths = [], [], []
        for seq, token_ids in runs.items():
            start = self.num_computed[seq]
            self.num_computed[seq] = start + len(token_ids)
            run = torch.arange(start, start + len(token_ids))
            positions.append(run)
            block_ids = self.block_tables[seq][run // self.block_size].long()
            slots.append(block_ids * self.block_size + run % self.block_size)
            lengths.append(len(token_ids))
        batch = AttentionBatch(
            slot_mapping=torch.cat(slots),
            block_tables=self.block_tables[list(runs)],
            cu_seqlens_q=torch.tensor([0, *lengths]).cumsum(0).int(),
            context_lens=torch.tensor([self.num_computed[seq] for seq in runs]).int(),
        )
        input_ids = torch.tensor([token_id for token_ids in runs.values() for token_id in token_ids])
        rows = torch.arange(len(input_ids))
        logits = self.model.forward(input_ids, torch.cat(positions), self.kv_cache, batch, rows)
        return list(torch.split(logits, lengths))


def _dtype(model: Decoder | RecordedModel) -> torch.dtype:
    if isinstance(model, RecordedModel):
        return torch.bfloat16
    assert isinstance(model.embed_tokens, torch.Tensor)
    return model.embed_tokens.dtype
