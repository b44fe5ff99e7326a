"""An engine without anything around it, in its client's process: a thread steps it, and notes when tokens came.

The process ends with the engine where that cannot go on. A peer's interpreter runs this too: it needs no package.
"""

import asyncio
import concurrent.futures
import os
import queue
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from tests.bench.speed.trace import Trace
from tests.bench.speed.workloads import Job

WAIT_SECONDS = 3600.0  # of an idle engine; closing wakes it


@dataclass(slots=True)
class News:
    """What a step brought for one job."""

    job_id: str
    num_tokens: int
    num_cached: int  # tokens of the prompt that were found in the cache
    is_last: bool
    error: str | None = None


class Engine(Protocol):
    """What is stepped. One thread makes it, calls it, and closes it."""

    @property
    def has_work(self) -> bool: ...

    def add(self, job_id: str, job: Job) -> None: ...

    def step(self) -> list[News]: ...

    def close(self) -> None: ...


class SteppedTarget:
    """An engine and its thread; ready when this is made, and raises what making the engine raises."""

    def __init__(self, make: Callable[[], Engine]) -> None:
        self._numbers = count()
        self._new: queue.SimpleQueue[tuple[str, Job] | None] = queue.SimpleQueue()  # None: end
        self._watched: dict[str, tuple[Trace, asyncio.Future[None]]] = {}  # added to before the job is put
        ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._live, args=(make, ready), daemon=True)
        self._thread.start()
        ready.result()

    async def run(self, job: Job, trace: Trace) -> None:
        """Raises RuntimeError for a job that the engine fails."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        job_id = str(next(self._numbers))
        self._watched[job_id] = trace, ended
        trace.started_at = time.perf_counter()
        self._new.put((job_id, job))
        await ended

    async def close(self) -> None:
        self._new.put(None)
        self._thread.join()

    def _live(self, make: Callable[[], Engine], ready: "concurrent.futures.Future[None]") -> None:
        """Some engines bind the threads that compute to the one that made them."""
        try:
            engine = make()
        except BaseException as error:
            ready.set_exception(error)
            return
        ready.set_result(None)
        try:
            self._step_on(engine)
            engine.close()
        except Exception:  # everybody would wait for this thread in vain
            traceback.print_exc()
            os._exit(1)

    def _step_on(self, engine: Engine) -> None:
        while self._take_new(engine):
            found = engine.step()
            now = time.perf_counter()
            for news in found:
                self._note(news, now)

    def _take_new(self, engine: Engine) -> bool:
        """Give the engine what came meanwhile, waiting where it has nothing to do; False at the end."""
        while not self._new.empty() or not engine.has_work:
            new = self._new.get(timeout=WAIT_SECONDS)
            if new is None:
                return False
            engine.add(*new)
        return True

    def _note(self, news: News, now: float) -> None:
        trace, ended = self._watched[news.job_id]
        trace.num_cached = news.num_cached
        if news.num_tokens:
            trace.add(now, news.num_tokens)
        if news.is_last:
            del self._watched[news.job_id]
            ended.get_loop().call_soon_threadsafe(_end, ended, news.error)


def _end(ended: asyncio.Future[None], error: str | None) -> None:
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(RuntimeError(error))
