"""Headrace's engine without anything around it, as a worker with the same settings would run it."""

import time
from pathlib import Path

from db.settings import Settings
from tests.bench.speed.headrace import make_settings
from tests.bench.speed.stepped import News, SteppedTarget
from tests.bench.speed.workloads import Job
from workers.engine.outputs import StepOutput
from workers.engine.sequence import SamplingParams, Sequence
from workers.loading import load


class HeadraceEngine:
    """The engine, ready."""

    def __init__(self, settings: Settings) -> None:
        self._engine = load(settings, on_card=lambda card: None, clock=time.time).engine

    @property
    def has_work(self) -> bool:
        return self._engine.has_work

    def add(self, job_id: str, job: Job) -> None:
        params = SamplingParams(max_tokens=job.max_tokens, temperature=0.0, ignore_eos=True)
        self._engine.add(Sequence(job_id, job.prompt, params, tier=1, arrival=time.time()))

    def step(self) -> list[News]:
        return [_news(output) for output in self._engine.step()]

    def close(self) -> None:
        self._engine.close()


def make_target(data_dir: str, checkpoint: str, precision: str) -> SteppedTarget:
    """The engine, stepped."""
    settings = make_settings(Path(data_dir), Path(checkpoint), precision)
    return SteppedTarget(lambda: HeadraceEngine(settings))


def _news(output: StepOutput) -> News:
    is_last = output.error is not None or output.finish_reason is not None
    num_tokens = int(output.error is None)
    return News(output.sequence_id, num_tokens, output.num_cached_tokens, is_last, output.error)
