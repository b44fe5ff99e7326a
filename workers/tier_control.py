"""What Celery's `control add_consumer` and `cancel_consumer` do to the lists of generations, in any worker of ours.

The stock transport must never read them: a message that it takes out of a tier list is one that no puller gets.
"""

import logging
from typing import Any

from celery import bootsteps
from celery.worker.consumer import Consumer

from db.broker import tier_queues
from db.queue_message import TASK
from db.settings import get_settings

PREFIX = f"{TASK}."  # of every tier queue, whatever its model

log = logging.getLogger(__name__)


class TierControl(bootsteps.StartStopStep):
    """Keeps the tier queues from the stock transport. A worker that pulls jobs itself overrides `turn_tier`."""

    requires = ("celery.worker.consumer.tasks:Tasks",)
    label = "Tier control"

    def create(self, consumer: Consumer) -> None:
        """Take over what both commands call; queues of other kinds are Celery's as before."""
        add, cancel = consumer.add_task_queue, consumer.cancel_task_queue

        def add_task_queue(queue: Any, *arguments: Any, **options: Any) -> None:
            if str(queue).startswith(PREFIX):
                self._turn(consumer, queue, is_on=True)
            else:
                add(queue, *arguments, **options)

        def cancel_task_queue(queue: Any) -> None:
            if str(queue).startswith(PREFIX):
                self._turn(consumer, queue, is_on=False)
            else:
                cancel(queue)

        vars(consumer).update(add_task_queue=add_task_queue, cancel_task_queue=cancel_task_queue)

    def start(self, consumer: Consumer) -> None:
        """Nothing: all is done by `create`."""

    def stop(self, consumer: Consumer) -> None:
        """Nothing to end."""

    def turn_tier(self, consumer: Consumer, tier: int, *, is_on: bool) -> bool:
        """Begin or cease to take jobs of a tier of the model that is served. False: this worker takes none anyway."""
        return False

    def _turn(self, consumer: Consumer, queue: str, *, is_on: bool) -> None:
        own = tier_queues(get_settings())
        is_ours = queue in own and self.turn_tier(consumer, own.index(queue), is_on=is_on)
        fields = {"queue_name": queue, "is_on": is_on}
        if is_ours:
            log.info("a tier was turned on or off", extra=fields)
        else:
            log.warning("this worker does not serve that queue", extra=fields)
