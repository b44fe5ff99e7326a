"""Token streams: `stream:<job id>` in Redis, fenced by attempt and numbered by token, so that readers can resume.

One script writes them. A stream is a convenience: what it held is in Postgres once the job has ended, with the same
numbers, and a worker writes it again from memory when Redis lost it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha1
from importlib.resources import files
from typing import Any, Literal, Self
from uuid import UUID

import redis
import redis.asyncio
from redis.exceptions import NoScriptError

from db.tokens import Success, decode, encode
from db.tokens import Token as Token  # this module's callers have it from here

SCRIPT = files("db").joinpath("lua/stream.lua").read_text()
SCRIPT_SHA = sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()
RUNNING_SECONDS = 24 * 3600  # since the last append
ENDED_SECONDS = 300  # later readers are served from Postgres
WAITS = "waits"
PREFIX = "stream:"  # of the keys


class StreamStale(Exception):
    """A later attempt has the stream: this one's job was taken over."""


class StreamEnded(Exception):
    """The job has ended."""


@dataclass(frozen=True)
class Opened:
    """What a new attempt finds delivered, and continues."""

    tokens: list[Token]


@dataclass(frozen=True)
class Append:
    """Tokens `first_index`, `first_index + 1`, ... of a job."""

    job_id: UUID
    attempt: int
    worker_id: UUID
    first_index: int
    tokens: Sequence[Token]

    @cached_property
    def payload(self) -> str:
        """The tokens as the entry has them."""
        return encode(self.tokens)


@dataclass(frozen=True)
class Appended:
    """What became of an append; the stream has `num_tokens` now.

    stale: the pen is another's, drop the job. behind: send again from `num_tokens`. missing: there is no such stream;
    when the row is still ours, write all of it again, from index 0.
    """

    status: Literal["ok", "stale", "behind", "missing"]
    num_tokens: int


@dataclass(frozen=True)
class News:
    """What a stream's channel says of it: that it ended, or how far it is, with the tokens that brought it there."""

    num_tokens: int
    payload: bytes = b""  # of the entry that is new; an opening has none
    is_end: bool = False

    @classmethod
    def of(cls, message: bytes) -> Self:
        """What was published."""
        if message == b"end":
            return cls(0, is_end=True)
        num_tokens, _, payload = message.partition(b" ")
        return cls(int(num_tokens), payload)


@dataclass(frozen=True)
class Standing:
    """How far a stream is: the attempt that opened it last, whether that one still waits to begin, and the tokens."""

    attempt: int
    num_tokens: int
    is_waiting: bool = False


def key_of(job_id: UUID) -> str:
    """The job's stream."""
    return f"{PREFIX}{job_id.hex}"


def channel_of(job_id: UUID) -> str:
    """Where its growth and end are announced."""
    return key_of(job_id)


def open(client: redis.Redis, job_id: UUID, attempt: int, worker_id: UUID, *, waits: bool = False) -> Opened:
    """Take the pen for a new attempt and return what was delivered; raises StreamStale or StreamEnded.

    One that `waits` is opened again before it is computed: the loss of its worker is then no crash of its own.
    """
    mark = WAITS if waits else ""
    status, _, payloads = _run(client, job_id, "open", attempt=attempt, worker=worker_id.hex, tokens=mark)
    if status == "stale":
        raise StreamStale(f"attempt {attempt} of job {job_id} was overtaken")
    if status == "ended":
        raise StreamEnded(f"job {job_id} has ended")
    return Opened(tokens_in(payloads))


def open_many(
    client: redis.Redis, attempts: Mapping[UUID, int], worker_id: UUID, *, waits: bool = False
) -> dict[UUID, Opened]:
    """Open many streams in one round trip, as `open` does; those that are closed to us are left out."""
    mark = WAITS if waits else ""
    calls = [
        [key_of(job_id), *_arguments("open", attempt, worker_id.hex, tokens=mark)]
        for job_id, attempt in attempts.items()
    ]
    answers = [_answer(reply) for reply in _run_many(client, calls)]
    return {
        job_id: Opened(tokens_in(payloads))
        for job_id, (status, _, payloads) in zip(attempts, answers, strict=True)
        if status == "ok"
    }


def append_many(client: redis.Redis, appends: Sequence[Append]) -> list[Appended]:
    """Append to many streams in one round trip, each by its own fence; one answer for each, in order."""
    answers = _run_many(client, [_append_arguments(append) for append in appends])
    return [Appended(answer[0].decode(), answer[1]) for answer in answers]


def end(client: redis.Redis, job_id: UUID, num_tokens: int) -> None:
    """Close the stream of a job whose row has ended, and tell its readers."""
    _run(client, job_id, "end", first=num_tokens, ttl=ENDED_SECONDS)


def end_many(
    client: redis.Redis, num_tokens: Mapping[UUID, int], successes: Mapping[UUID, Success] | None = None
) -> None:
    """The same for many jobs, in one round trip. Readers of `successes` need not look at the row to tell them."""
    said = {job_id: success.encode() for job_id, success in (successes or {}).items()}
    calls = [
        [key_of(job_id), *_arguments("end", first=count, tokens=said.get(job_id, ""), ttl=ENDED_SECONDS)]
        for job_id, count in num_tokens.items()
    ]
    _run_many(client, calls)


async def end_async(client: redis.asyncio.Redis, job_id: UUID, num_tokens: int) -> None:
    """The same for the API's event loop."""
    await _run_async(client, job_id, "end", first=num_tokens, ttl=ENDED_SECONDS)


def fence(client: redis.Redis, job_id: UUID) -> list[Token]:
    """Take the pen from whoever has it and return what was delivered: nothing is added before the row ends with it."""
    return tokens_in(_run(client, job_id, "fence")[2])


async def fence_async(client: redis.asyncio.Redis, job_id: UUID) -> list[Token] | None:
    """The same for the API's event loop. None when there is no stream: its writer may still bring all of it."""
    status, _, payloads = await _run_async(client, job_id, "fence")
    return None if status == "missing" else tokens_in(payloads)


def standings(client: redis.Redis, job_ids: Iterable[UUID]) -> dict[UUID, Standing]:
    """How far each job's stream is; jobs without one are left out."""
    ordered = list(job_ids)
    pipeline = client.pipeline(transaction=False)
    for job_id in ordered:
        pipeline.xrevrange(key_of(job_id), count=1)
    return {job_id: _standing(last[0][1]) for job_id, last in zip(ordered, pipeline.execute(), strict=True) if last}


def _standing(last: dict[bytes, bytes]) -> Standing:
    is_waiting = last[b"k"] == b"open" and last[b"p"] == WAITS.encode()
    return Standing(int(last[b"a"]), int(last[b"n"]), is_waiting)


def _append_arguments(append: Append) -> list[Any]:
    count = len(append.tokens)
    return [
        key_of(append.job_id),
        *_arguments("append", append.attempt, append.worker_id.hex, append.first_index, count, append.payload),
    ]


def _arguments(
    what: str,
    attempt: int = 0,
    worker: str = "",
    first: int = 0,
    count: int = 0,
    tokens: str = "",
    ttl: int = RUNNING_SECONDS,
) -> list[Any]:
    return [what, attempt, worker, first, count, tokens, ttl]


def _run(client: redis.Redis, job_id: UUID, what: str, **arguments: Any) -> tuple[str, int, list[bytes]]:
    reply = client.register_script(SCRIPT)(keys=[key_of(job_id)], args=_arguments(what, **arguments))
    return _answer(reply)


async def _run_async(
    client: redis.asyncio.Redis, job_id: UUID, what: str, **arguments: Any
) -> tuple[str, int, list[bytes]]:
    reply = await client.register_script(SCRIPT)(keys=[key_of(job_id)], args=_arguments(what, **arguments))
    return _answer(reply)


def _answer(reply: list[Any]) -> tuple[str, int, list[bytes]]:
    return reply[0].decode(), reply[1], reply[2] if len(reply) > 2 else []


def _run_many(client: redis.Redis, calls: list[list[Any]]) -> list[Any]:
    """The script's answer to each call, all of them in one round trip."""
    if not calls:
        return []
    answers = _evaluate_all(client, calls)
    lost = [index for index, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
    if lost:  # the server was restarted
        client.script_load(SCRIPT)
        for index, answer in zip(lost, _evaluate_all(client, [calls[index] for index in lost]), strict=True):
            answers[index] = answer
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


def _evaluate_all(client: redis.Redis, calls: list[list[Any]]) -> list[Any]:
    pipeline = client.pipeline(transaction=False)
    for call in calls:
        pipeline.evalsha(SCRIPT_SHA, 1, *call)
    answers: list[Any] = pipeline.execute(raise_on_error=False)
    return answers


def tokens_in(payloads: Iterable[bytes]) -> list[Token]:
    """The tokens of entries, of what each has as `p`."""
    return [token for payload in payloads for token in decode(json.loads(payload))]
