"""Frees the jobs of workers that died on this host, without waiting for their leases to run out."""

import logging

import redis
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from db import jobs, queue, stream, workers
from db.models import Worker
from workers.process import is_alive, this_process
from workers.sweep import Delivered

log = logging.getLogger(__name__)


def free_predecessors(engine: Engine, client: redis.Redis) -> int:
    """Requeue what dead workers of this host were running; the number of jobs. Raises what the stores raise.

    Whether a worker is dead is known for certain here: its process is gone, and only a process can write.
    """
    with Session(engine) as session:
        rows = workers.predecessors(session, this_process().host)
        dead = [row.id for row in rows if _is_dead(row)]
        if not dead:
            return 0
        delivered = Delivered(client)
        num_tokens = stream.num_tokens_many(client, jobs.running_of(session, dead))
        workers.mark_lost(session, dead)
        lost = jobs.requeue_lost(session, dead, num_tokens, read_tokens=delivered.read)
        session.commit()
    queue.push_front(client, lost.ready)
    for job_id in lost.dead:
        stream.end(client, job_id, delivered.num_tokens(job_id))
    log.warning(
        "a dead predecessor's jobs are free",
        extra={"num_workers": len(dead), "num_jobs": len(lost.ready), "num_dead": len(lost.dead)},
    )
    return len(lost.ready) + len(lost.dead)


def _is_dead(row: Worker) -> bool:
    return not is_alive(row.pid, row.pid_started)
