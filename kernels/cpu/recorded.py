"""The operations as a program records them: each appends its C++ kernel and returns where the result will be."""

import torch

from kernels.attention import head_dim_of
from kernels.cpu.packed import PackedMatrix
from kernels.cpu.program import Argument, Program

FLOAT, BFLOAT16 = 0, 1  # `OutKind`
KINDS = {torch.float32: FLOAT, torch.bfloat16: BFLOAT16}
PLAIN = 0
EPILOGUES = {"silu": 1, "gelu": 2}  # `Epilogue`


def embedding(program: Program, weight: PackedMatrix, scale: float | None) -> torch.Tensor:
    out = program.tokens(weight.num_columns, torch.float32)
    factor = 1.0 if scale is None else float(torch.tensor(scale, dtype=torch.bfloat16))
    program.append(
        f"embedding_{weight.format}",
        *(weight.data, weight.padded_rows, weight.padded_columns, factor),
        *rows_of(out),
    )
    return out


def select_rows(program: Program, x: torch.Tensor) -> torch.Tensor:
    y = program.rows(x.shape[1], torch.bfloat16)
    program.append("select_rows", *rows_of(x), *rows_of(y), x.shape[1])
    return y


def linear(
    program: Program,
    x: torch.Tensor,
    weight: PackedMatrix | tuple[PackedMatrix, ...],
    bias: torch.Tensor | None,
    out_dtype: torch.dtype | None,
) -> torch.Tensor:
    """A kernel for each part of the weight. It writes whole panels, so each part begins where one ends."""
    parts = (weight,) if isinstance(weight, PackedMatrix) else weight
    assert all(part.num_rows == part.padded_rows for part in parts[:-1]), "a part would write over the next"
    out = program.like(x, sum(part.num_rows for part in parts), out_dtype or torch.bfloat16)
    end = 0
    for part in parts:
        begin, end = end, end + part.num_rows
        _append_linear(program, x, part, None if bias is None else bias[begin:end], out[:, begin:end], PLAIN)
    return out


def gated_linear(program: Program, x: torch.Tensor, weight: PackedMatrix, activation: str) -> torch.Tensor:
    assert weight.is_gated, "gates and what they gate are packed side by side"
    out = program.like(x, weight.num_rows // 2, torch.bfloat16)
    _append_linear(program, x, weight, None, out, EPILOGUES[activation])
    return out


def linear_arguments(
    extent: int, x: torch.Tensor, weight: PackedMatrix, bias: torch.Tensor | None, out: torch.Tensor, epilogue: int
) -> tuple[Argument, ...]:
    """`LinearArguments`"""
    if bias is not None:
        bias = torch.nn.functional.pad(bias.float(), (0, weight.padded_rows - len(bias)))
    return (
        *(extent, *rows_of(x), weight.data, weight.padded_rows, weight.padded_columns, bias),
        *(*rows_of(out), KINDS[out.dtype], epilogue),
    )


def _append_linear(
    program: Program, x: torch.Tensor, weight: PackedMatrix, bias: torch.Tensor | None, out: torch.Tensor, epilogue: int
) -> None:
    arguments = linear_arguments(program.extent_of(x), x, weight, bias, out, epilogue)
    program.append(f"linear_{weight.format}", *arguments)


def rms_norm(program: Program, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    y = program.like(x, x.shape[1], torch.bfloat16)
    program.append(
        "rms_norm",
        *(program.extent_of(x), *rows_of(x), KINDS[x.dtype], weight),
        *(*rows_of(y), BFLOAT16, x.shape[1], eps),
    )
    return y


def add_rms_norm(
    program: Program, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    y = program.like(x, x.shape[1], torch.bfloat16)
    program.append(
        "add_rms_norm", *rows_of(x), KINDS[x.dtype], *rows_of(residual), weight, *rows_of(y), x.shape[1], eps
    )
    return y, residual


def rotate_and_store(
    program: Program,
    qkv: torch.Tensor,
    table: torch.Tensor,
    kv_layer: torch.Tensor,
    *,
    num_heads: int,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    q = program.tokens(num_heads * head_dim_of(kv_layer), torch.bfloat16)
    name = "rotate_and_store" + _suffix(kv_layer)
    program.append(name, *rows_of(qkv), q_norm, k_norm, eps, table, *rows_of(q), *_cache(kv_layer, num_heads))
    return q


def paged_attention(
    program: Program, q: torch.Tensor, kv_layer: torch.Tensor, scale: float, sliding_window: int | None
) -> torch.Tensor:
    out = program.tokens(q.shape[1], torch.bfloat16)
    cache = _cache(kv_layer, q.shape[1] // head_dim_of(kv_layer))
    name = "attention" + _suffix(kv_layer)
    program.append(name, *rows_of(q), *cache, sliding_window or 0, float(scale), *rows_of(out))
    return out


def rows_of(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Where its rows begin, and how far apart they are."""
    return x, x.stride(0)


def _cache(kv_layer: torch.Tensor, num_heads: int) -> tuple[torch.Tensor, int, int, int, int, int]:
    block_size, num_kv_heads = kv_layer.shape[2:4]
    return kv_layer, kv_layer.stride(0), block_size, num_heads, num_kv_heads, head_dim_of(kv_layer)


def _suffix(kv_layer: torch.Tensor) -> str:
    """Of the kernels' names for a cache of this dtype."""
    return {torch.bfloat16: "", torch.int8: "_int8"}[kv_layer.dtype]
