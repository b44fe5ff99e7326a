"""What workers tell Flower of their queues. It lists no queue that no worker reports, and asks only when it starts.

So the tasks worker reports the tier queues too: then it does not matter which of the two was up when Flower asked.
"""

from collections.abc import Callable, Iterable
from typing import Any

from celery.worker.control import Panel

from db.broker import tier_queues
from db.settings import TIERS, get_settings

_stock_active_queues = Panel.data["active_queues"]


def every_tier(consumer: Any) -> Iterable[int]:
    """Of a worker that reads none of them itself."""
    return range(len(TIERS))


def report_tier_queues(tiers: Callable[[Any], Iterable[int]] = every_tier) -> None:
    """Put our answer in the place of the stock one, in this process. `tiers`, given the consumer, are those read."""

    def active_queues(state: Any) -> list[dict[str, Any]]:
        names, declared = tier_queues(get_settings()), state.app.amqp.queues
        queues: list[dict[str, Any]] = list(_stock_active_queues(state) or [])
        return queues + [dict(declared[names[tier]].as_dict(recurse=True)) for tier in sorted(tiers(state.consumer))]

    Panel.data["active_queues"] = active_queues
