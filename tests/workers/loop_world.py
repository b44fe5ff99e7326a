"""An engine loop on a fake model, with stand-ins for the threads that take what it makes."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.checkpoints import tokenizer_json
from tests.workers.engine.fakes import FakeModel, make_engine
from workers.held import HeldJob
from workers.loading import LoadedModel
from workers.loop import EngineLoop
from workers.text.tokenizer import Tokenizer

PATIENCE_SECONDS = 60


@dataclass
class Ends:
    """Stands in for streamer and writer: remembers the order of ends, and lets a test wait for them."""

    ended: list[HeldJob] = field(default_factory=list)
    condition: threading.Condition = field(default_factory=threading.Condition)

    def mark(self, jobs: Iterable[HeldJob]) -> None:
        with self.condition:
            list(jobs)
            self.condition.notify_all()

    def put(self, held: HeldJob) -> None:
        with self.condition:
            self.ended.append(held)
            self.condition.notify_all()

    def wait(self, *jobs: HeldJob) -> list[str]:
        """The statuses of these jobs, once they have ended."""
        with self.condition:
            assert self.condition.wait_for(lambda: all(held in self.ended for held in jobs), PATIENCE_SECONDS)
        return [held.end.status for held in jobs if held.end is not None]

    def wait_tokens(self, held: HeldJob, num_tokens: int) -> None:
        with self.condition:
            assert self.condition.wait_for(lambda: len(held.tokens) >= num_tokens, PATIENCE_SECONDS)


@dataclass
class World:
    """A running loop."""

    loop: EngineLoop
    ends: Ends
    model: "GatedModel"

    def start(self, *jobs: HeldJob) -> None:
        for held in jobs:
            self.loop.start_job(held)


class GatedModel(FakeModel):
    """Computes while its gate is open, so that a test can look at a step in flight; `breaks` makes steps fail.

    With `closes_after` the gate shuts itself behind so many steps.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.is_computing = threading.Event()
        self.breaks = False
        self.closes_after: int | None = None
        self.is_shut = threading.Event()  # by itself

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if len(self.num_rows) == self.closes_after:
            self.gate.clear()
            self.is_shut.set()
        self.is_computing.set()
        assert self.gate.wait(PATIENCE_SECONDS)
        self.is_computing.clear()
        if self.breaks:
            raise RuntimeError("no such kernel")
        return super().forward(*args, **kwargs)


@contextmanager
def running_loop(directory: Path, *, shares_processors: bool = False, **sizes: Any) -> Iterator[World]:
    """A loop around an engine with these sizes; afterwards nothing is left in it."""
    path = directory / "tokenizer.json"
    path.write_text(tokenizer_json(512))
    ends, model, failures = Ends(), GatedModel(), list[BaseException]()
    engine = make_engine(model=model, **sizes)
    loop = EngineLoop(
        lambda: LoadedModel(engine, Tokenizer.load(path), shares_processors=shares_processors),
        streamer=ends,  # type: ignore[arg-type]
        writer=ends,  # type: ignore[arg-type]
        on_ready=lambda: None,
        on_failure=failures.append,
    )
    loop.start()
    yield World(loop, ends, model)
    model.gate.set()
    loop.stop()
    loop.join(PATIENCE_SECONDS)
    assert not failures
    assert not engine.has_work
