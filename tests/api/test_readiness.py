"""/readyz fails while jobs wait and nothing moves, and not because a queue is long."""

from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine, update
from sqlalchemy.orm import Session

from api.health import STALLED_SECONDS
from db.models import Job, Status
from tests.api.hand_worker import uuid_of
from tests.api.serving import api_with


def age(engine: Engine, public_id: str, *columns: str) -> None:
    """Move these moments of a job's row back to before the queue counts as stalled."""
    moment = datetime.now(UTC) - timedelta(seconds=2 * STALLED_SECONDS)
    with Session(engine) as session, session.begin():
        session.execute(update(Job).where(Job.id == uuid_of(public_id)).values(dict.fromkeys(columns, moment)))


async def test_a_backlog_that_nothing_takes_makes_the_service_not_ready(settings, worker, submit, engine) -> None:
    age(engine, (await submit())["id"], "created_at", "ready_at")
    async with api_with(settings) as client:
        ready = await client.get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (503, "not ready")
    assert ready.json()["checks"]["queue"].startswith("1 jobs of 'tiny' wait, the oldest for")


async def test_a_backlog_behind_a_job_that_runs_is_no_reason(settings, worker, submit, engine) -> None:
    running, waiting = await submit(), await submit()
    worker.start(running["id"])
    age(engine, running["id"], "created_at", "ready_at", "started_at")
    age(engine, waiting["id"], "created_at", "ready_at")
    async with api_with(settings) as client:
        assert (await client.get("/readyz")).json()["checks"]["queue"] == "ok"


async def test_a_backlog_of_which_jobs_started_lately_is_no_reason(settings, worker, submit, engine) -> None:
    ended, waiting = await submit(), await submit()
    worker.start(ended["id"])
    worker.end(ended["id"], Status.SUCCEEDED)
    age(engine, waiting["id"], "created_at", "ready_at")
    async with api_with(settings) as client:
        assert (await client.get("/readyz")).json()["checks"]["queue"] == "ok"
