"""The registry counts what was popped and is not settled."""

from tests.workers.held_jobs import make_held
from workers.held import HeldJobs


def test_a_popped_message_counts_until_its_row_is_known() -> None:
    held_jobs, held, unclaimed = HeldJobs(), make_held(), make_held()
    held_jobs.expect([held.job_id, unclaimed.job_id])
    assert len(held_jobs) == 2
    held_jobs.add(held)
    held_jobs.forget([held.job_id, unclaimed.job_id])
    assert len(held_jobs) == 1
    assert held_jobs.ids() == {held.job_id}


def test_a_job_is_discarded_once() -> None:
    held_jobs, held = HeldJobs(), make_held()
    held_jobs.add(held)
    assert held_jobs.discard(held)
    assert not held_jobs.discard(held)
    assert len(held_jobs) == 0


def test_an_earlier_attempt_does_not_discard_a_later_one() -> None:
    held_jobs, earlier = HeldJobs(), make_held()
    later = make_held(id=earlier.job_id, attempt=2)
    held_jobs.add(later)
    assert not held_jobs.discard(earlier)
    assert held_jobs.get(later.job_id) is later


def test_blocks_count_as_coming_until_the_engine_has_them() -> None:
    held_jobs, held = HeldJobs(), make_held(num_blocks=3)
    held_jobs.add(held)
    assert held_jobs.num_blocks_coming() == 3
    held.is_added = True
    assert held_jobs.num_blocks_coming() == 0


def test_an_end_says_everything_that_was_delivered() -> None:
    end = make_held(texts=("Ein", "", " Müller")).ended_as("cancelled")
    assert (end.text, end.token_ids, end.text_offsets) == ("Ein Müller", [10, 11, 12], [3, 3, 10])
    assert end.logprobs is None
