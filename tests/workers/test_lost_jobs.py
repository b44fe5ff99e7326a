"""Taking back what a lost worker of this host ran: its journal tells what Redis has lost, and goes when it is done."""

from pathlib import Path
from uuid import UUID

import pytest
import redis
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from db import outputs, stream
from db.jobs import Lost
from db.stream import Append, Token
from tests.workers.held_jobs import WORKER_ID, insert_running, insert_worker, make_held, row_of
from workers import journal
from workers.held import HeldJob, HeldJobs
from workers.journal import Journal
from workers.lost_jobs import clear_journals, take_back

TEXTS = ("a", "b", "c")


@pytest.fixture
def held(engine: Engine, tmp_path: Path) -> HeldJob:
    """A running job whose worker, which is not heard of any more, has journaled all its tokens."""
    insert_worker(engine)
    held = make_held(texts=TEXTS)
    insert_running(engine, held)
    note(tmp_path, held)
    return held


def note(directory: Path, held: HeldJob) -> None:
    written = Journal(directory, HeldJobs())
    written.write({held: append_of(held, len(held.tokens))})
    written.close()


def append_of(held: HeldJob, num_tokens: int) -> Append:
    return Append(held.job_id, held.claimed.attempt, held.worker_id, 0, held.tokens[:num_tokens])


def tell(client: redis.Redis, held: HeldJob, num_tokens: int) -> None:
    """So many of the job's tokens are in its stream."""
    stream.open(client, held.job_id, held.claimed.attempt, held.worker_id)
    stream.append_many(client, [append_of(held, num_tokens)])


def taken_back(engine: Engine, client: redis.Redis, journals: Path) -> Lost:
    return take_back(engine, client, [WORKER_ID], journals)


def kept(engine: Engine, held: HeldJob) -> list[Token]:
    with Session(engine) as session:
        return outputs.kept(session, [held.job_id]).get(held.job_id, [])


@pytest.mark.parametrize("num_told", [None, 2, 3])
def test_a_job_keeps_what_its_worker_noted_whatever_is_left_of_its_stream(
    engine: Engine, redis_client: redis.Redis, tmp_path: Path, held: HeldJob, num_told: int | None
) -> None:
    if num_told is not None:
        tell(redis_client, held, num_told)
    assert len(taken_back(engine, redis_client, tmp_path).ready) == 1
    assert kept(engine, held) == held.tokens
    row = row_of(engine, held)
    assert (row.status, row.crashes, row.tokens_at_crash) == ("queued", 0, 3)


def test_a_host_without_the_journal_goes_by_the_stream(
    engine: Engine, redis_client: redis.Redis, tmp_path: Path, held: HeldJob
) -> None:
    tell(redis_client, held, 2)
    assert len(taken_back(engine, redis_client, tmp_path / "another-host").ready) == 1
    assert kept(engine, held) == held.tokens[:2]


def test_a_journal_that_cannot_be_read_keeps_no_job_from_coming_back(
    engine: Engine, redis_client: redis.Redis, tmp_path: Path, held: HeldJob
) -> None:
    (tmp_path / WORKER_ID.hex).unlink()
    (tmp_path / WORKER_ID.hex).mkdir()
    assert len(taken_back(engine, redis_client, tmp_path).ready) == 1
    assert row_of(engine, held).status == "queued"


def test_a_journal_goes_when_its_jobs_are_taken_back_and_stays_until_then(
    engine: Engine, redis_client: redis.Redis, tmp_path: Path, held: HeldJob
) -> None:
    gone = redis.Redis(port=1)  # nobody listens there
    with pytest.raises(redis.ConnectionError):
        taken_back(engine, gone, tmp_path)
    clear_journals(engine, tmp_path)
    assert journal.writers(tmp_path) == {WORKER_ID}
    taken_back(engine, redis_client, tmp_path)
    assert journal.writers(tmp_path) == set()


def test_journals_of_live_workers_and_of_running_jobs_stay_and_all_others_go(engine: Engine, tmp_path: Path) -> None:
    unknown, stopped, live, owner = (UUID(int=each) for each in range(20, 24))
    insert_worker(engine, stopped, status="stopped")
    insert_worker(engine, live)
    insert_worker(engine, owner, status="lost")
    for worker_id in (unknown, stopped, live, owner):
        held = make_held(texts=TEXTS)
        held.worker_id = worker_id
        note(tmp_path, held)
        if worker_id == owner:
            insert_running(engine, held)
    clear_journals(engine, tmp_path)
    assert journal.writers(tmp_path) == {live, owner}
