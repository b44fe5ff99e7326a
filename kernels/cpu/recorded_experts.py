"""Mixtures of experts as a program records them: a token has a row for each expert it chose, and they lie by expert."""

import torch

from kernels.cpu.packed import PackedMatrix
from kernels.cpu.program import TOKENS, Program
from kernels.cpu.recorded import EPILOGUES, PLAIN, linear_arguments, rows_of


def select_experts(
    program: Program, router_logits: torch.Tensor, num_chosen: int, *, is_normalized: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    expert_ids = program.tokens(num_chosen, torch.int64)
    expert_weights = program.tokens(num_chosen, torch.float32)
    program.append(
        "select_experts",
        *(*rows_of(router_logits), router_logits.shape[1], num_chosen, is_normalized),
        *(*rows_of(expert_ids), *rows_of(expert_weights)),
    )
    return expert_ids, expert_weights


def moe_feed_forward(
    program: Program,
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    expert_weights: torch.Tensor,
    gate_up: tuple[PackedMatrix, ...],
    down: tuple[PackedMatrix, ...],
) -> torch.Tensor:
    hidden, num_chosen = x.shape[1], expert_ids.shape[1]
    num_rows = program.max_tokens * num_chosen
    places = program.tokens(num_chosen, torch.int64)
    ends = program.memory(1, len(gate_up), torch.int64)
    grouped = program.memory(num_rows, hidden, torch.bfloat16)
    program.append(
        "group_by_expert",
        *(*rows_of(expert_ids), num_chosen, len(gate_up), *rows_of(places), ends),
        *(*rows_of(x), *rows_of(grouped), hidden),
    )
    inner = program.memory(num_rows, gate_up[0].num_rows // 2, torch.bfloat16)
    _append_linear(program, grouped, gate_up, ends, inner, EPILOGUES["silu"])
    parts = program.memory(num_rows, hidden, torch.float32)
    _append_linear(program, inner, down, ends, parts, PLAIN)
    out = program.tokens(hidden, torch.float32)
    program.append(
        "sum_experts", *rows_of(parts), *rows_of(places), *rows_of(expert_weights), num_chosen, *rows_of(out), hidden
    )
    return out


def _append_linear(
    program: Program,
    x: torch.Tensor,
    experts: tuple[PackedMatrix, ...],
    ends: torch.Tensor,
    out: torch.Tensor,
    epilogue: int,
) -> None:
    calls = [
        (f"linear_{expert.format}", linear_arguments(TOKENS, x, expert, None, out, epilogue)) for expert in experts
    ]
    program.append("linear_by_expert", program.calls(calls), len(experts), ends)
