"""Leases: a claim is one worker's, every write is fenced, a lost worker's jobs come back, the third crash ends one."""

from collections.abc import Collection, Iterator
from uuid import UUID

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from db import jobs, outputs, workers
from db.ids import new_id
from db.models import JobOutput, Status, WebhookEvent, Worker
from db.stream import Standing, Token
from db.workers import WorkerGone
from tests.db.rows import add_job, add_worker, end_of, in_seconds, tokens

ME, OTHER = UUID(int=11), UUID(int=12)


def test_claim_hands_over_all_that_running_needs(session: Session) -> None:
    job = add_job(session, tier=0, seed=9)
    [claimed] = jobs.claim(session, ME, [job.id])
    assert (claimed.id, claimed.attempt, claimed.crashes, claimed.seed, claimed.tier) == (job.id, 1, 0, 9, 0)
    assert claimed.prompt_token_ids == [1, 2, 3] and claimed.sampling.temperature == 1.0
    assert job.ready_at is not None and claimed.ready_at == pytest.approx(job.ready_at.timestamp(), abs=1e-6)
    assert (claimed.seconds_left, claimed.limit_code) == (None, None)
    session.expire_all()
    assert (job.status, job.worker_id) == (Status.RUNNING, ME) and job.started_at is not None


def test_job_is_claimed_once(session: Session) -> None:
    job = add_job(session)
    assert len(jobs.claim(session, ME, [job.id])) == 1
    assert jobs.claim(session, OTHER, [job.id]) == []
    assert jobs.claim(session, OTHER, [new_id()]) == []
    assert jobs.claim(session, OTHER, []) == []


@pytest.fixture
def second_session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session:
        yield session
        session.rollback()


def test_claim_passes_over_a_row_that_another_is_claiming(engine: Engine, second_session: Session) -> None:
    with Session(engine) as setup:
        ids = [add_job(setup).id for _ in range(3)]
        setup.commit()
    with Session(engine) as first:
        assert [each.id for each in jobs.claim(first, ME, ids[:2])] == ids[:2]
        assert [each.id for each in jobs.claim(second_session, OTHER, ids)] == ids[2:]


def test_seconds_left_count_to_the_nearer_limit(session: Session) -> None:
    by_finish = add_job(session, finish_by=in_seconds(50), run_for=100.0)
    by_run = add_job(session, finish_by=in_seconds(500), run_for=100.0)
    claimed = jobs.claim(session, ME, [by_finish.id, by_run.id])
    left = {each.id: each.seconds_left for each in claimed}
    assert [each.limit_code for each in claimed] == ["finish_by_passed", "run_for_passed"]
    assert left[by_finish.id] == pytest.approx(50, abs=20) and left[by_run.id] == pytest.approx(100, abs=1)


def test_job_past_a_limit_is_not_claimed_but_expires(session: Session) -> None:
    late = [
        add_job(session, start_by=in_seconds(-1)),
        add_job(session, finish_by=in_seconds(-1)),
        add_job(session, started_at=in_seconds(-10), run_for=5.0, attempt=1),
    ]
    started = add_job(session, start_by=in_seconds(-5), started_at=in_seconds(-10), attempt=1)
    ids = [job.id for job in (*late, started)]
    assert [each.id for each in jobs.claim(session, ME, ids)] == [started.id]
    due = jobs.due(session, has_run=False, after=None, limit=9) + jobs.due(session, has_run=True, after=None, limit=9)
    assert due == [job.id for job in late]
    assert [each.job_id for each in jobs.expire_due(session, ids)] == due
    session.expire_all()
    assert [job.error_code for job in late] == ["start_by_passed", "finish_by_passed", "run_for_passed"]
    assert {job.status for job in late} == {Status.EXPIRED}
    assert set(session.scalars(select(WebhookEvent.type))) == {"job.expired"}


def test_expired_job_that_ran_keeps_what_it_delivered(session: Session) -> None:
    job = add_job(session, finish_by=in_seconds(-1), attempt=1)
    assert [each.job_id for each in jobs.expire_due(session, [job.id], read_tokens=lambda _: tokens(2))] == [job.id]
    assert session.scalars(select(JobOutput.text)).one() == "ab"


def test_released_job_keeps_its_place_and_is_not_charged(session: Session) -> None:
    job = add_job(session, age=40)
    jobs.claim(session, ME, [job.id])
    [ready] = jobs.release(session, ME, [(job.id, 1)])
    assert job.ready_at is not None and ready.ready_at == job.ready_at.timestamp()
    session.expire_all()
    assert (job.status, job.worker_id, job.attempt, job.crashes) == (Status.QUEUED, None, 1, 0)
    [claimed] = jobs.claim(session, OTHER, [job.id])
    assert claimed.attempt == 2


def test_job_released_before_it_delivered_anything_has_not_started(session: Session) -> None:
    job = add_job(session, start_by=in_seconds(50), run_for=100.0)
    jobs.claim(session, ME, [job.id])
    jobs.release(session, ME, [(job.id, 1)])
    session.expire_all()
    assert job.started_at is None
    jobs.claim(session, ME, [job.id])
    jobs.release(session, ME, [(job.id, 2)], delivered={job.id: ()})
    session.expire_all()
    assert job.started_at is not None


def test_the_first_of_the_crashed_jobs_is_claimed_alone(session: Session) -> None:
    late = add_job(session, crashes=1, finish_by=in_seconds(-1))
    second, first = add_job(session, crashes=1), add_job(session, crashes=2)
    sound = add_job(session)
    ids = [late.id, first.id, second.id, sound.id]
    assert [each.id for each in jobs.claim(session, ME, ids)] == [first.id]
    assert jobs.num_crashes(session, ids) == {second.id: 1, sound.id: 0}
    assert [each.id for each in jobs.claim(session, ME, ids, may_take_crashed=False)] == [sound.id]
    assert [each.id for each in jobs.claim(session, ME, ids)] == [second.id]


def test_release_by_an_old_attempt_or_another_worker_matches_nothing(session: Session) -> None:
    job = add_job(session)
    jobs.claim(session, ME, [job.id])
    assert jobs.release(session, ME, [(job.id, 0)]) == []
    assert jobs.release(session, OTHER, [(job.id, 1)]) == []
    assert jobs.release(session, ME, []) == []


def test_worker_that_lost_its_lease_cannot_write_a_result(session: Session) -> None:
    job = add_job(session)
    jobs.claim(session, ME, [job.id])
    jobs.requeue_lost(session, [ME], {})
    jobs.claim(session, OTHER, [job.id])
    assert jobs.finish(session, [end_of(job.id, ME, attempt=1)]) == set()
    assert session.scalars(select(WebhookEvent)).all() == []
    assert jobs.finish(session, [end_of(job.id, OTHER, attempt=2)]) == {job.id}


def test_lost_lease_without_a_new_token_is_a_crash_and_with_one_is_not(session: Session) -> None:
    job = add_job(session)
    crashes = []
    for num_tokens in (5, 5, 8, 8):
        jobs.claim(session, ME, [job.id])
        session.refresh(job)
        standing = Standing(job.attempt, num_tokens)
        assert len(jobs.requeue_lost(session, [ME], {job.id: standing}).ready) == 1
        crashes.append(job.crashes)
    assert crashes == [0, 1, 1, 2]


def test_a_token_in_the_journal_that_the_stream_lost_is_progress(session: Session) -> None:
    job = add_job(session)
    crashes = []
    for num_streamed, num_journaled in ((5, 5), (2, 8), (8, 8)):
        jobs.claim(session, ME, [job.id])
        session.refresh(job)
        journals = {(job.id, job.attempt): tokens(num_journaled)}
        standings = {job.id: Standing(job.attempt, num_streamed)}
        jobs.requeue_lost(session, [ME], standings, read_journals=lambda _, found=journals: found)  # type: ignore[misc]
        crashes.append((job.crashes, job.tokens_at_crash))
    assert crashes == [(0, 5), (0, 8), (1, 8)]


def test_a_job_of_which_only_the_journal_tells_has_started_and_is_not_charged(session: Session) -> None:
    job = add_job(session, start_by=in_seconds(50))
    jobs.claim(session, ME, [job.id])
    jobs.requeue_lost(session, [ME], {}, read_journals=lambda _: {(job.id, 1): tokens(3)})
    assert (job.status, job.crashes, job.tokens_at_crash) == (Status.QUEUED, 0, 3)
    assert job.started_at is not None
    assert outputs.kept(session, [job.id]) == {job.id: tokens(3)}


def test_a_dead_job_has_what_the_journal_tells(session: Session) -> None:
    job = add_job(session, crashes=2, tokens_at_crash=3)
    jobs.claim(session, ME, [job.id])
    standings = {job.id: Standing(1, 0)}
    lost = jobs.requeue_lost(session, [ME], standings, read_journals=lambda _: {(job.id, 1): tokens(3)})
    assert lost.dead == {job.id: 3}
    assert outputs.kept(session, [job.id]) == {job.id: tokens(3)}


def test_what_a_worker_noted_of_an_earlier_attempt_is_not_taken_for_this_ones(session: Session) -> None:
    job = add_job(session)
    jobs.claim(session, ME, [job.id])
    jobs.release(session, ME, [(job.id, 1)], delivered={job.id: tokens(2)})
    jobs.claim(session, ME, [job.id])
    jobs.requeue_lost(session, [ME], {}, read_journals=lambda _: {(job.id, 1): tokens(5)})
    assert outputs.kept(session, [job.id]) == {job.id: tokens(2)}


def test_journals_are_read_when_every_stream_is_fenced(session: Session) -> None:
    job_ids = [add_job(session).id for _ in range(2)]
    jobs.claim(session, ME, job_ids)
    read: list[UUID] = []

    def read_tokens(job_id: UUID) -> list[Token]:
        read.append(job_id)
        return []

    def read_journals(worker_ids: Collection[UUID]) -> dict[tuple[UUID, int], list[Token]]:
        read.extend(worker_ids)
        return {}

    jobs.requeue_lost(session, [ME], {}, read_tokens=read_tokens, read_journals=read_journals)
    assert read == [*job_ids, ME]


@pytest.mark.parametrize("standing", [None, Standing(0, 0), Standing(1, 0, is_waiting=True)])
def test_job_that_was_never_computed_is_not_charged(session: Session, standing: Standing | None) -> None:
    job = add_job(session, start_by=in_seconds(50))
    jobs.claim(session, ME, [job.id])
    jobs.requeue_lost(session, [ME], {} if standing is None else {job.id: standing})
    assert (job.status, job.crashes, job.started_at) == (Status.QUEUED, 0, None)


def test_third_crash_is_the_end_with_its_reason_and_its_tokens(session: Session) -> None:
    job = add_job(session)
    for attempt in (1, 2, 3):
        jobs.claim(session, ME, [job.id])
        lost = jobs.requeue_lost(session, [ME], {job.id: Standing(attempt, 0)}, read_tokens=lambda _: tokens(1))
        assert lost.dead == ({job.id: 1} if attempt == 3 else {})
    assert job.status == Status.DEAD and job.error_code == "crashed"
    assert job.error_message is not None and "3 workers were lost" in job.error_message
    assert [crash["attempt"] for crash in job.crash_log or []] == [1, 2, 3]
    assert session.scalars(select(WebhookEvent.type)).one() == "job.dead"
    assert session.scalars(select(JobOutput.text)).one() == "a"
    assert jobs.claim(session, OTHER, [job.id]) == []


def test_lease_that_ran_out_is_lost_and_cannot_be_renewed(session: Session) -> None:
    alive, late = add_worker(session, renewed=5), add_worker(session, renewed=31)
    for worker_id in (alive, late):
        jobs.claim(session, worker_id, [add_job(session).id])
    assert workers.lost(session, 30) == [late]
    assert len(jobs.running_of(session, [late])) == 1
    with pytest.raises(WorkerGone):
        workers.renew(session, late, "ready")
    assert jobs.claim(session, late, [add_job(session).id]) == []
    assert workers.renew(session, alive, "draining") > 0
    session.expire_all()
    assert session.get_one(Worker, alive).status == "draining"


def test_running_jobs_of_a_worker_without_a_row_or_a_stopped_one_are_found(session: Session) -> None:
    stopped, unknown = add_worker(session), new_id()
    for worker_id in (stopped, unknown):
        jobs.claim(session, worker_id, [add_job(session).id])
    workers.stop(session, stopped)
    assert set(workers.lost(session, 30)) == {stopped, unknown}


def test_predecessors_are_the_unended_workers_of_this_host(session: Session) -> None:
    here = add_worker(session, host="here")
    add_worker(session, host="elsewhere")
    add_worker(session, host="here", status="stopped")
    assert [row.id for row in workers.predecessors(session, "here")] == [here]
    workers.mark_lost(session, [here])
    assert workers.predecessors(session, "here") == []


def test_workers_that_load_or_drain_do_not_share_the_queue(session: Session) -> None:
    for status, renewed in (("ready", 0), ("ready", 60), ("loading", 0), ("draining", 0), ("ready", 0)):
        add_worker(session, status=status, renewed=renewed)
    add_worker(session, model="other")
    assert workers.num_live(session, "m", 30) == 2
