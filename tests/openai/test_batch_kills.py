"""Everything killed in the middle of a batch, twice; `python -m tests.openai.batch_kills` is the long one."""

import pytest

from tests.openai.batch_kills import run

NUM_LINES = 240


@pytest.mark.timeout(600)
def test_killing_every_process_costs_no_finished_line_and_repeats_none() -> None:
    report = run(num_lines=NUM_LINES, num_kills=2)
    counts = report.batch.request_counts
    assert counts is not None
    assert (report.batch.status, counts.total, counts.completed, counts.failed) == (
        "completed",
        NUM_LINES,
        NUM_LINES,
        0,
    )
    assert report.num_times == {1: NUM_LINES}, "each line is in the output once"
    assert report.num_lost == 0, "and is what it was before the kill"
    assert report.num_jobs == NUM_LINES, "and ran as one job"
    assert all(0 < number < NUM_LINES for number in report.num_completed_at_kills)
