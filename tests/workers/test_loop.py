"""The engine thread on a fake model: what it starts, ends and drops, and what it survives."""

import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from db.models import Status
from db.stream import Token
from tests.workers.held_jobs import make_held
from tests.workers.loop_world import PATIENCE_SECONDS, Ends, World, running_loop
from workers.loading import LoadedModel
from workers.loop import FIRST_SECONDS, EngineLoop

NUM_SEATS = 4


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with running_loop(tmp_path, num_blocks=4096, max_model_len=8192, max_num_seqs=NUM_SEATS) as world:
        yield world


ENDLESS = 8000  # tokens: nothing ends by itself within a test


def test_jobs_end_by_length_with_all_their_tokens(world: World) -> None:
    jobs = [make_held(max_tokens=n) for n in (1, 5, 9)]
    world.start(*jobs)
    assert world.ends.wait(*jobs) == ["succeeded"] * 3
    assert [len(held.tokens) for held in jobs] == [1, 5, 9]


def test_a_cancelled_job_ends_with_what_it_has_and_the_others_go_on(world: World) -> None:
    cancelled, other = make_held(max_tokens=ENDLESS), make_held(max_tokens=50)
    world.start(cancelled, other)
    world.ends.wait_tokens(cancelled, 3)
    world.loop.interrupt(cancelled, Status.CANCELLED)
    assert world.ends.wait(cancelled, other) == ["cancelled", "succeeded"]
    assert cancelled.end is not None
    assert len(cancelled.end.token_ids) == len(cancelled.tokens) >= 3


def test_a_job_cancelled_before_it_was_started_is_never_computed(world: World) -> None:
    held = make_held()
    world.loop.interrupt(held, Status.CANCELLED)
    world.start(held)
    assert world.ends.wait(held) == ["cancelled"]
    assert world.loop.flush(PATIENCE_SECONDS)
    assert held.tokens == []


def test_a_dropped_job_ends_nowhere(world: World) -> None:
    held = make_held(max_tokens=ENDLESS)
    world.start(held)
    world.ends.wait_tokens(held, 1)
    world.loop.interrupt(held, None)
    assert world.loop.flush(PATIENCE_SECONDS)
    assert held.is_dropped
    assert world.ends.ended == []


def test_a_second_interrupt_changes_nothing(world: World) -> None:
    held = make_held(max_tokens=ENDLESS)
    world.start(held)
    world.loop.interrupt(held, Status.CANCELLED)
    world.loop.interrupt(held, Status.CANCELLED)
    world.loop.interrupt(held, None)
    assert world.loop.flush(PATIENCE_SECONDS)
    assert world.ends.ended == [held]
    assert not held.is_dropped


def test_the_next_step_waits_while_first_tokens_are_told_where_it_would_take_the_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("workers.loop.sleep", pauses.append)
    sizes = {"num_blocks": 4096, "max_model_len": 8192, "max_num_seqs": NUM_SEATS}
    for shares_processors in (False, True):
        with running_loop(tmp_path, shares_processors=shares_processors, **sizes) as world:
            for held in (make_held(max_tokens=5), make_held(max_tokens=5)):
                world.start(held)
                world.ends.wait(held)
    assert pauses == [FIRST_SECONDS] * 2


def test_a_job_past_its_deadline_expires(world: World) -> None:
    held = make_held(max_tokens=ENDLESS, deadline=monotonic() - 1, limit_code="finish_by_passed")
    world.start(held)
    assert world.ends.wait(held) == ["expired"]
    assert held.end is not None
    assert held.end.error_code == "finish_by_passed", "as the sweep names it for a job that waits"


def test_a_delivered_prefix_that_ends_the_job_takes_no_step(world: World) -> None:
    held = make_held(max_tokens=2)
    held.tokens = [Token(10, "a"), Token(11, "b")]
    world.start(held)
    assert world.ends.wait(held) == ["succeeded"]
    assert held.end is not None
    assert (held.end.text, held.end.finish_reason) == ("ab", "length")
    assert world.model.num_rows == []


def test_a_job_that_can_never_run_fails_with_the_reason(world: World) -> None:
    held = make_held(prompt_token_ids=[1] * 9000)
    world.start(held)
    assert world.ends.wait(held) == ["failed"]
    assert held.end is not None
    assert held.end.error_code == "context_length_exceeded"
    assert "9,000 tokens" in (held.end.error_message or "")


def test_a_job_that_a_smaller_model_would_cut_short_fails_with_the_numbers(world: World) -> None:
    held = make_held(prompt_token_ids=[1] * 200, max_tokens=ENDLESS)
    world.start(held)
    assert world.ends.wait(held) == ["failed"]
    assert held.end is not None
    assert held.end.error_code == "context_length_exceeded"
    assert "together 8,200; this worker's model takes 8,192" in (held.end.error_message or "")


def test_what_the_engine_has_not_begun_is_known_as_waiting(world: World) -> None:
    jobs = [make_held(max_tokens=ENDLESS) for _ in range(NUM_SEATS + 1)]
    world.start(*jobs)
    assert world.loop.flush(PATIENCE_SECONDS)
    world.ends.wait_tokens(jobs[0], len(jobs[0].tokens) + 2)
    assert world.loop.waiting == (jobs[-1],)
    for held in jobs:
        world.loop.interrupt(held, None)
    assert world.loop.flush(PATIENCE_SECONDS)


def test_a_failed_step_fails_its_jobs_and_the_engine_goes_on(world: World) -> None:
    world.model.breaks = True
    broken = make_held()
    world.start(broken)
    assert world.ends.wait(broken) == ["failed"]
    world.model.breaks = False
    later = make_held()
    world.start(later)
    assert world.ends.wait(later) == ["succeeded"]


def test_a_step_that_does_not_retire_counts_as_stuck_and_an_idle_engine_does_not(world: World) -> None:
    assert world.loop.seconds_stuck() == 0
    world.model.gate.clear()
    held = make_held()
    world.start(held)
    assert world.model.is_computing.wait(PATIENCE_SECONDS)
    assert world.loop.seconds_stuck() > 0
    world.model.gate.set()
    world.ends.wait(held)
    assert world.loop.seconds_stuck() == 0


def test_an_exception_on_the_thread_is_reported() -> None:
    reported = threading.Event()

    def fail() -> LoadedModel:
        raise MemoryError

    ends = Ends()
    loop = EngineLoop(
        fail,
        streamer=ends,  # type: ignore[arg-type]
        writer=ends,  # type: ignore[arg-type]
        on_ready=lambda: None,
        on_failure=lambda error: reported.set() if isinstance(error, MemoryError) else None,
    )
    loop.start()
    assert reported.wait(PATIENCE_SECONDS)
