"""Paged attention in Triton against plain attention in float64, the reference, and itself in other batches."""

import dataclasses

import pytest
import torch

from kernels import reference_attention
from kernels.triton import attention_decode
from kernels.triton.attention import paged_attention
from tests.kernels.paged import Paged, Run

SHAPES = [(4, 2, 16), (3, 1, 96), (3, 3, 63), (9, 3, 64), (2, 1, 256)]  # heads of Q, of K and V, and their elements
WINDOWS = [None, 20, 100]

every_shape = pytest.mark.parametrize("heads", SHAPES)
every_window = pytest.mark.parametrize("sliding_window", WINDOWS)


@every_window
@every_shape
def test_prompts_are_exact(heads: tuple[int, int, int], sliding_window: int | None) -> None:
    lengths = [2, 63, 131]
    world = Paged(lengths, heads, block_size=32, sliding_window=sliding_window)
    runs = [Run(seq, 0, length) for seq, length in enumerate(lengths)]
    for run, output in zip(runs, world.attend(paged_attention, *runs), strict=True):
        assert (output - world.exact(run)).abs().max() < 1e-5, run


@every_window
@every_shape
def test_single_queries_are_exact(heads: tuple[int, int, int], sliding_window: int | None) -> None:
    lengths = [1, 63, 257, 300]
    world = Paged(lengths, heads, block_size=32, sliding_window=sliding_window)
    runs = [Run(seq, length - 1, length) for seq, length in enumerate(lengths)]
    for run, output in zip(runs, world.attend(paged_attention, *runs), strict=True):
        assert (output - world.exact(run)).abs().max() < 1e-5, run


@pytest.mark.parametrize("block_size", [16, 32])
@every_window
def test_chunks_and_single_queries_together_equal_the_reference(sliding_window: int | None, block_size: int) -> None:
    world = Paged([300, 129, 1, 64, 500], (6, 2, 32), block_size=block_size, sliding_window=sliding_window)
    runs = [Run(0, 250, 300), Run(1, 128, 129), Run(2, 0, 1), Run(3, 62, 64), Run(4, 499, 500)]
    expected = world.attend(reference_attention.paged_attention, *runs)
    for run, output, right in zip(runs, world.attend(paged_attention, *runs), expected, strict=True):
        assert torch.allclose(output, right, rtol=0, atol=2e-6), run


def test_blocks_may_be_of_any_size() -> None:
    lengths = [257, 300]
    for block_size in (1, 8, 48, 256):
        world = Paged(lengths, (2, 1, 16), block_size=block_size)
        runs = [Run(0, 256, 257), Run(1, 240, 300)]
        for run, output in zip(runs, world.attend(paged_attention, *runs), strict=True):
            assert (output - world.exact(run)).abs().max() < 1e-5, (run, block_size)


@every_window
def test_a_single_query_has_the_same_bits_in_every_batch(sliding_window: int | None) -> None:
    lengths = [600, 33, 129, 1, 300]
    world = Paged(lengths, (4, 2, 16), block_size=32, sliding_window=sliding_window)
    last = [Run(seq, length - 1, length) for seq, length in enumerate(lengths)]
    together = world.attend(paged_attention, *last)
    for run, output in zip(last, together, strict=True):
        (alone,) = world.attend(paged_attention, run)
        beside_chunk = world.attend(paged_attention, Run(0, 500, 550), run)[1]
        assert torch.equal(alone, output) and torch.equal(beside_chunk, output), run


@every_window
def test_a_query_of_a_chunk_has_the_same_bits_however_the_prompt_is_cut(sliding_window: int | None) -> None:
    world = Paged([300, 70], (3, 1, 16), block_size=32, sliding_window=sliding_window)
    (whole,) = world.attend(paged_attention, Run(0, 0, 300))
    for cuts in ([0, 2, 5, 100, 300], [0, 64, 128, 192, 256, 300], [0, 131, 300]):
        for start, end in zip(cuts, cuts[1:], strict=False):
            _, output = world.attend(paged_attention, Run(1, 7, 70), Run(0, start, end))
            assert torch.equal(output, whole[start:end]), (start, end)


def test_a_context_of_more_splits_than_are_made_is_exact() -> None:
    world = Paged([2500], (2, 2, 16), block_size=32)
    run = Run(0, 2499, 2500)
    exact = world.exact(run)
    for many in (attention_decode.MANY_PROGRAMS, 16):  # splits of 256 tokens, and 8 longer ones
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(attention_decode, "MANY_PROGRAMS", many)
            (output,) = world.attend(paged_attention, run)
        assert (output - exact).abs().max() < 1e-5


@pytest.mark.parametrize("run", [Run(0, 256, 257), Run(0, 100, 257)])
def test_half_precision_errs_no_more_than_pytorch_does(run: Run) -> None:
    world = Paged([257], (4, 2, 64), block_size=32, dtype=torch.float16)
    (output,) = world.attend(paged_attention, run)
    error = (output.double() - world.exact(run)).abs().max()
    assert error <= 2 * (world.rounded(run).double() - world.exact(run)).abs().max()


def test_queries_may_lie_within_wider_rows_and_tables_within_wider_tables() -> None:
    world = Paged([90, 40], (4, 2, 16), block_size=16)
    runs = [Run(0, 50, 90), Run(1, 39, 40)]
    batch = world.batch(*runs)
    wide = torch.full((2, batch.block_tables.shape[1] + 3), -1, dtype=torch.int32)
    wide[:, :-3] = batch.block_tables
    batch = dataclasses.replace(batch, block_tables=wide[:, :-3])
    q = torch.cat([world.tensors[run.seq][0][run.start : run.end] for run in runs])
    qkv = torch.full((41, 8, 16), torch.nan)
    qkv[:, :4] = q
    out = paged_attention(qkv[:, :4], world.cache[:, 1], batch, world.scale)
    assert torch.equal(out, torch.cat(world.attend(paged_attention, *runs)))


def test_a_cache_of_another_dtype_is_refused() -> None:
    world = Paged([9], (2, 1, 16), block_size=16, dtype=torch.float16)
    with pytest.raises(AssertionError, match="the cache torch.float16"):
        paged_attention(torch.zeros(1, 2, 16), world.cache[:, 1], world.batch(Run(0, 8, 9)), 1.0)
