"""Small values between host and device, by page-locked memory, so that neither waits for the other's copy."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from workers.engine.accelerator import Accelerator, Mark

ALIGNMENT = 2  # values: 16 bytes, for kernels are compiled anew for pointers that are less aligned
FIRST_SIZE = 4096  # values


@dataclass
class Buffer:
    """Page-locked memory, and the point at which its last copy is done."""

    values: torch.Tensor  # int64
    copied: Mark | None = None


class Uploads:
    """Lists on their way to the device, one copy for all of a step: two buffers in turn, each filled anew once its
    last copy is done."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._buffers = [Buffer(accelerator.pinned(FIRST_SIZE)) for _ in range(2)]
        self._turn = 0

    def put(self, *lists: Sequence[int], reals: Sequence[float] = ()) -> list[torch.Tensor]:
        """On the device: int64 of each list, then fp64 of `reals`."""
        values: list[int] = []
        starts = []
        for each in lists:
            starts.append(len(values))
            values.extend(each)
            values.extend([0] * (-len(values) % ALIGNMENT))
        num_integers, total = len(values), len(values) + len(reals)
        host = self._take(total)[:total]
        host[:num_integers] = torch.tensor(values, dtype=torch.int64)
        host[num_integers:].view(torch.float64)[:] = torch.tensor(reals, dtype=torch.float64)
        arrived = self._accelerator.upload(host)
        self._buffers[self._turn].copied = self._accelerator.mark()
        integers = [arrived[start : start + len(each)] for start, each in zip(starts, lists, strict=True)]
        return [*integers, arrived[num_integers:].view(torch.float64)]

    def _take(self, num_values: int) -> torch.Tensor:
        """The buffer whose turn it is, large enough and free."""
        self._turn = 1 - self._turn
        buffer = self._buffers[self._turn]
        if buffer.copied is not None:
            buffer.copied.wait()
        if len(buffer.values) < num_values:
            buffer.values = self._accelerator.pinned(2 * num_values)
        return buffer.values


class Downloads:
    """Values on their way from the device: each in a buffer of its own until it has been read."""

    def __init__(self, accelerator: Accelerator, max_values: int) -> None:
        self._accelerator = accelerator
        self._max_values = max_values
        self._free: list[torch.Tensor] = []

    def start(self, source: torch.Tensor) -> "Download":
        """Queue the copy of `source` int64 [n], at most `max_values` of them."""
        buffer = self._free.pop() if self._free else self._accelerator.pinned(self._max_values)
        self._accelerator.download(source, buffer[: len(source)])
        return Download(self._accelerator.mark(), buffer, len(source), self._free)


@dataclass
class Download:
    """One of these. It is read once."""

    mark: Mark
    _buffer: torch.Tensor
    _num_values: int
    _free: list[torch.Tensor]

    def read(self) -> list[int]:
        """The values, once they are there."""
        self.mark.wait()
        values: list[int] = self._buffer[: self._num_values].tolist()
        self._free.append(self._buffer)
        return values
