"""A worker's journal: what is in it can be read whatever happened to it, and what the disk refuses stops nobody."""

import logging
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest

import workers.journal
from db.stream import Append, Token
from tests.workers.held_jobs import WORKER_ID, make_held
from workers import journal
from workers.held import HeldJob, HeldJobs
from workers.journal import Journal


class World:
    """A journal, and the jobs that its worker holds."""

    def __init__(self, directory: Path, *, rewrite_bytes: int = 10**6) -> None:
        self.directory = directory
        self.held_jobs = HeldJobs()
        self.journal = Journal(directory, self.held_jobs, rewrite_bytes=rewrite_bytes)

    @property
    def path(self) -> Path:
        return self.directory / WORKER_ID.hex

    def hold(self, *texts: str, **changes: object) -> HeldJob:
        held = make_held(texts=texts, **changes)
        self.held_jobs.add(held)
        return held

    def write(self, *jobs: HeldJob, first: int | None = None) -> None:
        """Note all that the jobs have, from their token `first` on or from what was appended before."""
        starts = {held: held.num_streamed if first is None else first for held in jobs}
        self.journal.write({held: append_of(held, start) for held, start in starts.items()})
        for held in jobs:
            held.num_streamed = len(held.tokens)

    def read(self, held: HeldJob) -> list[Token] | None:
        return journal.read(self.directory, held.worker_id).get((held.job_id, held.claimed.attempt))


def append_of(held: HeldJob, first: int) -> Append:
    return Append(held.job_id, held.claimed.attempt, held.worker_id, first, held.tokens[first:])


def say(held: HeldJob, *texts: str) -> None:
    held.tokens += [Token(10 + len(held.tokens) + i, text) for i, text in enumerate(texts)]


@contextmanager
def disk_of(num_bytes: int) -> Iterator[None]:
    """No file of this process can grow beyond so many bytes meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "run" / "journal")
    yield world
    world.journal.close()


def test_tokens_are_read_as_they_were_written(world: World) -> None:
    told = [Token(7, 'ö\n"', {"logprob": -1.0, "top": [[7, -1.0]]}), Token(8, "", None, 1), Token(9, "x\u2028\ufffd")]
    first, second = world.hold(), world.hold(attempt=3)
    first.tokens += told
    say(second, "a")
    world.write(first, second)
    say(second, "b", "c")
    world.write(second)
    assert (world.read(first), world.read(second)) == (told, second.tokens)


def test_a_round_is_one_write(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    monkeypatch.setattr(workers.journal, "_write_all", lambda file, data: writes.append(data))
    world.write(world.hold("a"), world.hold("b"), world.hold("c"))
    assert len(writes) == 1


def test_a_torn_last_line_is_left_out(world: World) -> None:
    held = world.hold("a", "b")
    world.write(held)
    say(held, "c")
    world.write(held)
    with world.path.open("rb+") as file:
        file.truncate(world.path.stat().st_size - 4)
    assert world.read(held) == held.tokens[:2]


def test_what_is_written_after_a_torn_line_is_whole(world: World) -> None:
    held = world.hold("a")
    world.write(held)
    world.journal.close()
    with world.path.open("ab") as file:
        file.write(b'["torn",1,')
    say(held, "b")
    world.write(held)
    assert world.read(held) == held.tokens


def test_repeats_are_harmless(world: World) -> None:
    held = world.hold("a", "b", "c")
    world.write(held)
    lines = world.path.read_bytes()
    say(held, "d")
    world.write(held, first=1)
    with world.path.open("ab") as file:
        file.write(lines)
    assert world.read(held) == held.tokens


def test_an_append_that_is_tried_again_is_not_written_again(world: World) -> None:
    held = world.hold("a", "b")
    world.write(held)
    size = world.path.stat().st_size
    world.write(held, first=0)
    world.write(held, first=1)
    assert world.path.stat().st_size == size


def test_a_gap_ends_a_jobs_tokens(world: World) -> None:
    held, other = world.hold("a"), world.hold("x")
    world.write(held, other)
    say(held, "b")
    held.num_journaled = 2  # as if that had been written
    say(held, "c")
    held.num_streamed = 2
    say(other, "y")
    world.write(held, other)
    assert (world.read(held), world.read(other)) == (held.tokens[:1], other.tokens)


def test_what_earlier_attempts_delivered_comes_with_the_first_append(world: World) -> None:
    held = world.hold("a", "b", attempt=2)
    held.num_streamed = 2  # found in the stream
    say(held, "c")
    world.write(held)
    assert world.read(held) == held.tokens


def test_a_long_file_begins_again_with_the_jobs_that_are_still_held(tmp_path: Path) -> None:
    world = World(tmp_path, rewrite_bytes=2000)
    long = world.hold("a")
    for number in range(200):
        short = world.hold("x" * 20)
        say(long, *(["y"] if number % 10 == 0 else []))
        world.write(long, short)
        world.held_jobs.discard(short)
        assert world.path.stat().st_size < 4000, "twice what the long one has, and a little"
    assert (len(long.tokens), world.read(long)) == (21, long.tokens)
    assert len(journal.read(tmp_path, WORKER_ID)) < 50, "those that ended have gone"
    assert [path.name for path in tmp_path.iterdir()] == [WORKER_ID.hex]


def test_a_file_of_held_jobs_alone_begins_again_only_when_it_has_doubled(tmp_path: Path) -> None:
    world = World(tmp_path, rewrite_bytes=100)
    held = world.hold("x" * 1000)
    files = []
    for _ in range(200):
        say(held, "y")
        world.write(held)
        files.append(world.path.open())  # open, so that no other gets its number
    assert 2 <= len({os.fstat(file.fileno()).st_ino for file in files}) <= 8
    for file in files:
        file.close()
    assert world.read(held) == held.tokens


def test_a_full_disk_is_logged_once_and_what_it_refused_is_written_when_there_is_room(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workers.journal, "RETRY_SECONDS", 0.0)
    held = world.hold("a")
    world.write(held)
    room = world.path.stat().st_size + 20
    with disk_of(room):
        for text in ("b", "c", "d"):
            say(held, text)
            world.write(held)
    assert world.path.stat().st_size == room, "a line is torn"
    assert world.read(held) == held.tokens[:1]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    say(held, "e")
    world.write(held)
    assert world.read(held) == held.tokens


def test_a_file_that_cannot_begin_again_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers.journal, "RETRY_SECONDS", 0.0)
    world = World(tmp_path, rewrite_bytes=10)
    held = world.hold("x" * 100)
    world.write(held)
    say(held, "b")
    with disk_of(50):
        world.write(held)
    assert world.read(held) == held.tokens[:1]
    assert [path.name for path in tmp_path.iterdir()] == [WORKER_ID.hex]
    world.write(held)
    assert world.read(held) == held.tokens


def test_a_disk_that_refused_is_left_alone_for_a_while(world: World) -> None:
    held = world.hold("a")
    with disk_of(0):
        world.write(held)
    world.write(held)
    assert world.path.stat().st_size == 0


def test_a_directory_that_cannot_be_made_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    world = World(tmp_path / "file" / "run" / "journal")
    held = world.hold("a")
    world.write(held)
    assert world.read(held) is None
    assert journal.writers(world.directory) == set()


def test_only_its_owner_may_read_a_journal(world: World) -> None:
    world.write(world.hold("a"))
    assert world.directory.stat().st_mode & 0o777 == 0o700
    assert world.path.stat().st_mode & 0o777 == 0o600


def test_a_worker_that_lost_its_lease_goes_on_in_another_file(world: World) -> None:
    before, after = world.hold("a"), world.hold("b")
    after.worker_id = UUID(int=8)
    world.write(before)
    world.write(before, after)
    say(after, "c")
    world.write(after)
    assert (world.read(before), world.read(after)) == (before.tokens, after.tokens)
    assert journal.writers(world.directory) == {WORKER_ID, UUID(int=8)}


def test_files_that_are_removed_are_those_of_the_workers(world: World) -> None:
    world.write(world.hold("a"))
    world.path.with_suffix(journal.NEW).touch()
    (world.directory / "note").touch()
    journal.remove(world.directory, {WORKER_ID, UUID(int=8)})
    assert [path.name for path in world.directory.iterdir()] == ["note"]
    assert journal.writers(world.directory) == set()
