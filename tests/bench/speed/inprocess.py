"""Headrace's engine without anything around it: a thread steps it, and notes when each token came.

It has a process to itself, which ends with the engine where that cannot go on.
"""

import asyncio
import os
import queue
import threading
import time
import traceback
from itertools import count
from pathlib import Path

from db.settings import Settings
from tests.bench.speed.headrace import make_settings
from tests.bench.speed.trace import Trace
from tests.bench.speed.workloads import Job
from workers.engine.outputs import StepOutput
from workers.engine.sequence import SamplingParams, Sequence
from workers.loading import load

WAIT_SECONDS = 3600.0  # of an idle engine; closing wakes it


class EngineTarget:
    """The engine that a worker with these settings would run."""

    def __init__(self, settings: Settings) -> None:
        self._engine = load(settings, on_card=lambda card: None, clock=time.time).engine
        self._numbers = count()
        self._new: queue.SimpleQueue[Sequence | None] = queue.SimpleQueue()  # None: end
        self._watched: dict[str, tuple[Trace, asyncio.Future[None]]] = {}  # added to before the sequence is put
        self._thread = threading.Thread(target=self._step_on, daemon=True)
        self._thread.start()

    async def run(self, job: Job, trace: Trace) -> None:
        """Raises RuntimeError for a sequence that the engine fails."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        params = SamplingParams(max_tokens=job.max_tokens, temperature=0.0, ignore_eos=True)
        sequence = Sequence(str(next(self._numbers)), job.prompt, params, tier=1, arrival=time.time())
        self._watched[sequence.id] = trace, ended
        trace.started_at = time.perf_counter()
        self._new.put(sequence)
        await ended

    async def close(self) -> None:
        self._new.put(None)
        self._thread.join()
        self._engine.close()

    def _step_on(self) -> None:
        try:
            while self._take_new():
                outputs = self._engine.step()
                now = time.perf_counter()
                for output in outputs:
                    self._note(output, now)
        except Exception:  # everybody would wait for this thread in vain
            traceback.print_exc()
            os._exit(1)

    def _take_new(self) -> bool:
        """Give the engine what came meanwhile, waiting where it has nothing to do; False at the end."""
        while not self._new.empty() or not self._engine.has_work:
            sequence = self._new.get(timeout=WAIT_SECONDS)
            if sequence is None:
                return False
            self._engine.add(sequence)
        return True

    def _note(self, output: StepOutput, now: float) -> None:
        trace, ended = self._watched[output.sequence_id]
        trace.num_cached = output.num_cached_tokens
        if output.error is None:
            trace.add(now)
        if output.error is not None or output.finish_reason is not None:
            del self._watched[output.sequence_id]
            ended.get_loop().call_soon_threadsafe(_end, ended, output.error)


def make_target(data_dir: str, checkpoint: str, precision: str) -> EngineTarget:
    """The engine, ready."""
    return EngineTarget(make_settings(Path(data_dir), Path(checkpoint), precision))


def _end(ended: asyncio.Future[None], error: str | None) -> None:
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(RuntimeError(error))
