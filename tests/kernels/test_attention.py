"""Paged attention against plain attention in float64, and against itself in other batches."""

from dataclasses import dataclass

import pytest
import torch

from kernels import AttentionBatch, make_kv_cache, reference, reference_attention
from tests.kernels.threads import threads

BLOCK_SIZE = 16


@dataclass(frozen=True)
class Run:
    """The queries of positions [start, end) of one sequence, all that is in the cache being its first `end` tokens."""

    seq: int
    start: int
    end: int


class World:
    """Sequences of random Q, K and V whose KV lies in shuffled blocks; every slot not theirs holds NaN."""

    def __init__(
        self,
        lengths: list[int],
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        sliding_window: int | None = None,
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        num_blocks = [-(-length // BLOCK_SIZE) for length in lengths]
        shuffled = torch.randperm(sum(num_blocks) + 1, generator=generator).int()
        self.block_tables = shuffled[-1].repeat(len(lengths), max(num_blocks))
        self.cache = make_kv_cache(
            num_blocks=len(shuffled),
            num_layers=2,
            block_size=BLOCK_SIZE,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            dtype=dtype,
            device="cpu",
        ).fill_(torch.nan)
        self.scale, self.sliding_window = head_dim**-0.5, sliding_window
        self.tensors: list[tuple[torch.Tensor, ...]] = []  # (q, k, v) per sequence, [length, heads, head_dim]
        taken = 0
        for seq, length in enumerate(lengths):
            self.block_tables[seq, : num_blocks[seq]] = shuffled[taken : taken + num_blocks[seq]]
            taken += num_blocks[seq]
            q, k, v = (
                torch.randn(length, heads, head_dim, generator=generator).to(dtype)
                for heads in (num_heads, num_kv_heads, num_kv_heads)
            )
            self.tensors.append((q, k, v))
            reference.store_kv(k, v, self.cache[:, 1], self.slots(Run(seq, 0, length)))

    def slots(self, run: Run) -> torch.Tensor:
        positions = torch.arange(run.start, run.end)
        return self.block_tables[run.seq][positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE

    def attend(self, *runs: Run) -> list[torch.Tensor]:
        """[end - start, num_heads, head_dim] per run, computed in one batch."""
        num_queries = [run.end - run.start for run in runs]
        batch = AttentionBatch(
            slot_mapping=torch.cat([self.slots(run) for run in runs]),
            block_tables=self.block_tables[[run.seq for run in runs]],
            cu_seqlens_q=torch.tensor([0, *num_queries]).cumsum(0).int(),
            context_lens=torch.tensor([run.end for run in runs]).int(),
        )
        q = torch.cat([self.tensors[run.seq][0][run.start : run.end] for run in runs])
        out = reference_attention.paged_attention(q, self.cache[:, 1], batch, self.scale, self.sliding_window)
        return list(torch.split(out, num_queries))

    def exact(self, seq: int) -> torch.Tensor:
        """Attention of a whole sequence in float64, without pages."""
        q, k, v = (tensor.double() for tensor in self.tensors[seq])
        num_shared = q.shape[1] // k.shape[1]
        scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(num_shared, 1)) * self.scale
        distance = torch.arange(len(q))[:, None] - torch.arange(len(q))
        is_masked = distance < 0
        if self.sliding_window is not None:
            is_masked |= distance >= self.sliding_window
        weights = scores.masked_fill(is_masked, -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, v.repeat_interleave(num_shared, 1))


SHAPES = [(4, 2, 16), (4, 1, 256), (3, 3, 63), (9, 3, 64), (32, 8, 128)]
WINDOWS = [None, 20, 200]


@pytest.mark.parametrize("sliding_window", WINDOWS)
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), SHAPES)
def test_whole_prompts_are_exact(num_heads: int, num_kv_heads: int, head_dim: int, sliding_window: int | None) -> None:
    lengths = [1, 63, 257]
    world = World(
        lengths, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, sliding_window=sliding_window
    )
    outputs = world.attend(*(Run(seq, 0, length) for seq, length in enumerate(lengths)))
    for seq, output in enumerate(outputs):
        assert (output - world.exact(seq)).abs().max() < 1e-5


@pytest.mark.parametrize("sliding_window", WINDOWS)
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), SHAPES)
def test_a_query_has_the_same_bits_in_every_batch(
    num_heads: int, num_kv_heads: int, head_dim: int, sliding_window: int | None
) -> None:
    lengths = [600, 33, 129, 1, 300]
    world = World(
        lengths, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, sliding_window=sliding_window
    )
    whole = [world.attend(Run(seq, 0, length))[0] for seq, length in enumerate(lengths)]
    batches = [
        [Run(seq, length - 1, length) for seq, length in enumerate(lengths)],
        [Run(0, 550, 600), Run(1, 32, 33), Run(2, 100, 129), Run(3, 0, 1), Run(4, 299, 300)],
        [Run(0, position, position + 1) for position in range(0, 600, 11)],
        [Run(0, 68, 128), Run(4, 126, 129), Run(4, 280, 300)],
    ]
    for runs in batches:
        for run, output in zip(runs, world.attend(*runs), strict=True):
            assert torch.equal(output, whole[run.seq][run.start : run.end]), run


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_a_chunk_of_a_single_head_does_not_depend_on_how_threads_share_it(num_threads: int) -> None:
    world = World([150], num_heads=1, num_kv_heads=1, head_dim=64)
    whole = world.attend(Run(0, 0, 150))[0]
    with threads(num_threads):
        for num_queries in (1, 12, 17, 27, 33, 49):
            assert torch.equal(world.attend(Run(0, 70, 70 + num_queries))[0], whole[70 : 70 + num_queries])


def test_cache_in_bfloat16_costs_the_rounding_of_the_output_alone() -> None:
    world = World([257], num_heads=4, num_kv_heads=2, head_dim=64, dtype=torch.bfloat16)
    (output,) = world.attend(Run(0, 0, 257))
    assert torch.allclose(output.double(), world.exact(0), rtol=2**-8, atol=1e-4)
