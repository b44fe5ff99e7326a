"""What is asked of CUDA, in the order in which it must be: on a stand-in that takes torch's own arguments."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from workers.engine.accelerator import CudaAccelerator

REAL_GRAPH = torch.cuda.graph


class Stand:
    """Notes what happens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.notes: list[str] = []
        stand = self

        class Stream:
            def __init__(self, device: torch.device) -> None: ...

            def synchronize(self) -> None:
                stand.notes.append("stream is done")

        class CUDAGraph:
            def replay(self) -> None:
                stand.notes.append("replay")

        @contextmanager
        def graph(*args: Any, **options: Any) -> Iterator[None]:
            bound = inspect.signature(REAL_GRAPH.__init__).bind(None, *args, **options)
            stand.notes.append(f"capture into {bound.arguments['pool']}")
            yield
            stand.notes.append("captured")

        @contextmanager
        def stream(chosen: Stream) -> Iterator[None]:
            yield

        for name, each in {"Stream": Stream, "CUDAGraph": CUDAGraph, "graph": graph, "stream": stream}.items():
            monkeypatch.setattr(torch.cuda, name, each)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "the pool")
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: self.notes.append("device is done"))


def test_work_is_warmed_up_before_it_is_captured_and_all_graphs_share_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand(monkeypatch)
    accelerator = CudaAccelerator(torch.device("cuda"))

    def run() -> torch.Tensor:
        stand.notes.append("run")
        return torch.zeros(1)

    works = [accelerator.capture(run) for _ in range(2)]
    once = ["device is done", "run", "stream is done", "capture into the pool", "run", "captured"]
    assert stand.notes == once * 2
    stand.notes.clear()
    assert works[0]() is works[0]() and stand.notes == ["replay", "replay"]
