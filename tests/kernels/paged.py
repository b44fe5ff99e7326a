"""Sequences whose K and V lie in shuffled blocks, for every attention backend, and plain attention in float64."""

from dataclasses import dataclass
from typing import Protocol

import torch

from kernels import AttentionBatch, make_kv_cache, reference


class Attention(Protocol):
    """The signature of `kernels.reference_attention.paged_attention`."""

    def __call__(
        self, q: torch.Tensor, kv_layer: torch.Tensor, batch: AttentionBatch, scale: float, sliding_window: int | None
    ) -> torch.Tensor: ...


@dataclass(frozen=True)
class Run:
    """The queries of positions [start, end) of one sequence, all that is in the cache being its first `end` tokens."""

    seq: int
    start: int
    end: int


class Paged:
    """Sequences of random Q, K and V in a cache of two layers; every slot not theirs holds NaN."""

    def __init__(
        self,
        lengths: list[int],
        heads: tuple[int, int, int],
        *,
        block_size: int,
        dtype: torch.dtype = torch.float32,
        sliding_window: int | None = None,
    ) -> None:
        """`heads` are those of Q, those of K and V, and elements in one."""
        num_heads, num_kv_heads, head_dim = heads
        generator = torch.Generator().manual_seed(0)
        self.block_size, self.scale, self.sliding_window = block_size, head_dim**-0.5, sliding_window
        num_blocks = [-(-length // block_size) for length in lengths]
        shuffled = torch.randperm(sum(num_blocks) + 1, generator=generator).int()
        self.block_tables = shuffled[-1].repeat(len(lengths), max(num_blocks))
        for seq, blocks in enumerate(shuffled[:-1].split(num_blocks)):
            self.block_tables[seq, : len(blocks)] = blocks
        self.cache = make_kv_cache(
            num_blocks=len(shuffled),
            num_layers=2,
            block_size=block_size,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            dtype=dtype,
            device="cpu",
        ).fill_(torch.nan)
        self.tensors: list[tuple[torch.Tensor, ...]] = []  # (q, k, v) per sequence, [length, heads, head_dim]
        for seq, length in enumerate(lengths):
            counts = (num_heads, num_kv_heads, num_kv_heads)
            q, k, v = (torch.randn(length, count, head_dim, generator=generator).to(dtype) for count in counts)
            self.tensors.append((q, k, v))
            reference.store_kv(k, v, self.cache[:, 1], self.slots(Run(seq, 0, length)))

    def slots(self, run: Run) -> torch.Tensor:
        positions = torch.arange(run.start, run.end)
        blocks = self.block_tables[run.seq][positions // self.block_size].long()
        return blocks * self.block_size + positions % self.block_size

    def batch(self, *runs: Run) -> AttentionBatch:
        return AttentionBatch(
            slot_mapping=torch.cat([self.slots(run) for run in runs]),
            block_tables=self.block_tables[[run.seq for run in runs]],
            cu_seqlens_q=torch.tensor([0, *(run.end - run.start for run in runs)]).cumsum(0).int(),
            context_lens=torch.tensor([run.end for run in runs]).int(),
        )

    def attend(self, attention: Attention, *runs: Run) -> list[torch.Tensor]:
        """[end - start, num_heads, head_dim] per run, computed in one batch."""
        q = torch.cat([self.tensors[run.seq][0][run.start : run.end] for run in runs])
        out = attention(q, self.cache[:, 1], self.batch(*runs), self.scale, self.sliding_window)
        assert out.shape == q.shape and out.dtype == q.dtype
        return list(out.split([run.end - run.start for run in runs]))

    def exact(self, run: Run) -> torch.Tensor:
        """What `attend` returns, in float64 and without pages."""
        q, k, v = (tensor[: run.end].double() for tensor in self.tensors[run.seq])
        num_shared = q.shape[1] // k.shape[1]
        scores = torch.einsum("qhd,khd->hqk", q[run.start :], k.repeat_interleave(num_shared, 1)) * self.scale
        distance = torch.arange(run.start, run.end)[:, None] - torch.arange(run.end)
        is_masked = distance < 0
        if self.sliding_window is not None:
            is_masked |= distance >= self.sliding_window
        weights = scores.masked_fill(is_masked, -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, v.repeat_interleave(num_shared, 1))

    def rounded(self, run: Run) -> torch.Tensor:
        """What PyTorch's own attention makes of the run in the cache's dtype."""
        q, k, v = (tensor[: run.end].transpose(0, 1) for tensor in self.tensors[run.seq])
        distance = torch.arange(run.start, run.end)[:, None] - torch.arange(run.end)
        is_seen = (distance >= 0) & (distance < (self.sliding_window or run.end))
        num_shared = len(q) // len(k)
        k, v = k.repeat_interleave(num_shared, 0), v.repeat_interleave(num_shared, 0)
        scores = (q[:, run.start :] @ k.transpose(1, 2) * self.scale).masked_fill(~is_seen, -torch.inf)
        return (scores.softmax(-1) @ v).transpose(0, 1)
