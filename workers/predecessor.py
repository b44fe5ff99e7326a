"""Frees the jobs of workers that died on this host, without waiting for their leases to run out."""

import logging
from pathlib import Path

import redis
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from db import workers
from db.models import Worker
from workers.lost_jobs import clear_journals, take_back
from workers.process import is_alive, this_process

log = logging.getLogger(__name__)


def free_predecessors(engine: Engine, client: redis.Redis, journals: Path) -> int:
    """Requeue what dead workers of this host were running; the number of jobs. Raises what the stores raise.

    Whether a worker is dead is known for certain here: its process is gone, and only a process can write. `journals`
    is where they kept theirs; those of earlier ones, whose jobs another host took back, go.
    """
    with Session(engine) as session:
        dead = [row.id for row in workers.predecessors(session, this_process().host) if _is_dead(row)]
    if not dead:
        clear_journals(engine, journals)
        return 0
    lost = take_back(engine, client, dead, journals)
    log.warning(
        "a dead predecessor's jobs are free",
        extra={"num_workers": len(dead), "num_jobs": len(lost.ready), "num_dead": len(lost.dead)},
    )
    return len(lost.ready) + len(lost.dead)


def _is_dead(row: Worker) -> bool:
    return not is_alive(row.pid, row.pid_started)
