"""A worker driven by hand: it claims, streams and ends jobs through `db` as an engine worker does, step by step."""

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import redis
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from db import jobs, stream, workers
from db.ids import parse_id
from db.jobs import Claimed, End
from db.models import Status, Worker
from db.stream import Append, Token
from db.tokens import Success
from tests.db.rows import make_worker


def make_card(tokenizer_path: str, **changes: object) -> Worker:
    """A worker's row for a model "tiny": 64 tokens long, 8 blocks of 16."""
    return make_worker(**{"model": "tiny", "tokenizer_path": tokenizer_path, "num_blocks": 8} | changes)


@dataclass
class HandWorker:
    """Holds one model. Job ids are given as clients spell them."""

    engine: Engine
    redis: redis.Redis
    card: Worker
    claimed: dict[UUID, Claimed] = field(default_factory=dict)
    delivered: dict[UUID, list[Token]] = field(default_factory=dict)

    def register(self) -> None:
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            workers.register(session, self.card)

    def start(self, public_id: str) -> Claimed:
        """Claim the job and open its stream."""
        job_id = uuid_of(public_id)
        with Session(self.engine) as session, session.begin():
            (claimed,) = jobs.claim(session, self.card.id, [job_id])
        opened = stream.open(self.redis, job_id, claimed.attempt, self.card.id)
        self.claimed[job_id], self.delivered[job_id] = claimed, list(opened.tokens)
        return claimed

    def say(self, public_id: str, *texts: str, logprobs: bool | dict[str, Any] = False) -> None:
        """Stream one token per text; ids count up from 10. `logprobs` may say what to report of each.

        Of a job with several outputs they are told in turn, as if none ended before the others.
        """
        job_id = uuid_of(public_id)
        done, n = self.delivered[job_id], self.claimed[job_id].sampling.n
        detail = {"logprob": -0.5, "top": [[10, -0.5]]} if logprobs is True else logprobs or None
        places = range(len(done), len(done) + len(texts))
        tokens = [Token(10 + place, text, detail, place % n) for place, text in zip(places, texts, strict=True)]
        append = Append(job_id, self.claimed[job_id].attempt, self.card.id, len(done), tokens)
        (appended,) = stream.append_many(self.redis, [append])
        assert appended.status == "ok", appended
        done += tokens

    def hand_back(self, public_id: str) -> None:
        """Release the job to the queue, as a worker that drains does with one that has written nothing."""
        job_id = uuid_of(public_id)
        with Session(self.engine) as session, session.begin():
            jobs.release(session, self.card.id, [(job_id, self.claimed[job_id].attempt)])

    def end(self, public_id: str, status: Status = Status.SUCCEEDED, *, reason: str = "stop", **said: Any) -> None:
        """Commit the end, then close the stream."""
        self.commit_end(public_id, status, reason=reason, **said)
        self.tell_end(public_id, is_success=status == Status.SUCCEEDED, reason=reason)

    def tell_end(self, public_id: str, *, is_success: bool = True, reason: str = "stop") -> None:
        """Close the stream of a job whose end is committed."""
        job_id = uuid_of(public_id)
        success = Success([reason] * self.claimed[job_id].sampling.n, 0)
        stream.end_many(self.redis, {job_id: len(self.delivered[job_id])}, {job_id: success} if is_success else {})

    def commit_end(
        self,
        public_id: str,
        status: Status = Status.SUCCEEDED,
        *,
        reason: str = "stop",
        prompt_logprobs: list[Any] | None = None,
        embedding: list[float] | None = None,
        **error: str,
    ) -> None:
        """Commit the end and die before the stream hears of it."""
        job_id = uuid_of(public_id)
        tokens, offsets, num_characters = self.delivered[job_id], [], 0
        for token in tokens:
            num_characters += len(token.text)
            offsets.append(num_characters)
        n = self.claimed[job_id].sampling.n
        given = reason if status == Status.SUCCEEDED else None
        end = End(
            job_id=job_id,
            attempt=self.claimed[job_id].attempt,
            worker_id=self.card.id,
            status=status,
            finish_reason=given,
            text="".join(token.text for token in tokens),
            token_ids=[token.token_id for token in tokens],
            text_offsets=offsets,
            logprobs=[token.logprobs for token in tokens] if tokens and tokens[0].logprobs else None,
            num_cached_tokens=0,
            choices=[token.choice for token in tokens] if n > 1 else None,
            finish_reasons=[given] * n if n > 1 else None,
            prompt_logprobs=prompt_logprobs,
            embedding=embedding,
            **error,
        )
        with Session(self.engine) as session, session.begin():
            assert jobs.finish(session, [end]) == {job_id}

    def run(self, public_id: str, *texts: str) -> None:
        """The whole job."""
        self.start(public_id)
        self.say(public_id, *texts)
        self.end(public_id)

    def forget_stream(self, public_id: str) -> None:
        """What the expiry does five minutes after the end."""
        self.redis.delete(stream.key_of(uuid_of(public_id)))


def uuid_of(public_id: str) -> UUID:
    """The id of a job or a completion."""
    job_id = parse_id("job_", public_id) or parse_id("cmpl-", public_id)
    assert job_id is not None, public_id
    return job_id
