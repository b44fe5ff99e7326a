"""Webhook deliveries of a test: a deliverer in one line, and what became of a delivery."""

from typing import Any
from uuid import UUID

from sqlalchemy import Engine, func, select, update
from sqlalchemy.orm import Session

from db.models import WebhookAttempt, WebhookDelivery
from tests.workers.world import World
from workers.deliverer import Deliverer


def make_deliverer(engine: Engine, **options: Any) -> Deliverer:
    return Deliverer(engine, **{"timeout_seconds": 20.0, "allow_private": True} | options)


def run_due(engine: Engine, **options: Any) -> int:
    """Send what is due, to the end; returns how many the first call started."""
    deliverer = make_deliverer(engine, **options)
    num_started = deliverer.start_due()
    deliverer.close()
    return num_started


def make_due(world: World) -> None:
    """Let the wait for the next attempt be over."""
    with Session(world.engine) as session, session.begin():
        session.execute(
            update(WebhookDelivery).where(WebhookDelivery.due_at.is_not(None)).values(due_at=func.clock_timestamp())
        )


def attempts_of(world: World, job_id: UUID) -> list[WebhookAttempt]:
    with Session(world.engine) as session:
        statement = select(WebhookAttempt).where(WebhookAttempt.delivery_id == world.delivery(job_id).id)
        return list(session.scalars(statement.order_by(WebhookAttempt.number)))
