"""The seam to flash-attn, by a stand-in that checks its arguments as the library does."""

import dataclasses
import inspect
import sys
from collections.abc import Iterator

import pytest
import torch

from kernels import attention_block_size, flash_attention
from tests.kernels.flash_attn_stand_in import MODULE, StandIn
from tests.kernels.paged import Paged, Run

SHAPES = [(4, 2, 16), (3, 1, 96), (9, 3, 64), (2, 1, 256)]
WINDOWS = [None, 1, 20, 200, 5000]
DECODE, CHUNKS = "flash_attn_with_kvcache", "flash_attn_varlen_func"


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    module = StandIn()
    monkeypatch.setitem(sys.modules, MODULE, module)
    return module


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def assert_right(world: Paged, *runs: Run) -> None:
    """Up to the rounding of the output, as the stand-in computes in fp32."""
    for run, output in zip(runs, world.attend(flash_attention.paged_attention, *runs), strict=True):
        epsilon = torch.finfo(output.dtype).eps
        assert torch.allclose(output.double(), world.exact(run), rtol=epsilon, atol=1e-4), run


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("sliding_window", WINDOWS)
@pytest.mark.parametrize("heads", SHAPES)
def test_single_queries_go_through_the_cache_function(
    stand_in: StandIn, heads: tuple[int, int, int], sliding_window: int | None, dtype: torch.dtype
) -> None:
    world = Paged([1, 257, 600], heads, block_size=256, dtype=dtype, sliding_window=sliding_window)
    assert_right(world, Run(0, 0, 1), Run(1, 256, 257), Run(2, 599, 600))
    assert [name for name, _ in stand_in.calls] == [DECODE]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("sliding_window", WINDOWS)
@pytest.mark.parametrize("heads", SHAPES)
def test_chunks_go_through_the_varlen_function(
    stand_in: StandIn, heads: tuple[int, int, int], sliding_window: int | None, dtype: torch.dtype
) -> None:
    world = Paged([63, 257, 600], heads, block_size=256, dtype=dtype, sliding_window=sliding_window)
    assert_right(world, Run(0, 0, 63), Run(1, 256, 257), Run(2, 400, 600))
    assert [name for name, _ in stand_in.calls] == [CHUNKS]


def test_bounds_given_to_the_library_hold_for_one_chunk_beside_single_queries(stand_in: StandIn) -> None:
    world = Paged([300, 20, 513], (2, 1, 16), block_size=256, dtype=torch.float16)
    assert_right(world, Run(0, 299, 300), Run(1, 0, 20), Run(2, 512, 513))
    assert stand_in.calls == [(CHUNKS, {"max_seqlen_q": 20, "max_seqlen_k": 768})]


def test_contexts_are_summed_once_for_all_layers(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Paged([300, 20], (2, 1, 16), block_size=256, dtype=torch.float16)
    batch = world.batch(Run(0, 290, 300), Run(1, 19, 20))
    q, given = torch.zeros(11, 2, 16, dtype=torch.float16), []
    original = stand_in.flash_attn_varlen_func

    def remember(*args: object, **kwargs: object) -> object:
        given.append(kwargs["cu_seqlens_k"])
        return original(*args, **kwargs)

    monkeypatch.setattr(stand_in, "flash_attn_varlen_func", remember)
    for _ in range(2):
        flash_attention.paged_attention(q, world.cache[:, 1], batch, world.scale)
    assert given[0].tolist() == [0, 300, 320] and given[1] is given[0]


def test_contexts_are_split_to_fill_the_device(stand_in: StandIn) -> None:
    assert_right(Paged([300], (2, 1, 16), block_size=256, dtype=torch.float16), Run(0, 299, 300))
    assert stand_in.calls == [(DECODE, {"num_splits": 0})]


def test_contexts_are_not_split_while_pytorch_is_deterministic(stand_in: StandIn, deterministic: None) -> None:
    assert_right(Paged([300], (2, 1, 16), block_size=256, dtype=torch.float16), Run(0, 299, 300))
    assert stand_in.calls == [(DECODE, {"num_splits": 1})]


def test_tables_may_lie_within_wider_tables(stand_in: StandIn) -> None:
    world = Paged([300, 20], (2, 1, 16), block_size=256, dtype=torch.float16)
    for runs in ((Run(0, 299, 300), Run(1, 19, 20)), (Run(0, 290, 300), Run(1, 19, 20))):
        batch = world.batch(*runs)
        wide = torch.full((2, 5), -1, dtype=torch.int32)
        wide[:, :2] = batch.block_tables
        batch = dataclasses.replace(batch, block_tables=wide[:, :2])
        q = torch.cat([world.tensors[run.seq][0][run.start : run.end] for run in runs])
        out = flash_attention.paged_attention(q, world.cache[:, 1], batch, world.scale)
        assert torch.equal(out, torch.cat(world.attend(flash_attention.paged_attention, *runs)))


@pytest.mark.parametrize(
    ("dtype", "block_size", "message"),
    [(torch.float32, 256, "only support fp16 and bf16"), (torch.float16, 32, "must be divisible by 256")],
)
@pytest.mark.parametrize("start", [290, 299])
def test_the_stand_in_refuses_what_the_library_refuses(
    stand_in: StandIn, start: int, dtype: torch.dtype, block_size: int, message: str
) -> None:
    world = Paged([300], (2, 1, 16), block_size=block_size, dtype=dtype)
    with pytest.raises(RuntimeError, match=message):
        world.attend(flash_attention.paged_attention, Run(0, start, 300))


def test_the_stand_in_has_the_signatures_of_the_library() -> None:
    library = pytest.importorskip(MODULE)
    for name in (DECODE, CHUNKS):
        found, expected = (inspect.signature(getattr(module, name)).parameters for module in (StandIn(), library))
        assert [(p.name, p.default) for p in found.values()] == [(p.name, p.default) for p in expected.values()]


@pytest.mark.parametrize(
    ("capability", "dtype", "head_dim", "block_size"),
    [
        ((8, 0), torch.bfloat16, 128, 256),
        ((9, 0), torch.float16, 256, 256),
        ((7, 5), torch.float16, 128, 32),  # a device too old
        ((9, 0), torch.float32, 128, 32),
        ((9, 0), torch.bfloat16, 264, 32),  # heads too long
        ((9, 0), torch.bfloat16, 63, 32),  # heads that would be padded
    ],
)
def test_block_size_is_that_of_flash_attn_where_it_can_attend(
    stand_in: StandIn,
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    dtype: torch.dtype,
    head_dim: int,
    block_size: int,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert attention_block_size("cuda", dtype=dtype, head_dim=head_dim) == block_size
    assert attention_block_size("cpu", dtype=dtype, head_dim=head_dim) == 16


def test_block_size_is_that_of_triton_without_flash_attn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setitem(sys.modules, MODULE, None)  # importing it fails
    assert attention_block_size("cuda", dtype=torch.bfloat16, head_dim=128) == 32
