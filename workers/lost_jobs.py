"""What lost workers were running comes back to the queue, or is dead; by the sweep, or by a successor on their host."""

from collections.abc import Sequence
from uuid import UUID

from redis import Redis
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from db import jobs, queue, stream, workers
from db.stream import Token


def take_back(engine: Engine, client: Redis, worker_ids: Sequence[UUID]) -> jobs.Lost:
    """Mark the workers lost and requeue their jobs; those that crashed too often end as dead. Raises what stores raise.

    Redis is asked before anything is changed: without it nothing is charged to a job that may have got further.
    """
    delivered = Delivered(client)
    with Session(engine) as session:
        running = jobs.running_of(session, worker_ids)
    standings = stream.standings(client, running)
    with Session(engine) as session, session.begin():
        workers.mark_lost(session, worker_ids)
        lost = jobs.requeue_lost(session, worker_ids, standings, read_tokens=delivered.read)
    queue.push_front(client, lost.ready)
    delivered.end_streams(lost.dead)
    return lost


class Delivered:
    """The tokens that jobs had delivered when their streams were fenced, read while their rows are being ended."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._num_tokens: dict[UUID, int] = {}

    def read(self, job_id: UUID) -> Sequence[Token]:
        """Fence a job's stream and return what is in it."""
        tokens = stream.fence(self._redis, job_id)
        self._num_tokens[job_id] = len(tokens)
        return tokens

    def end_streams(self, job_ids: Sequence[UUID]) -> None:
        """Tell the readers of ended jobs now; without this they would find the end in the row, seconds later."""
        for job_id in job_ids:
            stream.end(self._redis, job_id, self._num_tokens.get(job_id, 0))
