"""Linear layers as a program records them: what they are rounded to, and weights in parts of several formats."""

import pytest
import torch

from kernels import linear
from kernels.attention import AttentionBatch
from kernels.cpu.library import instruction_sets, library
from kernels.cpu.pack_int4 import quantize_int4
from kernels.cpu.pack_int8 import pack_int8, quantize_int8
from kernels.cpu.packed import PackedMatrix, pack_bf16
from kernels.cpu.program import Program, recording
from kernels.cpu.threads import Threads
from tests.kernels.cpu.running import one_sequence

pytestmark = pytest.mark.skipif(library() is None, reason="the library of CPU kernels is not built")

NUM_TOKENS, NUM_COLUMNS = 19, 96


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def compute(
    x: torch.Tensor,
    weight: PackedMatrix | tuple[PackedMatrix, ...],
    bias: torch.Tensor | None,
    instruction_set: str,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    program = Program(Threads(1), max_tokens=len(x), max_rows=1, instruction_set=instruction_set)
    rows = program.tokens(x.shape[1], torch.bfloat16)
    rows.copy_(x)
    with recording(program):
        out = linear(rows, weight, bias, out_dtype=out_dtype)
    zeros = torch.zeros(len(x), dtype=torch.int64)
    batch: AttentionBatch = one_sequence(len(x))
    program.run(zeros, zeros, batch, torch.zeros(0, dtype=torch.int64))
    return out.clone()


@pytest.mark.parametrize("instruction_set", instruction_sets())
def test_results_are_rounded_to_bfloat16_unless_another_dtype_is_asked_for(instruction_set: str) -> None:
    x, weight = random(NUM_TOKENS, NUM_COLUMNS, seed=0).bfloat16(), pack_bf16(random(100, NUM_COLUMNS, seed=1))
    exact = compute(x, weight, None, instruction_set, torch.float32)
    rounded = compute(x, weight, None, instruction_set)
    assert exact.dtype == torch.float32 and torch.equal(rounded, exact.bfloat16())
    assert not torch.equal(rounded.float(), exact)


@pytest.mark.parametrize("instruction_set", instruction_sets())
@pytest.mark.parametrize("has_bias", [False, True])
def test_each_part_gives_its_columns_the_bits_that_it_gives_alone(instruction_set: str, has_bias: bool) -> None:
    x = random(NUM_TOKENS, NUM_COLUMNS, seed=0).bfloat16()
    weights = [random(num_rows, NUM_COLUMNS, seed=num_rows) for num_rows in (128, 64, 100)]
    parts = (quantize_int4(weights[0]), pack_bf16(weights[1]), pack_int8(*quantize_int8(weights[2])))
    bias = random(292, seed=1) if has_bias else None
    biases = [None] * 3 if bias is None else bias.split((128, 64, 100))
    alone = [compute(x, part, each, instruction_set) for part, each in zip(parts, biases, strict=True)]
    assert torch.equal(compute(x, parts, bias, instruction_set), torch.cat(alone, dim=1))


def test_part_that_would_write_over_the_next_is_refused() -> None:
    part = pack_bf16(random(96, NUM_COLUMNS, seed=0))
    with pytest.raises(AssertionError, match="a part would write over the next"):
        compute(random(NUM_TOKENS, NUM_COLUMNS, seed=0), (part, part), None, instruction_sets()[0])
