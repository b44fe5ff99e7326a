"""Rotary, the cache's writes and paged attention in every instruction set, against the reference and against
themselves in other batches."""

from dataclasses import dataclass

import pytest
import torch

from kernels import AttentionBatch, make_kv_cache, reference
from kernels.cpu.library import instruction_sets, library
from kernels.reference_attention import paged_attention
from tests.kernels.cpu.running import padded, run_once

pytestmark = pytest.mark.skipif(library() is None, reason="the library of CPU kernels is not built")

every_set = pytest.mark.parametrize("instruction_set", instruction_sets())
both_dtypes = pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.int8], ids=str)
both_block_sizes = pytest.mark.parametrize("block_size", [16, 32])

MAX_POSITIONS = 1024
EPS = 1e-6


@dataclass(frozen=True)
class Shape:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    has_norms: bool = False

    @property
    def num_columns(self) -> int:
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


SMOL, QWEN, GEMMA = Shape(9, 3, 64), Shape(16, 8, 128, has_norms=True), Shape(4, 1, 256, has_norms=True)
SHAPES = [SMOL, QWEN, GEMMA, Shape(3, 3, 32), Shape(14, 2, 96), Shape(40, 1, 32)]


@dataclass(frozen=True)
class Run:
    """The tokens at positions [start, end) of one sequence, as one step computes them."""

    seq: int
    start: int
    end: int


class World:
    """Sequences of random Q, K and V, and a cache in shuffled blocks where every slot not yet written holds NaN."""

    def __init__(
        self,
        lengths: list[int],
        shape: Shape,
        instruction_set: str,
        *,
        kv_dtype: torch.dtype = torch.bfloat16,
        block_size: int = 16,
        sliding_window: int | None = None,
        num_threads: int = 1,
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        self.shape, self.block_size, self.sliding_window = shape, block_size, sliding_window
        self.instruction_set, self.num_threads = instruction_set, num_threads
        num_blocks = [-(-length // block_size) for length in lengths]
        shuffled = torch.randperm(sum(num_blocks) + 1, generator=generator).int()
        self.block_tables = shuffled[-1].repeat(len(lengths), max(num_blocks))
        for seq, blocks in enumerate(shuffled[:-1].split(num_blocks)):
            self.block_tables[seq, : len(blocks)] = blocks
        self.qkv = [torch.randn(length, shape.num_columns, generator=generator).bfloat16() for length in lengths]
        self.norms = 0.5 + torch.rand(2, shape.head_dim, generator=generator) if shape.has_norms else [None, None]
        half = shape.head_dim // 2
        self.table = reference.rotary_cos_sin(torch.arange(MAX_POSITIONS), 10000.0 ** (-torch.arange(half) / half))
        exact_dtype = torch.int8 if kv_dtype == torch.int8 else torch.float32
        self.cache, self.exact_cache = (
            make_kv_cache(
                num_blocks=len(shuffled),
                num_layers=2,
                block_size=block_size,
                num_kv_heads=shape.num_kv_heads,
                head_dim=shape.head_dim,
                dtype=dtype,
                device="cpu",
            )
            for dtype in (kv_dtype, exact_dtype)
        )
        for cache in (self.cache, self.exact_cache):
            cache.view(torch.int8).fill_(-1)  # as a float of any width, a NaN

    def batch(self, runs: tuple[Run, ...]) -> tuple[torch.Tensor, AttentionBatch]:
        """The positions of the runs' tokens, and where they live."""
        positions = [torch.arange(run.start, run.end) for run in runs]
        slots = [
            self.block_tables[run.seq][at // self.block_size].long() * self.block_size + at % self.block_size
            for run, at in zip(runs, positions, strict=True)
        ]
        return torch.cat(positions), AttentionBatch(
            slot_mapping=torch.cat(slots),
            block_tables=self.block_tables[[run.seq for run in runs]],
            cu_seqlens_q=torch.tensor([0, *(run.end - run.start for run in runs)]).cumsum(0).int(),
            context_lens=torch.tensor([run.end for run in runs]).int(),
        )

    def step(self, *runs: Run) -> list[torch.Tensor]:
        """Write the runs' K and V and attend: bfloat16 [end - start, num_heads * head_dim] per run."""
        positions, batch = self.batch(runs)
        shape, layer = self.shape, self.cache[:, 1]
        qkv = padded(torch.cat([self.qkv[run.seq][run.start : run.end] for run in runs]))
        q, out = (
            padded(torch.full((len(positions), shape.num_heads * shape.head_dim), torch.nan, dtype=torch.bfloat16))
            for _ in range(2)
        )
        cache = (layer, layer.stride(0), self.block_size, shape.num_heads, shape.num_kv_heads, shape.head_dim)
        suffix = "_int8" if layer.dtype == torch.int8 else ""
        arguments = (qkv, qkv.stride(0), *self._rotary(), q, q.stride(0), *cache)
        self._run("rotate_and_store" + suffix, positions, batch, *arguments)
        window_and_scale = (self.sliding_window or 0, shape.head_dim**-0.5)
        arguments = (q, q.stride(0), *cache, *window_and_scale, out, out.stride(0))
        self._run("attention" + suffix, positions, batch, *arguments)
        self.rotated = q
        return list(out.split([run.end - run.start for run in runs]))

    def expected(self, *runs: Run) -> list[torch.Tensor]:
        """What `step` returns, by the reference in fp32 over Q, K and V rounded as the kernels round them."""
        positions, batch = self.batch(runs)
        shape, layer = self.shape, self.exact_cache[:, 1]
        qkv = torch.cat([self.qkv[run.seq][run.start : run.end] for run in runs]).float()
        heads = qkv.view(len(qkv), -1, shape.head_dim)
        q, k, v = heads.split([shape.num_heads, shape.num_kv_heads, shape.num_kv_heads], dim=1)
        if shape.has_norms:
            q, k = (reference.rms_norm(x, norm, EPS) for x, norm in zip((q, k), self.norms, strict=True))
        q, k = reference.apply_rotary(q, k, self.table[positions])
        q = q.bfloat16().float()
        if layer.dtype != torch.int8:
            k, v = k.bfloat16().float(), v.bfloat16().float()
        self.expected_rotated = q.flatten(1)
        reference.store_kv(k, v, layer, batch.slot_mapping)
        out = paged_attention(q, layer, batch, shape.head_dim**-0.5, self.sliding_window).flatten(1)
        return list(out.split([run.end - run.start for run in runs]))

    def _rotary(self) -> tuple[torch.Tensor | float | None, ...]:
        return *self.norms, EPS, self.table

    def _run(self, name: str, positions: torch.Tensor, batch: AttentionBatch, *arguments: object) -> None:
        run_once(
            name,
            *arguments,
            num_tokens=len(positions),
            positions=positions,
            batch=batch,
            instruction_set=self.instruction_set,
            num_threads=self.num_threads,
        )


def assert_steps_are_right(world: World, *steps: list[Run]) -> None:
    for runs in steps:
        found, expected = world.step(*runs), world.expected(*runs)
        rounding = world.expected_rotated.abs() * 2**-7 + 1e-5  # of values that differ in the last bits of a float
        assert ((world.rotated.float() - world.expected_rotated).abs() <= rounding).all()
        for out, exact in zip(found, expected, strict=True):
            # Weights and results are bfloat16: each is off by 2 to the -9, relatively.
            assert ((out.float() - exact).abs() <= 1e-2 * exact.abs().amax(dim=1, keepdim=True)).all()


@every_set
@both_dtypes
@both_block_sizes
@pytest.mark.parametrize("sliding_window", [None, 1, 20, 130])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_mixed_batch_is_right_though_unwritten_slots_are_nan(
    shape: Shape, sliding_window: int | None, block_size: int, kv_dtype: torch.dtype, instruction_set: str
) -> None:
    options = {"kv_dtype": kv_dtype, "block_size": block_size, "sliding_window": sliding_window}
    world = World([1, 300, 47, 140, 33, 64], shape, instruction_set, **options)
    prompts = [Run(1, 0, 299), Run(2, 0, 44), Run(3, 0, 100), Run(4, 0, 32)]
    assert_steps_are_right(
        world,
        prompts,
        [Run(0, 0, 1), Run(1, 299, 300), Run(2, 44, 47), Run(3, 100, 140), Run(4, 32, 33), Run(5, 0, 64)],
    )


@every_set
@both_dtypes
@both_block_sizes
def test_a_context_may_end_anywhere_in_a_block_and_in_a_tile(
    block_size: int, kv_dtype: torch.dtype, instruction_set: str
) -> None:
    lengths = [*range(1, 35), 63, 64, 65, 127, 128, 129, 143, 144, 145, 256, 257]
    world = World(lengths, Shape(2, 1, 32), instruction_set, kv_dtype=kv_dtype, block_size=block_size)
    prompts = [Run(seq, 0, length - 1) for seq, length in enumerate(lengths) if length > 1]
    assert_steps_are_right(world, prompts, [Run(seq, length - 1, length) for seq, length in enumerate(lengths)])


@every_set
@both_dtypes
@both_block_sizes
@pytest.mark.parametrize("sliding_window", [None, 200])  # more than a tile of keys
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_token_has_the_same_bits_in_every_chunk(
    shape: Shape, sliding_window: int | None, block_size: int, kv_dtype: torch.dtype, instruction_set: str
) -> None:
    def world() -> World:
        options = {"kv_dtype": kv_dtype, "block_size": block_size, "sliding_window": sliding_window}
        return World([290], shape, instruction_set, **options)

    (whole,) = world().step(Run(0, 0, 290))
    for cuts in ([0, 1, 2, 150, 151, 160, 289, 290], [0, 128, 256, 290], [0, 3, 19, 36, 100, 290]):
        chunked = world()
        chunks = [chunked.step(Run(0, start, end))[0] for start, end in zip(cuts, cuts[1:], strict=False)]
        assert torch.equal(torch.cat(chunks), whole)


@every_set
@both_dtypes
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_sequence_has_the_same_bits_alone_in_a_batch_and_on_two_threads(
    shape: Shape, kv_dtype: torch.dtype, instruction_set: str
) -> None:
    lengths = [200, 33, 129, 2, 300]
    prompts = [Run(seq, 0, length - 1) for seq, length in enumerate(lengths)]
    decodes = [Run(seq, length - 1, length) for seq, length in enumerate(lengths)]
    batches = []
    for num_threads in (1, 2):
        world = World(lengths, shape, instruction_set, kv_dtype=kv_dtype, num_threads=num_threads)
        batches.append([*world.step(*prompts), *world.step(*decodes)])
    alone = World(lengths, shape, instruction_set, kv_dtype=kv_dtype)
    batches.append([alone.step(run)[0] for run in (*prompts, *decodes)])
    for outputs in zip(*batches, strict=True):
        assert torch.equal(outputs[0], outputs[1])
        assert torch.equal(outputs[0], outputs[2])


@every_set
@both_dtypes
@pytest.mark.parametrize("columns", [slice(None), slice(9 * 64, 9 * 64 + 1), slice(-1, None)], ids=["all", "K", "V"])
def test_a_nan_stays_in_its_sequence(columns: slice, kv_dtype: torch.dtype, instruction_set: str) -> None:
    lengths = [40, 70, 20]
    runs = [Run(seq, 0, length) for seq, length in enumerate(lengths)]
    healthy, broken = (World(lengths, SMOL, instruction_set, kv_dtype=kv_dtype) for _ in range(2))
    broken.qkv[1][-1, columns] = torch.nan
    expected, found = healthy.step(*runs), broken.step(*runs)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[2], expected[2])
    assert found[1][-1].isnan().any()


@every_set
def test_a_block_means_the_same_to_every_instruction_set(instruction_set: str) -> None:
    lengths = [50]
    caches = []
    for name in (instruction_set, instruction_sets()[-1]):
        world = World(lengths, SMOL, name)
        world.step(Run(0, 0, 50))
        caches.append(world.cache)
    difference = (caches[0].float() - caches[1].float()).abs()
    assert torch.equal(caches[0].isnan(), caches[1].isnan())
    assert (difference.nan_to_num() <= caches[1].float().abs().nan_to_num() * 2**-7 + 1e-5).all()


@every_set
def test_an_int8_block_of_one_instruction_set_is_read_by_another(instruction_set: str) -> None:
    lengths = [50, 200]
    prompts, decodes = [Run(0, 0, 49), Run(1, 0, 199)], [Run(0, 49, 50), Run(1, 199, 200)]
    writer, reader = (World(lengths, SMOL, name, kv_dtype=torch.int8) for name in (instruction_set, "portable"))
    writer.step(*prompts)
    reader.cache.copy_(writer.cache)
    for mine, other in zip(writer.step(*decodes), reader.step(*decodes), strict=True):
        assert ((mine.float() - other.float()).abs() <= 1e-2 * other.float().abs().amax(dim=1, keepdim=True)).all()
