"""What a token stream has from a token on, as readers ask for it. What is written, and how, is in `db/stream.py`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

import redis.asyncio

from db.stream import News, key_of, tokens_in
from db.tokens import Success, Token

Entries = list[tuple[bytes, dict[bytes, bytes]]]
Command = tuple[Any, ...]


@dataclass(frozen=True)
class StreamRead:
    """A part of a stream, from an index on. One that `is_ended` may lack some of its `num_tokens`: the row has all."""

    tokens: list[Token]
    num_tokens: int
    is_ended: bool
    exists: bool
    success: Success | None = None  # of an end that tells it; other ends are told by the row


def read_news(news: News, first_index: int) -> StreamRead | None:
    """The stream from `first_index` on, as far as news tell it; None where they do not follow on what came before."""
    if not news.payload or news.num_tokens <= first_index:
        return None
    tokens = tokens_in([news.payload])
    num_known = first_index - (news.num_tokens - len(tokens))
    if num_known < 0:
        return None
    return StreamRead(tokens[num_known:], news.num_tokens, is_ended=False, exists=True)


async def read(client: redis.asyncio.Redis, job_id: UUID, first_index: int, *, limit: int | None = None) -> StreamRead:
    """The tokens from `first_index` on, of at most `limit` entries, and where the stream stands."""
    (found,) = await read_many(client, [(job_id, first_index)], limit=limit)
    return found


async def read_many(
    client: redis.asyncio.Redis, positions: Sequence[tuple[UUID, int]], *, limit: int | None = None
) -> list[StreamRead]:
    """The same for many positions (job, first index), in their order; equal ones are read once.

    Where a stream stands may be a moment later than its tokens: what came between was announced, and is read next.
    """
    wanted = list(dict.fromkeys(positions))
    pages = await _entries(client, [_page(job_id, index, limit) for job_id, index in wanted])
    entries = dict(zip(wanted, pages, strict=True))
    # A page with less than it may hold ends where the stream does; of the others that is asked apart.
    lasts = {position: page[-1:] for position, page in entries.items() if page and len(page) != limit}
    unknown = [position for position in wanted if position not in lasts]
    if unknown:
        lasts |= dict(zip(unknown, await _entries(client, [_last(job_id) for job_id, _ in unknown]), strict=True))
    found = {position: _stream_read(position[1], entries[position], lasts[position]) for position in wanted}
    return [found[position] for position in positions]


def _page(job_id: UUID, first_index: int, limit: int | None) -> Command:
    bound = () if limit is None else ("COUNT", limit)
    return "XRANGE", key_of(job_id), f"{first_index + 1}-0", "+", *bound


def _last(job_id: UUID) -> Command:
    return "XREVRANGE", key_of(job_id), "+", "-", "COUNT", 1


async def _entries(client: redis.asyncio.Redis, commands: Iterable[Command]) -> list[Entries]:
    """What each command finds, in one round trip."""
    pipeline = client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    return cast(list[Entries], await pipeline.execute())


def _stream_read(first_index: int, entries: Entries, last: Entries) -> StreamRead:
    if not last:
        return StreamRead([], 0, is_ended=False, exists=False)
    fields = last[0][1]
    tokens: list[Token] = []
    for _, entry in entries:
        added = tokens_in([entry[b"p"]] if entry[b"k"] == b"tokens" else [])
        num_before = int(entry[b"n"]) - len(added)
        tokens += added[max(0, first_index - num_before) :]
    num_tokens, is_ended = int(fields[b"n"]), fields[b"k"] == b"end"
    success = Success.decode(fields[b"p"]) if is_ended and fields[b"p"] else None
    # Entries that got in beyond the end that the row says are not the job's.
    return StreamRead(tokens[: max(0, num_tokens - first_index)], num_tokens, is_ended, exists=True, success=success)
