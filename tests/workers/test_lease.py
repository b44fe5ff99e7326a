"""The lease against a real PostgreSQL, round by round: what it renews, hands back and drops."""

from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from uuid import UUID

import pytest
from sqlalchemy import Engine, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from db.models import Job, Status, Worker
from db.queue import Ready
from db.settings import Settings
from tests.workers.held_jobs import insert_running, make_held, row_of
from workers.held import HeldJob, HeldJobs, Outcome
from workers.lease import EngineHung, Lease
from workers.loading import Card

CARD = Card(
    model="m",
    tokenizer_path=Path("/nowhere/tokenizer.json"),
    chat_template=None,
    max_model_len=64,
    max_num_seqs=4,
    block_size=16,
    num_blocks=64,
    vocab_size=512,
    bos_token=None,
    eos_token=None,
    dtype="float32",
)


@dataclass
class Loop:
    """Stands in for the engine loop: remembers what it was told to stop."""

    model: None = None  # not loaded yet
    interrupted: list[tuple[HeldJob, Status | None]] = field(default_factory=list)
    stuck: float = 0.0
    longest_step_seconds: float = 0.0

    def interrupt(self, held: HeldJob, status: Status | None) -> None:
        self.interrupted.append((held, status))

    def seconds_stuck(self) -> float:
        return self.stuck


@dataclass
class World:
    """A lease whose rounds the test makes itself."""

    engine: Engine
    settings: Settings
    raises: type[Exception] | None = None  # by the first round
    loop: Loop = field(default_factory=Loop)
    held_jobs: HeldJobs = field(default_factory=HeldJobs)
    settled: list[tuple[HeldJob, Outcome]] = field(default_factory=list)
    given_back: list[Ready] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lease = Lease(
            self.settings,
            self.engine,
            name="engine@here",
            held_jobs=self.held_jobs,
            loop=self.loop,  # type: ignore[arg-type]
            settle=lambda held, outcome: self.settled.append((held, outcome)),
            give_back=self.given_back.extend,
            free_predecessors=lambda: 0,
            on_renewed=lambda: None,
            on_failure=self.failures.append,
        )
        self.lease.announce(CARD)
        self.lease.set_status("ready")
        with pytest.raises(self.raises) if self.raises is not None else nullcontext():
            self.lease.round()

    def claim(self, *, is_held: bool = True, has_row: bool = True, **changes: object) -> HeldJob:
        held = make_held()
        held.worker_id = self.lease.worker_id
        if has_row:
            insert_running(self.engine, held, **changes)
        if is_held:
            self.held_jobs.add(held)
        return held

    def row(self, worker_id: UUID | None = None) -> Worker:
        with Session(self.engine) as session:
            return session.get_one(Worker, worker_id or self.lease.worker_id)


@pytest.fixture
def world(engine: Engine, settings: Settings) -> World:
    return World(engine, settings.model_copy(update={"lease_seconds": 6.0, "renew_seconds": 0.001}))


def test_a_worker_registers_with_its_models_card(world: World) -> None:
    row = world.row()
    assert (row.status, row.model, row.num_blocks) == ("ready", "m", 64)
    assert world.lease.is_fresh()
    assert world.lease.num_live == 1


def test_every_round_renews_and_says_how_the_worker_is(world: World) -> None:
    before = world.row().renewed_at
    world.lease.set_status("draining")
    world.lease.round()
    row = world.row()
    assert (row.status, row.renewed_at > before) == ("draining", True)


def test_a_stuck_engine_is_not_renewed(world: World) -> None:
    before = world.row().renewed_at
    world.loop.stuck = 6.1
    world.lease.round()
    assert (world.row().renewed_at, world.failures) == (before, [])
    world.loop.stuck = 5.9
    world.lease.round()
    assert world.row().renewed_at > before


def test_a_machine_whose_steps_are_long_is_not_taken_for_stuck(world: World) -> None:
    before = world.row().renewed_at
    world.loop.longest_step_seconds, world.loop.stuck = 10.0, 29.0
    world.lease.round()
    assert world.row().renewed_at > before


def test_an_engine_that_stood_still_with_its_whole_process_is_not_taken_for_hung(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = monotonic()
    monkeypatch.setattr("workers.lease.monotonic", lambda: clock)

    def freeze(timeout: float) -> None:
        nonlocal clock
        clock += timeout + 60

    monkeypatch.setattr(world.lease._wake, "wait", freeze)
    world.loop.stuck = 60.0
    world.lease._pause()
    world.lease.round()
    assert world.failures == []
    clock += 12.1  # two leases, of which the engine has made no use
    world.loop.stuck = 72.1
    world.lease.round()
    [failure] = world.failures
    assert isinstance(failure, EngineHung)


def test_an_engine_that_hangs_ends_its_process(world: World) -> None:
    world.loop.stuck = 12.1  # two leases
    world.lease.round()
    [failure] = world.failures
    assert isinstance(failure, EngineHung)
    assert "12 s" in str(failure)


def test_a_registration_whose_answer_was_lost_counts(
    engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Session.commit

    def commit_and_lose_the_answer(session: Session) -> None:
        commit(session)
        raise OperationalError("COMMIT", {}, Exception("server closed the connection unexpectedly"))

    with monkeypatch.context() as patch:
        patch.setattr(Session, "commit", commit_and_lose_the_answer)
        world = World(engine, settings, raises=OperationalError)
    world.lease.round()
    assert world.lease.is_fresh()
    assert world.row().status == "ready"


def test_the_time_is_postgress_however_wrong_our_clock_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.lease.time", lambda: 1000.0)
    world.lease.round()
    assert world.lease.now() == pytest.approx(world.row().renewed_at.timestamp(), abs=1e-3)


def test_held_jobs_with_their_rows_are_left_alone(world: World) -> None:
    held = world.claim()
    for _ in range(4):
        world.lease.round()
    assert row_of(world.engine, held).status == "running"
    assert (world.loop.interrupted, world.settled, world.given_back) == ([], [], [])


def test_a_running_row_that_nobody_holds_is_handed_back_after_two_rounds(world: World) -> None:
    held = world.claim(is_held=False)
    world.lease.round()
    world.lease.round()
    assert row_of(world.engine, held).status == "running"
    world.lease.round()
    row = row_of(world.engine, held)
    assert (row.status, row.crashes) == ("queued", 0)
    assert [ready.job_id for ready in world.given_back] == [held.job_id]


def test_a_row_that_is_just_being_claimed_is_not_handed_back(world: World) -> None:
    held = world.claim(is_held=False)
    world.held_jobs.expect([held.job_id])
    for _ in range(4):
        world.lease.round()
    assert row_of(world.engine, held).status == "running"


def test_a_held_job_without_its_row_is_dropped(world: World) -> None:
    held = world.claim(has_row=False)
    world.lease.round()
    assert world.loop.interrupted == [(held, None)]
    assert world.settled == [(held, Outcome.LOST)]


def test_a_job_whose_end_is_under_way_is_not_dropped(world: World) -> None:
    held = world.claim(has_row=False)
    held.end = held.ended_as(Status.SUCCEEDED)
    world.lease.round()
    assert (world.loop.interrupted, world.settled) == ([], [])


def test_a_cancel_in_the_row_reaches_the_engine(world: World) -> None:
    held = world.claim()
    with Session(world.engine) as session:
        session.execute(update(Job).values(cancel_requested_at=Job.ready_at))
        session.commit()
    world.lease.round()
    assert world.loop.interrupted == [(held, Status.CANCELLED)]


def test_a_lost_lease_drops_everything_and_begins_again_under_a_new_id(world: World) -> None:
    held, old_id = world.claim(), world.lease.worker_id
    with Session(world.engine) as session:
        session.execute(update(Worker).values(status="lost"))
        session.commit()
    world.lease.round()
    world.lease.round()
    assert (held, Outcome.LOST) in world.settled
    assert world.lease.worker_id != old_id
    assert world.row().status == "ready"
    assert world.row(old_id).status == "lost"
    assert row_of(world.engine, held).status == "running", "the sweep frees it, under its own rules"


def test_a_stopped_worker_says_so(world: World) -> None:
    world.lease.stop()
    assert world.row().status == "stopped"
