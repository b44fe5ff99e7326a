"""What the runner asks of a device that works beside the host: copies, points in its queue of work, captured work.

What a step asks of `torch.cuda` is here, but for the mover's copies and their clock, so that all else runs in tests
without a GPU.
"""

from collections.abc import Callable
from typing import Protocol

import torch

Work = Callable[[], torch.Tensor]


class Mark(Protocol):
    """A point in the queue of what the device has to do."""

    def wait(self) -> None:
        """Return once the device has come to it."""
        ...

    def seconds_since(self, earlier: "Mark") -> float:
        """Between two that it has come to."""
        ...


class Accelerator(Protocol):
    """A device to which work is queued, in one order. Used by one thread."""

    @property
    def device(self) -> torch.device: ...

    def pinned(self, num_values: int) -> torch.Tensor:
        """int64 [num_values] in host memory which the device reads and writes while the host goes on."""
        ...

    def upload(self, host: torch.Tensor) -> torch.Tensor:
        """Such memory's content as a new tensor on the device. The host may change it once a later mark is reached."""
        ...

    def download(self, source: torch.Tensor, host: torch.Tensor) -> None:
        """Copy to such memory, which has it once a later mark is reached."""
        ...

    def mark(self) -> Mark:
        """The end of the queue as it is now."""
        ...

    def capture(self, run: Work) -> Work:
        """What `run` does, to be queued at once, again and again: on what the tensors that it read hold by then.

        Nothing in `run` may wait for the device. The result is good until the next call, and `run` has then been
        computed once, or some times.
        """
        ...


class CudaMark:
    """A CUDA event."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._event.record()

    def wait(self) -> None:
        self._event.synchronize()

    def seconds_since(self, earlier: Mark) -> float:
        assert isinstance(earlier, CudaMark)
        return float(earlier._event.elapsed_time(self._event)) / 1000


class CudaAccelerator:
    """A GPU and its current stream. All graphs share one pool of memory, so the largest is captured first."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    @property
    def device(self) -> torch.device:
        return self._device

    def pinned(self, num_values: int) -> torch.Tensor:
        return torch.empty(num_values, dtype=torch.int64, pin_memory=True)

    def upload(self, host: torch.Tensor) -> torch.Tensor:
        return host.to(self._device, non_blocking=True)

    def download(self, source: torch.Tensor, host: torch.Tensor) -> None:
        host.copy_(source, non_blocking=True)

    def mark(self) -> Mark:
        return CudaMark()

    def capture(self, run: Work) -> Work:
        torch.cuda.synchronize(self._device)
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            run()  # compiles what is compiled at its first use, and lets libraries take their workspaces
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=stream):
            output = run()

        def replay() -> torch.Tensor:
            graph.replay()
            return output

        return replay
