"""The streamer against a real Valkey: order, fences and what a lost server means."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import redis

from db import stream
from db.models import Status
from db.stream import Token
from tests.workers.held_jobs import WORKER_ID, make_held
from tests.workers.worker_process import wait_until
from workers import journal, streamer
from workers.held import HeldJob, HeldJobs
from workers.journal import Journal
from workers.streamer import (
    LONGEST_APPEND,
    MOST_PAUSE_SECONDS,
    NUM_PROMPT,
    TELL_SECONDS,
    TELL_SHARE,
    Streamer,
    pause_seconds,
)


@dataclass
class World:
    """A running streamer, who it told of stale jobs, and what it is told of rows."""

    client: redis.Redis
    journals: Path
    stale: list[HeldJob] = field(default_factory=list)
    is_ours: bool | None = True

    def __post_init__(self) -> None:
        self.streamer = Streamer(
            self.client,
            Journal(self.journals, HeldJobs()),
            on_stale=self.stale.append,
            is_ours=lambda held: self.is_ours,
            on_failure=raise_it,
        )
        self.streamer.start()

    def stream(self, held: HeldJob) -> None:
        """Mark it, and wait until the streamer is done with it."""
        self.streamer.mark([held])
        assert self.streamer.flush(timeout_seconds=30)

    def texts(self, held: HeldJob) -> list[str]:
        return [token.text for token in stream.fence(self.client, held.job_id)]


def raise_it(error: BaseException) -> None:
    raise error


@pytest.fixture
def world(redis_client: redis.Redis, tmp_path: Path) -> Iterator[World]:
    world = World(redis_client, tmp_path)
    yield world
    world.streamer.stop()
    world.streamer.join()


def opened(client: redis.Redis, **changes: object) -> HeldJob:
    held = make_held(texts=("a", "b"), **changes)
    stream.open(client, held.job_id, held.claimed.attempt, WORKER_ID)
    return held


def test_tokens_are_appended_once_however_often_a_job_is_marked(world: World) -> None:
    held = opened(world.client)
    world.stream(held)
    world.stream(held)
    held.tokens.append(Token(12, "c"))
    world.stream(held)
    assert held.num_streamed == 3
    assert world.texts(held) == ["a", "b", "c"]


def test_the_end_comes_after_the_last_token_and_only_once_the_row_has_ended(world: World) -> None:
    held = opened(world.client)
    world.stream(held)
    assert stream_kind(world, held) == b"tokens"
    held.is_committed = True
    held.tokens.append(Token(12, "c"))
    world.stream(held)
    assert stream_kind(world, held) == b"end"
    assert stream.standings(world.client, [held.job_id])[held.job_id].num_tokens == 3


def test_a_job_that_another_attempt_has_taken_over_is_reported_and_adds_nothing(world: World) -> None:
    held = opened(world.client)
    stream.open(world.client, held.job_id, held.claimed.attempt + 1, WORKER_ID)
    world.stream(held)
    assert world.stale == [held]
    assert world.texts(held) == []


def test_a_stream_that_was_fenced_before_the_row_ended_is_ended_all_the_same(world: World) -> None:
    held = opened(world.client)
    world.stream(held)
    stream.fence(world.client, held.job_id)  # a cancel, which then finds the row ended
    held.tokens.append(Token(12, "c"))
    held.is_committed = True
    world.stream(held)
    assert (stream_kind(world, held), world.stale) == (b"end", [])
    assert stream.standings(world.client, [held.job_id])[held.job_id].num_tokens == 3


def test_a_stream_that_redis_lost_is_written_again_from_the_first_token(world: World) -> None:
    held = opened(world.client)
    world.stream(held)
    world.client.flushall()
    held.tokens.append(Token(12, "c"))
    world.stream(held)
    assert world.texts(held) == ["a", "b", "c"]


def test_much_that_is_due_at_once_is_written_in_entries_of_bounded_length(world: World) -> None:
    held = opened(world.client)
    held.tokens += [Token(12, "c")] * (2 * LONGEST_APPEND)
    held.is_committed = True
    world.stream(held)
    counts = [int(fields[b"n"]) for _, fields in world.client.xrange(stream.key_of(held.job_id))]
    assert counts == [0, LONGEST_APPEND, 2 * LONGEST_APPEND, 2 * LONGEST_APPEND + 2, 2 * LONGEST_APPEND + 2]


def test_a_lost_stream_of_a_job_that_is_no_longer_ours_is_left_alone(world: World) -> None:
    held = opened(world.client)
    world.stream(held)
    world.client.flushall()
    world.is_ours = False
    held.tokens.append(Token(12, "c"))
    world.stream(held)
    assert world.stale == [held]
    assert stream.standings(world.client, [held.job_id]) == {}


def test_a_writer_that_is_behind_goes_on_from_where_the_stream_is(world: World) -> None:
    held = opened(world.client)
    world.stream(held)
    held.num_streamed = 1  # as if the answer to the append had been lost
    held.tokens.append(Token(12, "c"))
    world.stream(held)
    assert world.texts(held) == ["a", "b", "c"]


def test_of_many_streams_first_tokens_and_ends_are_told_at_once_and_the_others_together_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamer, "pause_seconds", lambda *_: threading.TIMEOUT_MAX)
    first, ended, between = [opened(world.client) for _ in range(3)]
    for held in (ended, between):
        world.stream(held)
        held.tokens.append(Token(12, "c"))
    ended.end = ended.ended_as(Status.SUCCEEDED)
    world.streamer.mark([between, first, ended])
    wait_until(lambda: first.num_streamed == 2 and ended.num_streamed == 3, "what is urgent to be told")
    assert between.num_streamed == 2
    assert world.streamer.flush(timeout_seconds=30)
    assert between.num_streamed == 3


def test_the_pause_between_a_streams_entries_bounds_what_all_of_them_take_of_the_machine() -> None:
    assert pause_seconds(NUM_PROMPT, 1) == 0
    for num_streams, num_processors in ((NUM_PROMPT + 1, 2), (24, 2), (64, 16)):
        busy = (num_streams - NUM_PROMPT) * TELL_SECONDS / pause_seconds(num_streams, num_processors)
        assert busy == pytest.approx(TELL_SHARE * num_processors)
    assert pause_seconds(10_000, 2) == MOST_PAUSE_SECONDS


def test_a_dropped_job_writes_nothing_more(world: World) -> None:
    held = opened(world.client)
    held.is_dropped = True
    world.stream(held)
    assert world.texts(held) == []


def test_tokens_are_in_the_journal_before_redis_has_them(tmp_path: Path) -> None:
    world = World(redis.Redis(port=1), tmp_path)  # nobody listens there
    held = make_held(texts=("a", "b"))
    world.streamer.mark([held])
    wait_until(lambda: held.num_journaled, "a token to be journaled")
    world.streamer.stop()
    world.streamer.join()
    assert held.num_streamed == 0
    assert journal.read(tmp_path, WORKER_ID) == {(held.job_id, 1): held.tokens}


def test_a_journal_that_cannot_be_written_holds_up_no_token(redis_client: redis.Redis, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    world = World(redis_client, tmp_path / "file" / "journal")
    held = opened(world.client)
    world.stream(held)
    world.streamer.stop()
    world.streamer.join()
    assert world.texts(held) == ["a", "b"]


def stream_kind(world: World, held: HeldJob) -> bytes:
    [(_, fields)] = world.client.xrevrange(stream.key_of(held.job_id), count=1)
    kind: bytes = fields[b"k"]
    return kind
