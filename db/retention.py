"""What is older than the retention goes: a day's partitions at once where all of it may go, else row by row.

Each act is a transaction of its own and a short one. One that finds somebody in its way is left to the next run.
"""

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from db.ids import first_id_at
from db.models import ENDED
from db.partitions import LOCK, LOCK_TIMEOUT, ONE_DAY, TABLES, Day, days, today

BATCH = 1000  # rows in one statement

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Removed:
    """What one run removed."""

    partitions: list[str]
    num_rows: dict[str, int]  # by what they were


# Of a day that cannot be dropped, because a job of it has not ended or did so lately, and of the default partition.
JOBS = """
    WITH old AS (
        SELECT id FROM jobs
        WHERE id < :first_kept AND status = ANY(:ended) AND (ended_at >= :expiry) IS NOT TRUE
        ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED
    ), inputs AS (
        DELETE FROM job_inputs USING old WHERE job_id = old.id AND job_id < :first_kept
    ), outputs AS (
        DELETE FROM job_outputs USING old WHERE job_id = old.id AND job_id < :first_kept
    ), keys AS (
        DELETE FROM idempotency_keys USING old WHERE job_id = old.id
    )
    DELETE FROM jobs USING old WHERE jobs.id = old.id AND jobs.id < :first_kept
"""
DELIVERIES = """
    WITH old AS (
        SELECT id FROM webhook_deliveries WHERE id < :first_kept AND status <> 'pending'
        ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED
    ), attempts AS (
        DELETE FROM webhook_attempts USING old WHERE delivery_id = old.id
    )
    DELETE FROM webhook_deliveries USING old WHERE webhook_deliveries.id = old.id
"""
EVENTS = """
    DELETE FROM webhook_events WHERE id IN (
        SELECT id FROM webhook_events e
        WHERE id < :first_kept
          AND NOT EXISTS (SELECT 1 FROM webhook_deliveries d WHERE d.event_id = e.id)
        ORDER BY id LIMIT :limit
    )
"""
KEYS = """
    DELETE FROM idempotency_keys WHERE (tenant, key) IN (
        SELECT tenant, key FROM idempotency_keys WHERE created_at < :expiry LIMIT :limit
    )
"""
# A model's newest card says what it takes, and that it is known here, while anything waits for it to come back.
WORKERS = """
    DELETE FROM workers WHERE id IN (
        SELECT id FROM workers w
        WHERE status IN ('stopped', 'lost')
          AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.worker_id = w.id AND j.status = 'running')
          AND CASE
              WHEN EXISTS (
                  SELECT 1 FROM workers n WHERE n.model = w.model AND (n.started_at, n.id) > (w.started_at, w.id)
              ) THEN renewed_at < clock_timestamp() - interval '1 day'
              ELSE renewed_at < :expiry
                   AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.model = w.model AND j.status IN ('queued', 'running'))
          END
        LIMIT :limit
    )
"""
# The files have what they say. Who reads a file since before its batch ended is given the time to come to its end.
BATCH_LINES = """
    DELETE FROM batch_lines WHERE (batch_id, line) IN (
        SELECT batch_id, line FROM batches JOIN batch_lines ON batch_id = batches.id
        WHERE ended_at < clock_timestamp() - interval '1 hour'
        LIMIT :limit
    )
"""
BATCHES = """
    DELETE FROM batches WHERE id IN (
        SELECT id FROM batches
        WHERE ended_at < :expiry AND NOT EXISTS (SELECT 1 FROM batch_lines WHERE batch_id = batches.id)
        LIMIT :limit
    )
"""
ROWS = {
    "jobs": JOBS,
    "deliveries": DELIVERIES,
    "events": EVENTS,
    "idempotency keys": KEYS,
    "batch lines": BATCH_LINES,
    "batches": BATCHES,
    "workers": WORKERS,
}


def remove_expired(engine: Engine, retention_days: int) -> Removed:
    """Remove what ended `retention_days` ago, with all that hangs off it. Raises nothing: the next run tries again.

    What has not ended is kept however old it is: jobs, and deliveries that are still to be made.
    """
    partitions: list[str] = []
    num_rows = dict.fromkeys(ROWS, 0)
    try:
        with Session(engine) as session:
            expiry = today(session) - timedelta(days=retention_days)
            old_days = [start for start in days(session) if start + ONE_DAY <= expiry]
    except SQLAlchemyError as error:
        _not_removed("anything", error)
        return Removed(partitions, num_rows)
    for start in old_days:
        try:
            with Session(engine) as session, session.begin():
                partitions += drop_day(session, start, expiry)
        except SQLAlchemyError as error:
            _not_removed(f"the day {start:%Y-%m-%d}", error)
    for what in ROWS:
        try:
            num_rows[what] = _delete_all(engine, what, expiry)
        except SQLAlchemyError as error:
            _not_removed(what, error)
    return Removed(partitions, num_rows)


def drop_day(session: Session, start: datetime, expiry: datetime) -> list[str]:
    """Drop a day's partitions unless one of its jobs must be kept; returns their names."""
    session.execute(LOCK)
    session.execute(LOCK_TIMEOUT)
    if _has_kept_jobs(session, start, expiry):
        return []
    names = [Day(table, start).name for table in TABLES]
    for name in names:
        session.execute(text(f"DROP TABLE IF EXISTS {name}"))
    return names


def delete_batch(session: Session, what: str, expiry: datetime, limit: int = BATCH) -> int:
    """Delete at most `limit` rows of one kind (of `ROWS`); returns how many."""
    parameters: dict[str, Any] = {
        "expiry": expiry,
        "first_kept": first_id_at(expiry.timestamp()),
        "ended": [str(status) for status in ENDED],
        "limit": limit,
    }
    return int(session.execute(text(ROWS[what]), parameters).rowcount)  # type: ignore[attr-defined]


def _delete_all(engine: Engine, what: str, expiry: datetime) -> int:
    num_rows = 0
    while True:
        with Session(engine) as session, session.begin():
            num_deleted = delete_batch(session, what, expiry)
        num_rows += num_deleted
        if num_deleted < BATCH:
            return num_rows


def _has_kept_jobs(session: Session, start: datetime, expiry: datetime) -> bool:
    kept = text("""
        SELECT EXISTS (
            SELECT 1 FROM jobs
            WHERE id >= :first AND id < :past AND (NOT status = ANY(:ended) OR ended_at >= :expiry)
        )
    """)
    first, past = (first_id_at(time.timestamp()) for time in (start, start + ONE_DAY))
    parameters = {"first": first, "past": past, "ended": [str(status) for status in ENDED], "expiry": expiry}
    return bool(session.execute(kept, parameters).scalar_one())


def _not_removed(what: str, error: Exception) -> None:
    log.warning("not removed in this run: %s: %s", what, str(error).partition("\n")[0])
