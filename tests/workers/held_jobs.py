"""Held jobs in one line, with or without rows behind them."""

from typing import Any
from uuid import UUID

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from db.ids import new_id
from db.jobs import Claimed
from db.models import Job, JobInput
from db.sampling import Sampling
from db.stream import Token
from tests.db.rows import add_worker
from workers.held import HeldJob

WORKER_ID = UUID(int=7)


def make_claimed(**changes: Any) -> Claimed:
    values: dict[str, Any] = {
        "id": new_id(),
        "attempt": 1,
        "crashes": 0,
        "tenant": "t",
        "key_id": UUID(int=1),
        "model": "m",
        "tier": 1,
        "stream": True,
        "seed": 0,
        "max_tokens": 8,
        "num_blocks": 2,
        "prompt_token_ids": [5, 6, 7],
        "sampling": Sampling(temperature=0.0, ignore_eos=True),
        "ready_at": 100.0,
        "seconds_left": None,
        "limit_code": "run_for_passed",
    }
    return Claimed(**(values | changes))


def make_held(*, texts: tuple[str, ...] = (), deadline: float | None = None, **changes: Any) -> HeldJob:
    """A job held by WORKER_ID. `texts` are tokens 10, 11, ... that it has produced."""
    tokens = [Token(10 + i, text) for i, text in enumerate(texts)]
    return HeldJob(claimed=make_claimed(**changes), worker_id=WORKER_ID, payload={}, deadline=deadline, tokens=tokens)


def insert_worker(engine: Engine, worker_id: UUID = WORKER_ID, **changes: Any) -> None:
    """The row of a worker that is ready."""
    with Session(engine) as session, session.begin():
        add_worker(session, id=worker_id, **changes)


def insert_running(engine: Engine, held: HeldJob, **changes: Any) -> None:
    """The row behind a held job, as the claim has left it."""
    claimed = held.claimed
    values: dict[str, Any] = {
        "id": claimed.id,
        "tenant": "t",
        "key_id": claimed.key_id,
        "kind": "job",
        "model": claimed.model,
        "tier": claimed.tier,
        "status": "running",
        "stream": claimed.stream,
        "seed": claimed.seed,
        "num_prompt_tokens": len(claimed.prompt_token_ids),
        "max_tokens": claimed.max_tokens,
        "num_blocks": claimed.num_blocks,
        "num_choices": claimed.sampling.n,
        "attempt": claimed.attempt,
        "worker_id": held.worker_id,
    }
    with Session(engine) as session:
        job = Job(**(values | changes))
        job.ready_at = session.connection().exec_driver_sql("SELECT clock_timestamp()").scalar_one()
        session.add(job)
        session.add(
            JobInput(
                job_id=claimed.id,
                prompt_token_ids=claimed.prompt_token_ids,
                sampling=claimed.sampling.model_dump(mode="json"),
                metadata_={},
            )
        )
        session.commit()


def row_of(engine: Engine, held: HeldJob) -> Job:
    with Session(engine) as session:
        return session.get_one(Job, held.job_id)
