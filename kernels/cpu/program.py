"""A program: kernels recorded once, with their buffers, and replayed for every step in one call.

It is recorded like a CUDA graph: while `recording(program)` lasts, the functions of `kernels` compute nothing and
append what they would compute. Their results are tensors of the program's own memory, which the next function takes;
one that Python drops gives its memory to a later one of the same shape.
"""

import ctypes
import math
import struct
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from kernels.attention import AttentionBatch
from kernels.cpu.library import instruction_sets, library, set_index
from kernels.cpu.memory import huge_pages
from kernels.cpu.threads import Threads

# Kernels read whole tiles: columns are padded with zeros to a multiple of 64, and 16 rows follow the last.
ALIGNMENT, TILE_ROWS = 64, 16
CACHE_LINE = 64  # bytes
TOKENS, ROWS = 0, 1  # `Extent`

NO_KERNEL = "the CPU library has no kernel {}"
Argument = torch.Tensor | int | float | None

_active: list["Program"] = []  # the program being recorded, on the one thread that loads a model


class Step(ctypes.Structure):
    """`step.h`"""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("num_tokens", "num_seqs", "num_rows")),
        *((name, ctypes.c_void_p) for name in ("input_ids", "positions", "slots", "rows", "starts", "context_lens")),
        ("block_tables", ctypes.c_void_p),
        ("max_blocks", ctypes.c_int64),
    ]


class Program:
    """Operations over at most `max_tokens` tokens a step, and the logits of at most `max_rows`."""

    def __init__(
        self,
        threads: Threads,
        *,
        max_tokens: int,
        max_rows: int,
        max_positions: int = 1,
        instruction_set: str | None = None,
    ) -> None:
        """No token stands at `max_positions` or beyond. `instruction_set` is the best that may be used, of those that
        the machine has; by default the best of them."""
        loaded = library()
        assert loaded is not None, "the library of CPU kernels is not built"
        self.max_tokens, self.max_rows, self.max_positions = max_tokens, max_rows, max_positions
        self._library, self._threads = loaded, threads
        index = set_index(loaded, instruction_set or instruction_sets()[0])
        self._handle = loaded.headrace_program(threads.handle, index)
        weakref.finalize(self, loaded.headrace_free_program, self._handle)
        self._kept: list[torch.Tensor] = []  # what the operations point to
        self._extents: dict[int, int] = {}  # address of a result -> TOKENS or ROWS
        # By shape, so that no result's padding was another's columns.
        self._free: dict[tuple[int, int, torch.dtype], list[torch.Tensor]] = {}  # memory of dropped results

    def tokens(self, dim: int, dtype: torch.dtype) -> torch.Tensor:
        """[max_tokens, dim] for a result of every token."""
        return self._buffer(self.max_tokens, dim, dtype, TOKENS)

    def rows(self, dim: int, dtype: torch.dtype) -> torch.Tensor:
        """[max_rows, dim] for a result of the tokens whose logits are asked for."""
        return self._buffer(self.max_rows, dim, dtype, ROWS)

    def like(self, x: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
        """For a result of the same tokens as the result `x`."""
        return self.rows(dim, dtype) if self.extent_of(x) == ROWS else self.tokens(dim, dtype)

    def extent_of(self, x: torch.Tensor) -> int:
        """Which tokens a result is of, as `Extent` has it."""
        return self._extents[x.data_ptr()]

    def _buffer(self, num_rows: int, dim: int, dtype: torch.dtype, extent: int) -> torch.Tensor:
        rows = self.memory(num_rows, dim, dtype)
        self._extents[rows.data_ptr()] = extent
        return rows

    def memory(self, num_rows: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
        """[num_rows, dim] for a result that is neither; its rows begin `stride(0)` elements apart."""
        free = self._free.setdefault((num_rows, dim, dtype), [])
        memory = free.pop() if free else self._keep(_padded(num_rows, dim, dtype))
        rows = memory[:num_rows, :dim]
        weakref.finalize(rows, free.append, memory)
        return rows

    def append(self, name: str, *arguments: Argument) -> None:
        """Record one kernel: 8-byte words, in the order of the struct that it reads."""
        words = [self._word(argument) for argument in arguments]
        array = (ctypes.c_int64 * len(words))(*words)
        if self._library.headrace_append(self._handle, name.encode(), array, len(words)):
            raise LookupError(NO_KERNEL.format(name))

    def calls(self, calls: Sequence[tuple[str, Sequence[Argument]]]) -> torch.Tensor:
        """int64 [len(calls), 1 + words of each]: kernels and their arguments, for a kernel that calls others."""
        return torch.tensor([[self._kernel(name), *map(self._word, arguments)] for name, arguments in calls])

    def _kernel(self, name: str) -> int:
        address = self._library.headrace_kernel(self._handle, name.encode())
        if address is None:
            raise LookupError(NO_KERNEL.format(name))
        return int(address)

    def run(
        self, input_ids: torch.Tensor, positions: torch.Tensor, batch: AttentionBatch, logits_rows: torch.Tensor
    ) -> None:
        """Compute a step; the tensors are those of `Decoder.forward`, contiguous."""
        num_tokens, num_rows = len(input_ids), len(logits_rows)
        assert num_tokens <= self.max_tokens and num_rows <= self.max_rows, "more than the program was made for"
        step = Step(
            num_tokens,
            len(batch.context_lens),
            num_rows,
            *(
                tensor.data_ptr()
                for tensor in (input_ids, positions, batch.slot_mapping, logits_rows, batch.cu_seqlens_q)
            ),
            batch.context_lens.data_ptr(),
            batch.block_tables.data_ptr(),
            batch.block_tables.stride(0),
        )
        self._library.headrace_run(self._handle, ctypes.byref(step))

    def _word(self, argument: Argument) -> int:
        if isinstance(argument, torch.Tensor):
            return int(self._keep(argument).data_ptr())
        if isinstance(argument, float):
            (word,) = struct.unpack("=q", struct.pack("=d", argument))
            return int(word)
        return int(argument or 0)

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        # Only the memory: the tensor itself may be a result, and its end is what frees its memory for others.
        self._kept.append(tensor.detach())
        return tensor


def _padded(num_rows: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """Whole tiles of rows, and one to spare. From row to row is an odd number of cache lines: with an even one the rows
    of a tile would share few of the places that a cache has for each column."""
    lines = -(-dim // ALIGNMENT) * ALIGNMENT * dtype.itemsize // CACHE_LINE
    shape = (-(-num_rows // TILE_ROWS) * TILE_ROWS + TILE_ROWS, (lines | 1) * CACHE_LINE // dtype.itemsize)
    return huge_pages(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)


@contextmanager
def recording(program: Program) -> Iterator[None]:
    """Record what the functions of `kernels` are asked for."""
    _active.append(program)
    try:
        yield
    finally:
        _active.pop()


def active() -> Program | None:
    """The program being recorded."""
    return _active[-1] if _active else None
