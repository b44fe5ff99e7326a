"""The Celery app of the tasks worker: the shared app, and beside its tasks the sweep on a thread of its own.

The sweep is no task. It must run while the broker is away, one at a time, and know that its rounds were unbroken.
"""

import logging
from typing import Any

from celery import bootsteps, signals

from db.broker import app
from db.logs import show_fields
from db.session import make_redis
from db.settings import get_settings
from workers import tasks
from workers.active_queues import report_tier_queues
from workers.sweep import Sweep
from workers.sweeper import Sweeper
from workers.task_events import repeat_after_outages
from workers.tier_control import TierControl

__all__ = ["app"]


class Housekeeping(bootsteps.StartStopStep):
    """Starts the sweep with the worker. When the worker stops, ends it and the webhook attempts under way."""

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        settings = get_settings()
        sweep = Sweep(tasks.engine(), make_redis(settings), settings)
        self._sweeper = Sweeper(tasks.engine(), sweep, sweep_seconds=settings.sweep_seconds)

    def start(self, worker: Any) -> None:
        """Called before the consumer starts."""
        self._sweeper.start()

    def stop(self, worker: Any) -> None:
        """Called on the way to a warm exit."""
        self._sweeper.stop()
        tasks.deliverer().close()


app.steps["worker"].add(Housekeeping)
report_tier_queues()
repeat_after_outages(app)
app.steps["consumer"].add(TierControl)
signals.after_setup_logger.connect(show_fields, weak=False)
# What a task did is logged where it is done. Celery would add two lines a second, and httpx the URLs, which may hold
# their owners' secrets.
for name in ("celery.worker.strategy", "celery.app.trace", "httpx"):
    logging.getLogger(name).setLevel(logging.WARNING)
