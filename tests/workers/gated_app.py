"""The engine worker's app, made to stop where a test wants it: `celery -A tests.workers.gated_app worker`.

The places are in `tests/workers/gates.py`.
"""

from collections.abc import Callable
from typing import Any

from db import jobs, stream
from db.session import make_redis
from db.settings import get_settings
from tests.workers.gates import Commands, Gate
from workers import worker
from workers.app import app
from workers.engine.batch import Batch
from workers.engine.engine import Runner
from workers.engine.outputs import Sample
from workers.loading import LoadedModel
from workers.loop import EngineLoop, Interrupt, Start

__all__ = ["app"]

_load, _tell = worker.load, EngineLoop._tell
_redis, _model = make_redis(get_settings()), get_settings().served_name
_loading, _step = Gate(_redis, "loading", _model), Gate(_redis, "step", _model)
_commands = Commands(_redis, _model)


class GatedRunner:
    """Computes a batch once its step may go on."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def run(self, batch: Batch) -> list[Sample]:
        _step.pass_through()
        return self._runner.run(batch)


def _load_and_stop(*args: Any, **kwargs: Any) -> LoadedModel:
    loaded = _load(*args, **kwargs)
    loaded.engine.runner = GatedRunner(loaded.engine.runner)
    _loading.pass_through()
    return loaded


def _tell_and_count(self: EngineLoop, command: Start | Interrupt) -> None:
    _tell(self, command)
    _commands.count()


def _gated(name: str, act: Callable[..., Any]) -> Callable[..., Any]:
    """What is done once the gate is passed."""
    gate = Gate(_redis, name, _model)

    def pass_and_act(*args: Any, **kwargs: Any) -> Any:
        gate.pass_through()
        return act(*args, **kwargs)

    return pass_and_act


jobs.claim = _gated("popped", jobs.claim)
stream.open_many = _gated("claimed", stream.open_many)
jobs.finish = _gated("computed", jobs.finish)
worker.EngineWorker._on_written = _gated("committed", worker.EngineWorker._on_written)  # type: ignore[method-assign]
worker.load = _load_and_stop
EngineLoop._tell = _tell_and_count  # type: ignore[method-assign]
