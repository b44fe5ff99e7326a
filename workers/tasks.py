"""Housekeeping as Celery tasks, which beat sends to the queue `tasks`: see `db.broker` for how often.

Each may be lost, repeated or late: what is due stands in Postgres, and the next one finds it.
"""

import logging
from functools import lru_cache
from threading import Lock

from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from db import files, partitions, retention
from db.broker import app
from db.file_store import FileStore
from db.session import make_engine
from db.settings import get_settings
from workers.deliverer import Deliverer

POOL_SIZE = 10  # connections: the tasks, the sweep and the threads that note webhook attempts
PARTITION_DAYS = 7  # made ahead

log = logging.getLogger(__name__)
_making = Lock()


@app.task(name="deliver_due", send_events=False)  # one a second would push the generations out of Flower's list
def deliver_due() -> int:
    """Start the webhook deliveries that are due; returns how many. They run on the deliverer's own threads."""
    return deliverer().start_due()


@app.task(name="maintain_partitions")
def maintain_partitions() -> list[str]:
    """Make the coming days' partitions; returns the new ones' names."""
    made = []
    for num_days in range(PARTITION_DAYS + 1):  # a transaction for each day: one that finds no lock costs no other
        try:
            with Session(engine()) as session, session.begin():
                made += partitions.ensure(session, days_ahead=num_days)
        except OperationalError as error:
            log.warning("partitions not made in this run: %s", str(error).partition("\n")[0])
    if made:
        log.info("partitions made", extra={"partitions": made})
    return made


@app.task(name="drop_expired")
def drop_expired() -> list[str]:
    """Remove what is older than the retention, and files that expired; returns the names of the dropped partitions."""
    removed = retention.remove_expired(engine(), get_settings().retention_days)
    if removed.partitions or any(removed.num_rows.values()):
        log.info("retention removed", extra=vars(removed))
    num_files = files.remove_expired(engine(), FileStore(get_settings().resolved_files_url))
    if num_files:
        log.info("files removed", extra={"files": num_files})
    return removed.partitions


def engine() -> Engine:
    """The process's engine."""
    with _making:
        return _engine()


def deliverer() -> Deliverer:
    """The process's deliverer; made once, whichever thread asks first."""
    with _making:
        return _deliverer()


@lru_cache(maxsize=1)
def _engine() -> Engine:
    return make_engine(get_settings(), pool_size=POOL_SIZE)


@lru_cache(maxsize=1)
def _deliverer() -> Deliverer:
    settings = get_settings()
    return Deliverer(
        _engine(), timeout_seconds=settings.webhook_timeout_seconds, allow_private=settings.webhook_allow_private
    )
