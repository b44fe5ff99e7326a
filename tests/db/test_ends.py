"""Ends: fenced, with output, event and deliveries in one transaction."""

import json
import struct
from uuid import UUID

import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from db import jobs
from db.ends import Ending, end_locked, finished
from db.models import Job, JobOutput, Status, WebhookDelivery, WebhookEvent
from db.outputs import tokens_of
from db.stream import Token
from tests.db.rows import add_endpoint, add_job, end_of

ME, OTHER = UUID(int=11), UUID(int=12)


def running_job(session: Session, **fields: object) -> Job:
    job = add_job(session, **fields)
    jobs.claim(session, ME, [job.id])
    return job


def test_success_keeps_output_usage_and_event(session: Session) -> None:
    job = running_job(session)
    assert jobs.finish(session, [end_of(job.id, ME, num_cached_tokens=1)]) == {job.id}
    session.expire_all()
    assert (job.status, job.finish_reason, job.num_output_tokens, job.num_cached_tokens) == ("succeeded", "stop", 2, 1)
    assert job.ended_at is not None and job.error_code is None
    output = session.get_one(JobOutput, job.id)
    assert (output.text, output.token_ids, output.text_offsets, output.logprobs) == ("hi!", [7, 8], [2, 3], None)
    assert session.scalars(select(WebhookEvent.type)).one() == "job.succeeded"


def test_success_of_several_outputs_keeps_whose_each_token_is(session: Session) -> None:
    job = running_job(session, num_choices=2)
    told = [{"logprob": -1.5, "top": []}]
    end = end_of(job.id, ME, choices=[0, 1], finish_reasons=["stop", None], prompt_logprobs=told)
    jobs.finish(session, [end])
    output = session.get_one(JobOutput, job.id)
    assert (output.choices, output.finish_reasons, output.prompt_logprobs) == ([0, 1], ["stop", None], told)


def test_outputs_without_choices_and_log_probabilities_say_so_in_nulls(session: Session) -> None:
    job = running_job(session)
    jobs.finish(session, [end_of(job.id, ME)])
    columns = (JobOutput.choices, JobOutput.finish_reasons, JobOutput.logprobs, JobOutput.prompt_logprobs)
    nulls = [column.is_(None) for column in columns]
    assert session.scalars(select(JobOutput.job_id).where(*nulls)).all() == [job.id]


def test_job_of_several_outputs_that_no_worker_ends_keeps_whose_each_token_is(session: Session) -> None:
    job, one = running_job(session, num_choices=2), running_job(session)
    delivered = [Token(1, "a"), Token(2, "b", None, 1), Token(3, "c")]
    end_locked(session, [Ending(job, Status.CANCELLED, delivered), Ending(one, Status.CANCELLED, delivered[:1])])
    assert session.get_one(JobOutput, job.id).choices == [0, 1, 0]
    assert session.get_one(JobOutput, one.id).choices is None


def test_job_ends_once(session: Session) -> None:
    job = running_job(session)
    assert jobs.finish(session, [end_of(job.id, ME)]) == {job.id}
    assert jobs.finish(session, [end_of(job.id, ME)]) == set()
    assert session.scalar(select(func.count()).select_from(WebhookEvent)) == 1
    assert jobs.finish(session, []) == set()


def test_end_whose_commit_was_not_answered_is_recognised(session: Session) -> None:
    job, other = running_job(session), running_job(session)
    ends = [end_of(job.id, ME), end_of(other.id, ME)]
    jobs.finish(session, ends[:1])
    assert finished(session, ends) == {job.id}
    assert finished(session, [end_of(job.id, ME, attempt=2), end_of(job.id, OTHER)]) == set()


@pytest.mark.parametrize("wrong", [{"attempt": 2}, {"attempt": 0}, {"worker_id": OTHER}])
def test_end_of_another_attempt_or_worker_writes_nothing(session: Session, wrong: dict[str, object]) -> None:
    job = running_job(session)
    arguments = {"worker_id": ME, "attempt": 1} | wrong
    assert jobs.finish(session, [end_of(job.id, **arguments)]) == set()
    assert session.scalars(select(JobOutput)).all() == [] and session.scalars(select(WebhookEvent)).all() == []


def test_batch_of_ends_is_written_as_each_one_says(session: Session) -> None:
    good, failed, cancelled, lost = (running_job(session) for _ in range(4))
    failure = {"status": Status.FAILED, "finish_reason": None, "token_ids": [], "text_offsets": [], "text": ""}
    ends = [
        end_of(good.id, ME),
        end_of(failed.id, ME, **failure, error_code="engine_error", error_message="it broke"),
        end_of(cancelled.id, ME, status=Status.CANCELLED, finish_reason=None),
        end_of(lost.id, ME, attempt=7),
    ]
    assert jobs.finish(session, ends) == {good.id, failed.id, cancelled.id}
    session.expire_all()
    assert [job.status for job in (good, failed, cancelled, lost)] == ["succeeded", "failed", "cancelled", "running"]
    assert (failed.error_code, failed.error_message) == ("engine_error", "it broke")
    assert set(session.scalars(select(JobOutput.job_id))) == {good.id, cancelled.id}


def test_nul_that_a_model_wrote_does_not_keep_its_job_from_ending(session: Session) -> None:
    job = running_job(session)
    assert jobs.finish(session, [end_of(job.id, ME, text="a\0b", error_message="\0")]) == {job.id}
    assert session.get_one(JobOutput, job.id).text == "a\ufffdb"


def test_event_says_what_became_of_the_job_but_not_its_text(session: Session) -> None:
    job = running_job(session)
    jobs.finish(session, [end_of(job.id, ME)])
    event = session.scalars(select(WebhookEvent)).one()
    body = json.loads(event.body)
    assert body["id"] == f"evt_{event.id.hex}" and body["type"] == "job.succeeded" and body["object"] == "event"
    assert body["data"]["id"] == f"job_{job.id.hex}" and body["data"]["status"] == "succeeded"
    assert body["data"]["metadata"] == {"who": "me"}
    assert body["data"]["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "cached_tokens": 0,
    }
    assert b"hi!" not in event.body


def test_each_endpoint_that_wants_the_event_gets_a_delivery(session: Session) -> None:
    signer = add_endpoint(session)
    everything = add_endpoint(session, url="https://a.test/")
    add_endpoint(session, url="https://b.test/", event_types=["job.failed"])
    add_endpoint(session, url="https://c.test/", tenant="u")
    add_endpoint(session, url="https://d.test/", disabled_at=func.now())
    job = running_job(session, webhook_url="https://own.test/hook")
    jobs.finish(session, [end_of(job.id, ME)])
    deliveries = session.scalars(select(WebhookDelivery)).all()
    assert {(each.endpoint_id, each.url) for each in deliveries} == {
        (signer.id, "https://own.test/hook"),
        (everything.id, "https://a.test/"),
    }
    assert {each.job_id for each in deliveries} == {job.id}


def test_event_appears_in_the_moment_the_job_has_ended(engine: Engine) -> None:
    with Session(engine) as setup:
        job_id = running_job(setup).id
        setup.commit()
    with Session(engine) as writer, Session(engine) as reader:
        jobs.finish(writer, [end_of(job_id, ME)])
        assert reader.scalars(select(WebhookEvent)).all() == []
        assert reader.get_one(Job, job_id).status == "running"
        writer.rollback()
    with Session(engine) as reader:
        assert reader.get_one(Job, job_id).status == "running"
        assert reader.scalars(select(JobOutput)).all() == []


def test_an_embedding_comes_back_to_the_bit_as_32_bit_floats(session: Session) -> None:
    job = running_job(session)
    vector = [0.1, -1 / 3, 1e-30, 0.99999994]
    said = {"embedding": vector, "token_ids": [], "text_offsets": [], "text": ""}
    assert jobs.finish(session, [end_of(job.id, ME, **said)]) == {job.id}
    output = session.get_one(JobOutput, job.id)
    assert output.embedding is not None and tokens_of(output) == []
    assert struct.pack("4f", *output.embedding) == struct.pack("4f", *vector)
