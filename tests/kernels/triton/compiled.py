"""`python -m tests.kernels.triton.compiled <dtype> <capability>...`: compiles every kernel for devices that are absent.

A driver that only says which device to compile for stands in for CUDA's, and a launch compiles and does nothing else.
What the interpreter cannot see fails here: types that differ in two branches, tiles that do not fit the tensor cores or
the shared memory.
"""

import os
import sys

os.environ.pop("TRITON_INTERPRET", None)

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from kernels.attention import AttentionBatch
from kernels.draw import Draw
from kernels.triton import (
    activation,
    attention,
    copy_blocks,
    embedding,
    matmul_int4,
    matmul_int8,
    norms,
    quantize,
    rotary,
    sampling,
)

SHARED_BYTES = {80: 166912, 86: 101376, 89: 101376, 90: 232448}  # that a program may have, by compute capability


class Absent:
    """A CUDA device of one compute capability, as far as compiling asks."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return int(self._target.arch)  # what is compiled for one device is not taken for another

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_kernels(capability: int, dtype: torch.dtype) -> int:
    """Compile what the calls below launch for tensors of `dtype`; how many kernels these are."""
    driver.set_active(Absent(capability))
    compiled: set[str] = set()
    run = JITFunction.run

    def compile_only(function: JITFunction, *args: object, grid: object, warmup: bool, **kwargs: object) -> object:
        kernel = run(function, *args, grid=grid, warmup=True, **kwargs)
        shared = kernel.metadata.shared
        name = f"{function.fn.__module__}.{function.fn.__name__}"
        assert shared <= SHARED_BYTES[capability], f"{name} takes {shared} bytes of shared memory"
        compiled.add(kernel.hash)
        return kernel

    JITFunction.run = compile_only
    try:
        launch_all(dtype)
    finally:
        JITFunction.run = run
    return len(compiled)


def launch_all(dtype: torch.dtype) -> None:
    """Every kernel in the shapes of a step with one row and of a long one."""
    for num_rows in (1, 200):
        x, weight = torch.zeros(num_rows, 1024, dtype=dtype), torch.ones(1024)
        norms.rms_norm(x, weight, 1e-6)
        norms.add_rms_norm(x, x, weight, 1e-6)
        activation.silu_and_mul(x)
        activation.gelu_and_mul(x)
        embedding.embedding(torch.zeros(num_rows, dtype=torch.int64), x, 2.0)
        embedding.select_rows(x, torch.zeros(num_rows, dtype=torch.int64))
        quantize.quantize_rows(x)
        bias = torch.zeros(512, dtype=dtype)
        matmul_int8.int8_linear(x, torch.zeros(512, 1024, dtype=torch.int8), torch.ones(512), bias)
        matmul_int8.int8_linear(x, torch.zeros(512, 1024, dtype=torch.int8), torch.ones(512), num_splits=1)
        packed = torch.zeros(512, 512, dtype=torch.uint8)
        for group in (32, 128):
            scales = torch.ones(512, 1024 // group, dtype=torch.float16)
            matmul_int4.int4_linear(x, packed, scales, scales.to(torch.uint8), bias)
            matmul_int4.int4_linear(x, packed, scales, num_splits=1)
        launch_rotary(x)
        launch_attention(x)
        sampling.greedy(x)
        sampling.draw_many(x, [Draw(0, 0, 1.0, 1.0, 0.0, 0.5)])
        sampling.draw_many(x, [Draw(0, 5, 1.0, 0.9, 0.1, 0.5)])


def launch_rotary(x: torch.Tensor) -> None:
    """Two heads of K and V beside four of Q."""
    cache, slots = torch.zeros(2, 2, 32, 2, 128, dtype=x.dtype), torch.zeros(len(x), dtype=torch.int64)
    cos_sin, norm = torch.zeros(len(x), 2, 64), torch.ones(128)
    rotary.rotate_and_store(x, cos_sin, cache, slots, num_heads=4, q_norm=norm, k_norm=norm, eps=1e-6)
    rotary.rotate_and_store(x, cos_sin, cache, slots, num_heads=4)


def launch_attention(x: torch.Tensor) -> None:
    """Two sequences: the last of x's rows is one token of the second, the others are a chunk of the first or its only
    token, with a sliding window and without; and the cache's own kernels."""
    q = x.view(-1, 8, 128).repeat(2, 1, 1)[: max(2, len(x))]
    cache = torch.zeros(8, 2, 32, 4, 128, dtype=x.dtype)
    batch = AttentionBatch(
        slot_mapping=torch.arange(len(q)),
        block_tables=torch.zeros(2, 8, dtype=torch.int32),
        cu_seqlens_q=torch.tensor([0, len(q) - 1, len(q)], dtype=torch.int32),
        context_lens=torch.tensor([len(q), 9], dtype=torch.int32),
    )
    for window in (None, 16):
        attention.paged_attention(q, cache, batch, 0.1, window)
    copy_blocks.copy_blocks(cache, cache, [(0, 1)])


def main(dtype: str, capabilities: list[str]) -> None:
    for capability in map(int, capabilities):
        num_kernels = compile_kernels(capability, getattr(torch, dtype))
        print(f"sm_{capability}, {dtype}: {num_kernels} kernels, Triton {triton.__version__}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
