"""The writer against a real PostgreSQL: what is durable, what is fenced off, and what the server refuses."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session

from db import jobs
from db.jobs import End
from db.models import JobOutput, Status
from db.stream import Token
from tests.servers import Servers
from tests.workers.held_jobs import insert_running, make_held, row_of
from workers.held import HeldJob
from workers.writer import Writer


@dataclass
class World:
    """A running writer and what it said of each job."""

    engine: Engine
    written: list[tuple[HeldJob, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.writer = Writer(
            self.engine, on_written=lambda held, is_ours: self.written.append((held, is_ours)), on_failure=raise_it
        )

    def write(self, *jobs: HeldJob) -> None:
        for held in jobs:
            held.finish_reasons = ["length"]
            held.end = held.end or held.ended_as(Status.SUCCEEDED)
            self.writer.put(held)
        if not self.writer.is_alive():
            self.writer.start()
        assert self.writer.flush(timeout_seconds=60)


def raise_it(error: BaseException) -> None:
    raise error


@pytest.fixture
def world(engine: Engine) -> Iterator[World]:
    world = World(engine)
    yield world
    world.writer.stop()
    world.writer.join()


def test_an_end_is_told_when_it_is_in_the_row(world: World) -> None:
    held = make_held(texts=("Mill", " wheel"))
    insert_running(world.engine, held)
    world.write(held)
    assert world.written == [(held, True)]
    row = row_of(world.engine, held)
    assert (row.status, row.finish_reason, row.num_output_tokens) == ("succeeded", "length", 2)
    with Session(world.engine) as session:
        output = session.get_one(JobOutput, held.job_id)
        assert (output.text, output.token_ids, output.text_offsets) == ("Mill wheel", [10, 11], [4, 10])


def test_an_old_attempt_ends_nothing_and_its_neighbours_in_the_batch_are_written(world: World) -> None:
    old, neighbour = make_held(texts=("x",)), make_held(texts=("y",))
    insert_running(world.engine, old, attempt=2)
    insert_running(world.engine, neighbour)
    world.write(old, neighbour)
    assert world.written == [(old, False), (neighbour, True)]
    assert row_of(world.engine, old).status == "running"


def test_an_output_that_postgres_refuses_fails_its_own_job_and_no_other(world: World) -> None:
    refused, neighbour = make_held(), make_held(texts=("y",))
    refused.tokens = [Token(2**40, "x")]  # beyond the column
    insert_running(world.engine, refused)
    insert_running(world.engine, neighbour)
    world.write(refused, neighbour)
    row = row_of(world.engine, refused)
    assert (row.status, row.error_code) == ("failed", "output_not_stored")
    assert row_of(world.engine, neighbour).status == "succeeded"
    assert sorted(is_ours for _, is_ours in world.written) == [True, True]


def test_ends_wait_for_a_postgres_that_is_away(world: World, servers: Servers) -> None:
    held = make_held(texts=("x",))
    insert_running(world.engine, held)
    servers.postgres.stop()
    held.end = held.ended_as(Status.SUCCEEDED)
    world.writer.put(held)
    world.writer.start()
    assert not world.writer.flush(timeout_seconds=0.2)
    servers.postgres.start()
    assert world.writer.flush(timeout_seconds=60)
    assert world.written == [(held, True)]


def test_a_read_only_postgres_costs_no_output(world: World) -> None:
    held = make_held(texts=("Mill", " wheel"))
    insert_running(world.engine, held)
    held.end = held.ended_as(Status.SUCCEEDED)
    set_read_only(world.engine, True)
    try:
        world.engine.dispose()
        world.writer.put(held)
        world.writer.start()
        assert not world.writer.flush(timeout_seconds=0.3)
    finally:
        set_read_only(world.engine, False)
        world.engine.dispose()  # what a failover does: new connections see a server that writes
    assert world.writer.flush(timeout_seconds=60)
    assert world.written == [(held, True)]
    row = row_of(world.engine, held)
    assert (row.status, row.num_output_tokens) == ("succeeded", 2)


def set_read_only(engine: Engine, is_on: bool) -> None:
    value = "on" if is_on else "off"
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("SET default_transaction_read_only = off"))
        name = connection.scalar(text("SELECT current_database()"))
        connection.execute(text(f'ALTER DATABASE "{name}" SET default_transaction_read_only = {value}'))


def test_an_end_that_postgres_refuses_in_every_form_is_given_up_at_the_stop(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, refused = make_held(texts=("x",)), threading.Semaphore(0)
    insert_running(world.engine, held)

    def refuse(session: Session, ends: list[End]) -> set[UUID]:
        refused.release()
        raise IntegrityError("UPDATE jobs", {}, Exception("a trigger that somebody has to repair"))

    monkeypatch.setattr(jobs, "finish", refuse)
    held.end = held.ended_as(Status.SUCCEEDED)
    world.writer.put(held)
    world.writer.start()
    assert all(refused.acquire(timeout=60) for _ in range(2))  # with its output, and as failed
    world.writer.stop()
    world.writer.join(60)
    assert not world.writer.is_alive()
    assert (world.written, row_of(world.engine, held).status) == ([], "running")


def test_a_lost_answer_is_remembered_when_a_neighbour_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    committed, refused = make_held(texts=("x",)), make_held()
    refused.tokens = [Token(2**40, "x")]  # beyond the column
    insert_running(world.engine, committed)
    insert_running(world.engine, refused)
    finish, num_tries = jobs.finish, 0

    def lose_the_first_answer(session: Session, ends: list[End]) -> set[UUID]:
        nonlocal num_tries
        num_tries += 1
        if num_tries > 1:
            return finish(session, ends)
        finish(session, ends[:1])  # as if both had been committed, and then a standby promoted that had but one
        session.commit()
        raise OperationalError("COMMIT", {}, Exception("the answer was lost"))

    monkeypatch.setattr(jobs, "finish", lose_the_first_answer)
    world.write(committed, refused)
    assert sorted(is_ours for _, is_ours in world.written) == [True, True]
    assert row_of(world.engine, committed).status == "succeeded"


def test_a_commit_whose_answer_was_lost_counts_as_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    held = make_held(texts=("x",))
    insert_running(world.engine, held)
    commit, num_commits = Session.commit, 0

    def commit_and_lose_the_answer(session: Session) -> None:
        nonlocal num_commits
        commit(session)
        num_commits += 1
        if num_commits == 1:
            session.connection().exec_driver_sql("SELECT 1 FROM pg_terminate_backend(pg_backend_pid())")

    monkeypatch.setattr(Session, "commit", commit_and_lose_the_answer)
    world.write(held)
    assert world.written == [(held, True)]


def test_an_ended_job_with_another_outcome_is_not_taken_for_ours(world: World) -> None:
    held = make_held(texts=("x",))
    insert_running(world.engine, held)
    world.write(held)
    late = replace(held, end=None)
    late.end = late.ended_as(Status.CANCELLED)
    world.write(late)
    assert [is_ours for _, is_ours in world.written] == [True, False]
