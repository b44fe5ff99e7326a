"""What workers tell Flower of their queues. It lists no queue that no worker reports, and asks only when it starts.

So the tasks worker reports the tier queues too: then it does not matter which of the two was up when Flower asked.
"""

from typing import Any

from celery.worker.control import Panel

from db.broker import tier_queues
from db.settings import get_settings

_stock_active_queues = Panel.data["active_queues"]


def active_queues(state: Any) -> list[dict[str, Any]]:
    """The stock answer and the tier queues."""
    queues: list[dict[str, Any]] = list(_stock_active_queues(state) or [])
    declared = state.app.amqp.queues
    return queues + [dict(declared[name].as_dict(recurse=True)) for name in tier_queues(get_settings())]


def report_tier_queues() -> None:
    """Put our answer in the place of the stock one, in this process."""
    Panel.data["active_queues"] = active_queues
