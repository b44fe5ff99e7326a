"""What lost workers were running comes back to the queue, or is dead; by the sweep, or by a successor on their host."""

from collections.abc import Sequence
from functools import partial
from uuid import UUID

from redis import Redis
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from db import jobs, queue, stream, workers


def take_back(engine: Engine, client: Redis, worker_ids: Sequence[UUID]) -> jobs.Lost:
    """Mark the workers lost and requeue their jobs; those that crashed too often end as dead. Raises what stores raise.

    Redis is asked before anything is changed: without it nothing is charged to a job that may have got further.
    """
    with Session(engine) as session:
        running = jobs.running_of(session, worker_ids)
    standings = stream.standings(client, running)
    with Session(engine) as session, session.begin():
        workers.mark_lost(session, worker_ids)
        lost = jobs.requeue_lost(session, worker_ids, standings, read_tokens=partial(stream.fence, client))
    queue.push_front(client, lost.ready)
    stream.end_many(client, lost.dead)
    return lost
