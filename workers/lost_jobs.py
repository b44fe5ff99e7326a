"""What lost workers were running comes back to the queue, or is dead; by the sweep, or by a successor on their host."""

from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from uuid import UUID

from redis import Redis
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from db import jobs, queue, stream, workers
from db.stream import Token
from workers import journal


def take_back(engine: Engine, client: Redis, worker_ids: Sequence[UUID], journals: Path) -> jobs.Lost:
    """Mark the workers lost and requeue their jobs; those that crashed too often end as dead. Raises what stores raise.

    Redis is asked before anything is changed: without it nothing is charged to a job that may have got further. What it
    has lost of the tokens may be in the directory `journals`, where the workers were of this host.
    """
    with Session(engine) as session:
        running = jobs.running_of(session, worker_ids)
    standings = stream.standings(client, running)
    with Session(engine) as session, session.begin():
        workers.mark_lost(session, worker_ids)
        lost = jobs.requeue_lost(
            session,
            worker_ids,
            standings,
            read_tokens=partial(stream.fence, client),
            read_journals=partial(_read_journals, journals),
        )
    queue.push_front(client, lost.ready)
    stream.end_many(client, lost.dead)
    clear_journals(engine, journals)
    return lost


def clear_journals(engine: Engine, journals: Path) -> None:
    """Remove the journals of workers that have ended and have no job to take back. Raises what Postgres raises."""
    worker_ids = journal.writers(journals)
    if not worker_ids:
        return
    with Session(engine) as session:
        in_use = workers.in_use(session, worker_ids)
    journal.remove(journals, worker_ids - in_use)


def _read_journals(journals: Path, worker_ids: Collection[UUID]) -> dict[tuple[UUID, int], list[Token]]:
    return {key: tokens for worker_id in worker_ids for key, tokens in journal.read(journals, worker_id).items()}
