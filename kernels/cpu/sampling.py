"""Choosing tokens in C++, for all rows in one call, which shares them among threads: functions of `kernels.sampling`.

A row's result depends on that row alone, to the last bit, and so on neither the others nor the threads.
"""

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from threading import Lock

import torch

from kernels.cpu.library import instruction_sets, library, set_index
from kernels.cpu.threads import Threads, shared
from kernels.draw import Draw

_calls = Lock()  # a pool of threads serves one call at a time


class _Draw(ctypes.Structure):
    """`Draw` of sampling.h"""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("row", "top_k")),
        *((name, ctypes.c_double) for name in ("temperature", "top_p", "min_p", "uniform")),
    ]


def takes(logits: torch.Tensor) -> bool:
    """Whether the library is there and can read these logits where they are."""
    is_readable = logits.device.type == "cpu" and logits.dtype == torch.float32 and logits.stride(-1) == 1
    return is_readable and library() is not None


def greedy(
    logits: torch.Tensor, *, instruction_set: str | None = None, num_threads: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of logits [num_rows, vocab_size]: the largest [num_rows] and the lowest token id int64 [num_rows] that has it."""
    num_rows, vocab_size = logits.shape
    best, ids = torch.empty(num_rows), torch.empty(num_rows, dtype=torch.int64)
    with _calls:
        _library().headrace_greedy(
            *(_pool(num_threads), _set_index(instruction_set)),
            *(logits.data_ptr(), logits.stride(0), num_rows, vocab_size, best.data_ptr(), ids.data_ptr()),
        )
    return best, ids


def draw_many(
    logits: torch.Tensor,
    draws: Sequence[Draw],
    *,
    instruction_set: str | None = None,
    num_threads: int | None = None,
) -> list[int]:
    """A token id for each draw from a row of logits [num_rows, vocab_size], whose largest is finite."""
    num_rows, vocab_size = logits.shape
    assert all(0 <= draw.row < num_rows for draw in draws), "a draw is from a row of the logits"
    ids = (ctypes.c_int64 * len(draws))()
    with _calls:
        _library().headrace_draw(
            *(_pool(num_threads), _set_index(instruction_set), logits.data_ptr(), logits.stride(0), vocab_size),
            *((_Draw * len(draws))(*(_Draw(*draw) for draw in draws)), len(draws), ids),
        )
    return list(ids)


def _library() -> ctypes.CDLL:
    loaded = library()
    assert loaded is not None, "the library of CPU kernels is not built"
    return loaded


@lru_cache
def _set_index(instruction_set: str | None) -> int:
    return set_index(_library(), instruction_set or instruction_sets()[0])


def _pool(num_threads: int | None) -> int:
    return int((shared() if num_threads is None else _threads(num_threads)).handle)


@lru_cache
def _threads(num_threads: int) -> Threads:
    return Threads(num_threads)
