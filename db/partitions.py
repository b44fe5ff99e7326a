"""Daily partitions of the tables that grow with every job, by the time inside their version 7 ids.

`jobs_p20250131` holds the ids made on that day (UTC); a job's input and output carry its id and lie in the same day.
Ids of a day without a partition go to the default one, so that nothing is refused, and move when the day gets its own.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from db.ids import first_id_at

TABLES = {"jobs": "id", "job_inputs": "job_id", "job_outputs": "job_id"}  # and the column that says the day
NAME_PATTERN = r"^(jobs|job_inputs|job_outputs)_(p\d{8}|default)$"
ONE_DAY = timedelta(days=1)
LOCK = text("SELECT pg_advisory_xact_lock(hashtext('headrace partitions'))")
# Below Postgres's deadlock_timeout: where it is them or us, it is us, and the next run is soon enough.
LOCK_TIMEOUT = text("SET LOCAL lock_timeout = '500ms'")


@dataclass(frozen=True)
class Day:
    """One day's share of a table."""

    table: str
    start: datetime

    @property
    def name(self) -> str:
        return f"{self.table}_p{self.start:%Y%m%d}"

    @property
    def bounds(self) -> dict[str, str]:
        """The first id of the day, and of the next."""
        first, past = (first_id_at(time.timestamp()) for time in (self.start, self.start + ONE_DAY))
        return {"first": str(first), "past": str(past)}


def ensure(session: Session, days_ahead: int = 7) -> list[str]:
    """Make the partitions from today to `days_ahead` days on that are missing; returns their names."""
    session.execute(LOCK)
    existing = _existing(session)
    first = today(session)
    wanted = [Day(table, first + n * ONE_DAY) for n in range(days_ahead + 1) for table in TABLES]
    missing = [day for day in wanted if day.name not in existing]
    session.execute(LOCK_TIMEOUT)
    for day in missing:
        _create(session, day)
    return [day.name for day in missing]


def days(session: Session) -> list[datetime]:
    """The days that have a partition of `jobs`, the oldest first."""
    names = sorted(name for name in _existing(session) if name.startswith("jobs_p"))
    return [datetime.strptime(name, "jobs_p%Y%m%d").replace(tzinfo=UTC) for name in names]


def today(session: Session) -> datetime:
    """The beginning of the current day (UTC), by the Postgres clock."""
    now: datetime = session.execute(select(func.clock_timestamp())).scalar_one()
    return now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def _existing(session: Session) -> set[str]:
    names = session.scalars(
        text("SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE c.relname ~ :pattern"),
        {"pattern": NAME_PATTERN},
    )
    return set(names)


def _create(session: Session, day: Day) -> None:
    """Make the table first and attach it second: rows of the day that fell into the default one move in between."""
    column, default = TABLES[day.table], f"{day.table}_default"
    first, past = day.bounds["first"], day.bounds["past"]
    session.execute(text(f"LOCK TABLE {default} IN ACCESS EXCLUSIVE MODE"))  # what attaching takes, at once
    session.execute(text(f"CREATE TABLE {day.name} (LIKE {day.table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"))
    session.execute(
        text(f"""
            WITH moved AS (
                DELETE FROM {default} WHERE {column} >= CAST(:first AS uuid) AND {column} < CAST(:past AS uuid)
                RETURNING *
            )
            INSERT INTO {day.name} SELECT * FROM moved
        """),
        day.bounds,
    )
    session.execute(
        text(f"ALTER TABLE {day.table} ATTACH PARTITION {day.name} FOR VALUES FROM ('{first}') TO ('{past}')")
    )
