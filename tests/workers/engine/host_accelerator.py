"""The CPU in a GPU's place: what is captured is called again, and what is queued has happened when it is waited for."""

import time
from collections import deque
from collections.abc import Callable
from functools import partial

import torch

from workers.engine.accelerator import Mark, Work

GARBAGE = -(2**40)  # in memory that a copy has not reached


class HostMark:
    """Whoever waits for it has everything done that was queued before."""

    def __init__(self, do_all: Callable[[], None]) -> None:
        self._at = time.perf_counter()
        self._do_all = do_all

    def wait(self) -> None:
        self._do_all()

    def seconds_since(self, earlier: Mark) -> float:
        assert isinstance(earlier, HostMark)
        return self._at - earlier._at


class HostAccelerator:
    """Computes at once, and is as late as it may be with copies: before they are waited for, what goes up must stay as
    it is and what comes down is garbage."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.num_captured = 0
        self.num_pinned = 0
        self.num_uploads = 0
        self._queue: deque[Callable[[], object]] = deque()
        self.num_done = 0

    def pinned(self, num_values: int) -> torch.Tensor:
        self.num_pinned += 1
        return torch.full((num_values,), GARBAGE)

    def upload(self, host: torch.Tensor) -> torch.Tensor:
        arrived = host.clone()
        self.num_uploads += 1

        def check() -> None:
            assert torch.equal(host, arrived), "changed while it was copied"

        self._queue.append(check)
        return arrived.clone()

    def download(self, source: torch.Tensor, host: torch.Tensor) -> None:
        values = source.clone()
        host.fill_(GARBAGE)
        self._queue.append(lambda: host.copy_(values))

    def mark(self) -> Mark:
        return HostMark(partial(self._do_until, self.num_done + len(self._queue)))

    def capture(self, run: Work) -> Work:
        self.num_captured += 1
        output = run()

        def replay() -> torch.Tensor:
            return output.copy_(run())

        return replay

    @torch.inference_mode()
    def _do_until(self, num: int) -> None:
        while self.num_done < num:
            self.num_done += 1
            self._queue.popleft()()
