"""What every Triton kernel is checked and timed with: shapes of Qwen3-0.6B's layers, or small odd ones."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from kernels import reference
from kernels.triton import activation, copy_blocks, embedding, norms, rotary
from tests.gpu.attention_cases import attention_cases
from tests.gpu.matmul_cases import matmul_cases
from tests.gpu.measure import Case
from tests.gpu.sampling_cases import sampling_cases

EPS = 1e-6


@dataclass(frozen=True)
class Sizes:
    """How large the tensors are; `dtype` is what the interpreter rounds as a device does."""

    dtype: torch.dtype
    rows: int
    hidden: int
    inner: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    block_size: int
    num_seqs: int
    context_len: int
    chunk: int  # queries of the one sequence that is prefilled
    weight: tuple[int, int]  # outputs and columns of a quantized matrix, beyond the cache of a device
    linear_rows: tuple[int, ...]


LARGE = Sizes(torch.bfloat16, 8192, 1024, 3072, 16, 8, 128, 151936, 32, 256, 1024, 2048, (16384, 8192), (1, 16, 256))
TINY = Sizes(torch.float16, 3, 96, 65, 4, 2, 32, 257, 32, 2, 40, 33, (65, 256), (1, 5))


def make_cases(device: str, *, is_tiny: bool) -> Iterator[Case]:
    """One at a time, as each holds its tensors."""
    torch.manual_seed(0)
    sizes = TINY if is_tiny else LARGE
    makers = (_norm_cases, _row_cases, _rotary_cases, _cache_cases, attention_cases, matmul_cases, sampling_cases)
    for cases in (make(sizes) for make in makers):
        while (case := _next_on(device, cases)) is not None:
            yield case


def _next_on(device: str, cases: Iterator[Case]) -> Case | None:
    """The next one, whose tensors are made on `device`; nothing else is, such as what a kernel's caller makes."""
    with torch.device(device):
        return next(cases, None)


def _norm_cases(sizes: Sizes) -> Iterator[Case]:
    x, residual = torch.randn(2, sizes.rows, sizes.hidden).to(sizes.dtype)
    weight = torch.randn(sizes.hidden)
    yield Case(
        "rms_norm",
        f"{sizes.rows} x {sizes.hidden}",
        run=lambda: (norms.rms_norm(x, weight, EPS),),
        reference=lambda: (reference.rms_norm(x, weight, EPS),),
        exact=lambda: (reference.rms_norm(x.float(), weight, EPS),),
        num_bytes=2 * x.nbytes,
    )
    total = x + residual
    yield Case(
        "add_rms_norm",
        f"{sizes.rows} x {sizes.hidden}",
        run=lambda: norms.add_rms_norm(x, residual, weight, EPS),
        reference=lambda: reference.add_rms_norm(x, residual, weight, EPS),
        exact=lambda: (reference.rms_norm(total.float(), weight, EPS), total.float()),
        num_bytes=4 * x.nbytes,
    )


def _row_cases(sizes: Sizes) -> Iterator[Case]:
    x = torch.randn(sizes.rows, 2 * sizes.inner).to(sizes.dtype)
    for name in ("silu_and_mul", "gelu_and_mul"):
        ours, theirs = getattr(activation, name), getattr(reference, name)
        yield Case(
            name,
            f"{sizes.rows} x {sizes.inner}",
            run=lambda ours=ours: (ours(x),),
            reference=lambda theirs=theirs: (theirs(x),),
            exact=lambda theirs=theirs: (theirs(x.float()),),
            num_bytes=x.nbytes * 3 // 2,
        )
    weight = torch.randn(sizes.vocab_size, sizes.hidden).to(sizes.dtype)
    ids = torch.randint(sizes.vocab_size, (sizes.rows,))
    yield Case(
        "embedding",
        f"{sizes.rows} of {sizes.vocab_size} x {sizes.hidden}",
        run=lambda: (embedding.embedding(ids, weight, 25.0),),
        reference=lambda: (reference.embedding(ids, weight, 25.0),),
        exact=lambda: (weight[ids].float() * 25.0,),
        num_bytes=2 * sizes.rows * sizes.hidden * weight.element_size(),
    )


def _rotary_cases(sizes: Sizes) -> Iterator[Case]:
    num_all_heads = sizes.num_heads + 2 * sizes.num_kv_heads
    qkv = torch.randn(sizes.rows, num_all_heads * sizes.head_dim).to(sizes.dtype)
    cos_sin = torch.randn(sizes.rows, 2, sizes.head_dim // 2)
    num_blocks = sizes.rows // sizes.block_size + 1
    caches = torch.zeros(2, num_blocks, 2, sizes.block_size, sizes.num_kv_heads, sizes.head_dim, dtype=sizes.dtype)
    wide = caches[0].float()
    slots = torch.randperm(num_blocks * sizes.block_size)[: sizes.rows]
    weights = torch.randn(2, sizes.head_dim)
    options = {"num_heads": sizes.num_heads, "q_norm": weights[0], "k_norm": weights[1], "eps": EPS}
    yield Case(
        "rotate_and_store",
        f"{sizes.rows} x ({sizes.num_heads} + 2 x {sizes.num_kv_heads}) x {sizes.head_dim}",
        run=lambda: (rotary.rotate_and_store(qkv, cos_sin, caches[0], slots, **options), caches[0]),
        reference=lambda: (reference.rotate_and_store(qkv, cos_sin, caches[1], slots, **options), caches[1]),
        exact=lambda: (reference.rotate_and_store(qkv.float(), cos_sin, wide, slots, **options), wide),
        num_bytes=2 * qkv.nbytes + cos_sin.nbytes,
    )


def _cache_cases(sizes: Sizes) -> Iterator[Case]:
    num_blocks = sizes.rows // sizes.block_size + 3
    shape = (num_blocks, 2, sizes.block_size, sizes.num_kv_heads, sizes.head_dim)
    source, target = torch.randn(2, *shape).to(sizes.dtype)
    pairs = [(i, num_blocks - 1 - i) for i in range(num_blocks)]
    yield Case(
        "copy_blocks",
        f"{num_blocks} x {source[0].numel()}",
        run=lambda: (copy_blocks.copy_blocks(source, target, pairs), (target,))[1],
        reference=lambda: (source.flip(0),),
        exact=lambda: (source.flip(0),),
        num_bytes=2 * source.nbytes,
    )
