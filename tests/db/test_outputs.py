"""What a job delivered before it left its worker is kept in its row, for whatever comes next without its stream."""

from collections.abc import Callable
from uuid import UUID

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from db import jobs, outputs
from db.models import Job, JobOutput, Status
from db.stream import Standing, Token
from tests.db.rows import add_job, end_of, in_seconds, tokens

ME, OTHER = UUID(int=11), UUID(int=12)
TOLD = [Token(7, "ö", {"logprob": -1.0, "top": []}, 0), Token(8, "", None, 1), Token(9, "x\ufffd", None, 0)]


def handed_back(session: Session, job: Job, told: list[Token]) -> None:
    [claimed] = jobs.claim(session, ME, [job.id])
    assert len(jobs.release(session, ME, [(job.id, claimed.attempt)], delivered={job.id: told})) == 1


def lost(session: Session, job: Job, told: list[Token]) -> None:
    [claimed] = jobs.claim(session, ME, [job.id])
    standings = {job.id: Standing(claimed.attempt, len(told))} if told else {}
    assert len(jobs.requeue_lost(session, [ME], standings, read_tokens=lambda _: told).ready) == 1


leave = pytest.mark.parametrize("leave", [handed_back, lost])


@leave
def test_the_next_attempt_gets_what_was_delivered(session: Session, leave: Callable[..., None]) -> None:
    job = add_job(session)
    leave(session, job, TOLD)
    [claimed] = jobs.claim(session, OTHER, [job.id])
    assert claimed.kept_tokens == TOLD


@leave
def test_a_job_that_ends_while_it_waits_again_has_what_was_delivered_though_its_stream_is_lost(
    session: Session, leave: Callable[..., None]
) -> None:
    job = add_job(session, finish_by=in_seconds(50))
    leave(session, job, TOLD)
    job.finish_by = in_seconds(-1)
    session.flush()
    [expired] = jobs.expire_due(session, [job.id], read_tokens=lambda _: [])
    assert expired.num_tokens == 3
    assert (job.status, job.num_output_tokens) == (Status.EXPIRED, 3)
    assert outputs.kept(session, [job.id]) == {job.id: TOLD}


@leave
def test_a_job_that_left_again_without_a_stream_keeps_what_it_had_before_and_its_start(
    session: Session, leave: Callable[..., None]
) -> None:
    job = add_job(session, start_by=in_seconds(50), run_for=60.0)
    leave(session, job, TOLD)
    lost(session, job, [])
    session.expire_all()
    assert outputs.kept(session, [job.id]) == {job.id: TOLD}
    assert job.started_at is not None


def test_fewer_tokens_never_replace_more(session: Session) -> None:
    job = add_job(session)
    for count in (2, 5, 3):
        handed_back(session, job, tokens(count))
        session.expire_all()
    assert outputs.kept(session, [job.id]) == {job.id: tokens(5)}


def test_a_dead_job_has_what_was_kept_of_it(session: Session) -> None:
    job = add_job(session)
    handed_back(session, job, tokens(2))
    for attempt in (2, 3, 4):
        jobs.claim(session, ME, [job.id])
        lost = jobs.requeue_lost(session, [ME], {job.id: Standing(attempt, 0)})
    assert lost.dead == {job.id: 2}
    assert outputs.kept(session, [job.id]) == {job.id: tokens(2)}


@pytest.mark.parametrize(
    ("fields", "text"),
    [({}, "hi!"), ({"status": Status.FAILED, "token_ids": [], "text_offsets": [], "text": ""}, None)],
)
def test_an_end_replaces_what_was_kept(session: Session, fields: dict[str, object], text: str | None) -> None:
    job = add_job(session)
    handed_back(session, job, tokens(1))
    jobs.claim(session, ME, [job.id])
    assert jobs.finish(session, [end_of(job.id, ME, attempt=2, **fields)]) == {job.id}
    session.expire_all()
    assert session.scalar(select(JobOutput.text)) == text
