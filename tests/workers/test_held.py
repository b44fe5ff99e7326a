"""The registry counts what was popped and is not settled."""

from db.sampling import Sampling
from db.stream import Token
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


def test_a_job_counts_as_many_seats_as_it_has_outputs_or_beams() -> None:
    held_jobs, unclaimed = HeldJobs(), make_held()
    held_jobs.expect([unclaimed.job_id])
    for sampling in (Sampling(), Sampling(n=3), Sampling(n=2, num_beams=4)):
        held_jobs.add(make_held(sampling=sampling))
    assert held_jobs.num_seats() == 1 + 1 + 3 + 4


def test_an_end_says_everything_that_was_delivered() -> None:
    end = make_held(texts=("Ein", "", " Müller")).ended_as("cancelled")
    assert (end.text, end.token_ids, end.text_offsets) == ("Ein Müller", [10, 11, 12], [3, 3, 10])
    assert (end.logprobs, end.choices, end.finish_reasons) == (None, None, None)


def test_an_end_of_several_outputs_says_whose_each_token_is_and_how_each_ended() -> None:
    held = make_held(sampling=Sampling(n=2))
    held.tokens = [Token(10, "a"), Token(11, "b", None, 1), Token(12, "c")]
    held.finish_reasons[1] = "stop"
    end = held.ended_as("cancelled")
    assert (end.text, end.choices) == ("abc", [0, 1, 0])
    assert (end.finish_reason, end.finish_reasons) == (None, [None, "stop"])
