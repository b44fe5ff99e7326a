"""Rows for tests, in one line each."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db.ids import new_id
from db.jobs import End, NewJob
from db.models import Job, JobInput, Status, WebhookEndpoint, Worker
from db.sampling import Sampling
from db.stream import Token
from db.webhook_url import lane_host

KEY = UUID(int=1)


def now(session: Session) -> datetime:
    """The Postgres clock."""
    return session.execute(select(func.clock_timestamp())).scalar_one()


def new_job(**fields: Any) -> NewJob:
    """A submit of three prompt tokens."""
    values: dict[str, Any] = {
        "tenant": "t",
        "key_id": KEY,
        "kind": "job",
        "model": "m",
        "tier": 1,
        "stream": True,
        "prompt": "abc",
        "messages": None,
        "prompt_token_ids": [1, 2, 3],
        "sampling": Sampling(),
        "max_tokens": 16,
        "num_blocks": 2,
    }
    return NewJob(**values | fields)


def add_job(
    session: Session, *, age: float = 0.0, parked: bool = False, webhook_url: str | None = None, **fields: Any
) -> Job:
    """A queued job that became ready `age` seconds ago."""
    ready_at = None if parked else now(session) - timedelta(seconds=age)
    values: dict[str, Any] = {
        "id": new_id(),
        "tenant": "t",
        "key_id": KEY,
        "kind": "job",
        "model": "m",
        "tier": 1,
        "status": Status.QUEUED,
        "stream": True,
        "seed": 1,
        "num_prompt_tokens": 3,
        "max_tokens": 16,
        "num_blocks": 2,
        "ready_at": ready_at,
    }
    job = Job(**values | fields)
    body = JobInput(
        job_id=job.id,
        prompt="abc",
        messages=None,
        prompt_token_ids=[1, 2, 3],
        sampling=Sampling().model_dump(mode="json"),
        webhook_url=webhook_url,
        webhook_host=webhook_url and lane_host(webhook_url),
        metadata_={"who": "me"},
    )
    session.add_all([job, body])
    session.flush()
    return job


def make_worker(**fields: Any) -> Worker:
    """The row of a worker that is ready, not added yet: model "m", 64 tokens long, 64 blocks of 16."""
    values: dict[str, Any] = {
        "id": new_id(),
        "name": "engine@test",
        "host": "test",
        "pid": 1,
        "pid_started": 1,
        "status": "ready",
        "model": "m",
        "tokenizer_path": "/nowhere/tokenizer.json",
        "max_model_len": 64,
        "max_num_seqs": 4,
        "block_size": 16,
        "num_blocks": 64,
        "vocab_size": 512,
        "dtype": "float32",
    }
    return Worker(**values | fields)


def add_worker(session: Session, *, renewed: float = 0.0, **fields: Any) -> UUID:
    """A worker that renewed its lease `renewed` seconds ago."""
    worker = make_worker(**{"renewed_at": now(session) - timedelta(seconds=renewed)} | fields)
    session.add(worker)
    session.flush()
    return worker.id


def add_endpoint(session: Session, *, url: str | None = None, **fields: Any) -> WebhookEndpoint:
    """An endpoint of tenant `t` for all events; without a URL, the one that signs per-job URLs."""
    values: dict[str, Any] = {
        "id": new_id(),
        "tenant": "t",
        "name": "n",
        "url": url,
        "host": url and lane_host(url),
        "secret": "whsec_c2VjcmV0",
        "event_types": [],
    }
    endpoint = WebhookEndpoint(**values | fields)
    session.add(endpoint)
    session.flush()
    return endpoint


def end_of(job_id: UUID, worker_id: UUID, *, attempt: int = 1, **fields: Any) -> End:
    """A success with the output `hi!`, in two tokens."""
    values: dict[str, Any] = {
        "status": Status.SUCCEEDED,
        "finish_reason": "stop",
        "text": "hi!",
        "token_ids": [7, 8],
        "text_offsets": [2, 3],
        "logprobs": None,
        "num_cached_tokens": 0,
    }
    return End(job_id=job_id, attempt=attempt, worker_id=worker_id, **values | fields)


def tokens(count: int, *, first: int = 0) -> list[Token]:
    """Tokens `first`, `first + 1`, ... of some output, each with a letter."""
    return [Token(100 + index, chr(97 + index % 26)) for index in range(first, first + count)]


def in_seconds(seconds: float) -> datetime:
    """A time from now on, by our own clock."""
    return datetime.now(UTC) + timedelta(seconds=seconds)
