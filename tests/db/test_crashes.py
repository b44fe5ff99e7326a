"""Queue, leases and streams together, with workers that die at every hop: each job ends once and its text is whole."""

import random
import threading
from time import monotonic, time

import pytest
import redis
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from db import jobs, queue, stream, workers
from db.jobs import Claimed, Ready
from db.models import ENDED, Job, JobOutput, WebhookEvent
from db.stream import Append
from tests.db.rows import add_job, add_worker, end_of, tokens

NUM_JOBS, NUM_TOKENS, NUM_THREADS = 48, 4, 3
LONGEST_SECONDS = 60


class Died(Exception):
    """The worker was killed here."""


class FlakyWorker(threading.Thread):
    """Lives many short lives: each pops, claims, streams and ends jobs until it dies at a random hop."""

    def __init__(self, engine: Engine, client: redis.Redis, seed: int, is_done: threading.Event) -> None:
        super().__init__(name=f"flaky-{seed}", daemon=True)
        self.engine, self.client, self.random, self.is_done = engine, client, random.Random(seed), is_done

    def run(self) -> None:
        while not self.is_done.is_set():
            try:
                self._live()
            except Died:
                continue

    def _live(self) -> None:
        with Session(self.engine) as session, session.begin():
            self.worker_id = add_worker(session)
        while not self.is_done.is_set():
            popped = queue.pop(
                self.client,
                model="m",
                now=time(),
                policy="aging",
                threshold=30,
                boost=0.5,
                seats=4,
                blocks=100,
                live_workers=NUM_THREADS,
                pops=0,
            )
            self._may_die()  # the messages are gone
            with Session(self.engine) as session, session.begin():
                claimed = jobs.claim(session, self.worker_id, [message.job_id for message in popped.messages])
            for job in claimed:
                self._may_die()  # claimed, and nobody computes it
                self._compute(job)

    def _compute(self, job: Claimed) -> None:
        delivered = len(stream.open(self.client, job.id, job.attempt, self.worker_id).tokens)
        for index in range(delivered, NUM_TOKENS):
            append = Append(job.id, job.attempt, self.worker_id, index, tokens(1, first=index))
            [result] = stream.append_many(self.client, [append])
            if result.status != "ok":
                return
            self._may_die()
        text = "".join(token.text for token in tokens(NUM_TOKENS))
        ids, offsets = [token.token_id for token in tokens(NUM_TOKENS)], list(range(1, NUM_TOKENS + 1))
        end = end_of(job.id, self.worker_id, attempt=job.attempt, text=text, token_ids=ids, text_offsets=offsets)
        with Session(self.engine) as session, session.begin():
            jobs.finish(session, [end])
        self._may_die()  # the row has ended, the stream has not
        stream.end(self.client, job.id, NUM_TOKENS)

    def _may_die(self) -> None:
        if self.random.random() < 0.06:
            with Session(self.engine) as session, session.begin():
                workers.mark_lost(session, [self.worker_id])  # as the sweep finds it, a lease later
            raise Died


def sweep(engine: Engine, client: redis.Redis) -> None:
    """What the sweep does, without its margins and pages."""
    with Session(engine) as session, session.begin():
        lost = workers.lost(session, 30)
        standings = stream.standings(client, jobs.running_of(session, lost))
        ready = jobs.requeue_lost(
            session, lost, standings, read_tokens=lambda job_id: stream.fence(client, job_id)
        ).ready
    queue.push_front(client, ready)
    heads = queue.heads(client, "m")
    for tier, head in heads.items():
        with Session(engine) as session:
            queue.push_front(client, jobs.unqueued(session, "m", tier, older_than=head, limit=1000))


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_every_job_ends_once_with_a_whole_text_whatever_dies(engine: Engine, redis_client: redis.Redis) -> None:
    with Session(engine) as session, session.begin():
        added = [Ready.of(add_job(session, tier=index % 3)) for index in range(NUM_JOBS)]
    queue.push(redis_client, added)
    is_done = threading.Event()
    flaky = [FlakyWorker(engine, redis_client, seed, is_done) for seed in range(NUM_THREADS)]
    for thread in flaky:
        thread.start()
    deadline = monotonic() + LONGEST_SECONDS
    with Session(engine) as session:
        unended = select(func.count()).where(Job.status.not_in(ENDED))
        while session.scalar(unended) and monotonic() < deadline:
            sweep(engine, redis_client)
            session.rollback()
        is_done.set()
        for thread in flaky:
            thread.join()
        assert session.scalar(unended) == 0
        assert session.scalar(select(func.count()).select_from(WebhookEvent)) == NUM_JOBS
        assert session.scalar(select(func.count(WebhookEvent.job_id.distinct()))) == NUM_JOBS
        # No life computes a job and dies without a token of it, so nothing is charged, however often workers die.
        assert session.scalars(select(Job.status).distinct()).all() == ["succeeded"]
        assert session.scalar(select(func.max(Job.crashes))) == 0
        texts = list(session.scalars(select(JobOutput.text)))
        assert len(texts) == NUM_JOBS and set(texts) == {"abcd"}
        assert session.execute(select(func.max(Job.attempt))).scalar_one() > 1  # some did die
