"""The engine worker's app, made to hang in a step when a test says so: `celery -A tests.workers.hung_app worker`."""

import ctypes
from typing import Any

from db.session import make_redis
from db.settings import get_settings
from tests.workers.hangs import Hang, take_hang
from workers import pulse, worker
from workers.app import app
from workers.engine.batch import Batch
from workers.engine.computing import Runner
from workers.engine.outputs import Computed
from workers.loading import LoadedModel

__all__ = ["app"]

A_DAY = 86_400  # seconds

_load = worker.load
_redis, _model = make_redis(get_settings()), get_settings().served_name


class HangingRunner:
    """Computes batches until it is told to hang."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def run(self, batch: Batch) -> Computed:
        match take_hang(_redis, _model):
            case Hang.BESIDE_PYTHON:
                ctypes.CDLL(None).sleep(A_DAY)
            case Hang.WITH_PYTHON:
                ctypes.PyDLL(None).sleep(A_DAY)
        return self._runner.run(batch)


def _load_and_wrap(*args: Any, **kwargs: Any) -> LoadedModel:
    loaded = _load(*args, **kwargs)
    loaded.engine.runner = HangingRunner(loaded.engine.runner)
    return loaded


worker.load = _load_and_wrap
pulse.LOCKED_LEASES = 3.0
