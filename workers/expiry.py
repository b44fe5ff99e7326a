"""Ends queued jobs that are past a limit, or that a client cancelled after a run of theirs was cut short."""

import logging
from collections.abc import Sequence
from functools import partial
from uuid import UUID

from redis import Redis
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from db import jobs, queue, stream
from db.jobs import Expired
from workers.contact import Contact
from workers.isolation import Isolation

PAGE = 1000  # rows in one transaction

log = logging.getLogger(__name__)


class Expiry:
    """Part of the sweep, and used by its thread only."""

    def __init__(self, engine: Engine, redis: Redis, contact: Contact) -> None:
        self._engine = engine
        self._redis = redis
        self._contact = contact
        self._isolation: Isolation[UUID] = Isolation(log, "an overdue job cannot be ended")

    def run(self, *, has_run: bool) -> int:
        """End all that are due among the jobs that ran before, or among those that never did; how many.

        The latter need nothing of Redis to be ended, and are all ended before it is told of any.
        """
        ended: list[Expired] = []
        after: UUID | None = None
        while True:
            with Session(self._engine) as session:
                page = jobs.due(session, has_run=has_run, after=after, limit=PAGE)
            for part in self._isolation.run(page, self._end):
                ended += part
            self._contact.renew()
            if len(page) < PAGE:
                break
            after = page[-1]
        stream.end_many(self._redis, {each.job_id: each.num_tokens for each in ended})
        queue.remove(self._redis, [each.unqueue for each in ended if each.unqueue is not None])
        return len(ended)

    def _end(self, job_ids: Sequence[UUID]) -> list[Expired]:
        with Session(self._engine) as session, session.begin():
            return jobs.expire_due(session, job_ids, read_tokens=partial(stream.fence, self._redis))
