"""Celery's queue commands: tier queues are the puller's, all others Celery's as before."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from db.settings import Settings
from workers import tier_control
from workers.tier_control import TierControl


@dataclass
class Consumer:
    """Stands in for Celery's: remembers which queues the stock transport was told of."""

    steps: list[Any] = field(default_factory=list)
    stock: list[tuple[str, str]] = field(default_factory=list)

    def add_task_queue(self, queue: str, exchange: str | None = None) -> None:
        self.stock.append(("add", queue))

    def cancel_task_queue(self, queue: str) -> None:
        self.stock.append(("cancel", queue))


class Turned(TierControl):
    """A worker that pulls: remembers what it was told."""

    turned: list[tuple[int, bool]]

    def turn_tier(self, consumer: Any, tier: int, *, is_on: bool) -> bool:
        self.turned.append((tier, is_on))
        return True


@pytest.fixture(autouse=True)
def served(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_control, "get_settings", lambda: settings.model_copy(update={"model_name": "m"}))


def test_a_tier_of_the_model_is_turned_and_never_read_by_the_stock_transport() -> None:
    consumer, step = Consumer(), Turned.__new__(Turned)
    step.turned = []
    step.create(consumer)  # type: ignore[arg-type]
    consumer.cancel_task_queue("generate.m.low")
    consumer.add_task_queue("generate.m.low", "exchange")
    assert step.turned == [(2, False), (2, True)]
    assert consumer.stock == []


@pytest.mark.parametrize("queue", ["generate.m.low", "generate.other.high"])
def test_a_list_that_the_worker_does_not_serve_is_left_alone(queue: str) -> None:
    consumer = Consumer()
    TierControl.__new__(TierControl).create(consumer)  # type: ignore[arg-type]
    consumer.add_task_queue(queue)
    consumer.cancel_task_queue(queue)
    assert consumer.stock == []


def test_other_queues_are_celerys_as_before() -> None:
    consumer = Consumer()
    TierControl.__new__(TierControl).create(consumer)  # type: ignore[arg-type]
    consumer.add_task_queue("reports", "exchange")
    consumer.cancel_task_queue("reports")
    assert consumer.stock == [("add", "reports"), ("cancel", "reports")]
