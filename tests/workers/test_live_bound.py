"""The bound of `tests/db/test_waiting_bound.py`, kept by a real worker with a short threshold."""

from datetime import timedelta
from pathlib import Path

from db.order import LIFTED_EVERY
from tests.servers import Servers
from tests.workers.worker_process import Jobs, WorkerProcess, make_settings, prompts

THRESHOLD, BOOST = 1.0, 2.0  # seconds, levels per second: a low job competes as high after 2 s
HIGH, LOW = 0, 2


def test_a_low_job_under_a_flood_of_high_ones_starts_within_the_bound(servers: Servers, tmp_path: Path) -> None:
    aging = {"aging_threshold_seconds": THRESHOLD, "aging_boost": BOOST}
    settings = make_settings(servers, tmp_path, model_name="flooded", max_num_seqs=1, **aging)
    jobs = Jobs(settings)
    with WorkerProcess(settings, tmp_path / "worker.log") as worker:
        jobs.wait_ended(jobs.submit(prompts(1), max_tokens=1))
        worker.freeze()  # until the flood is there
        [low] = jobs.submit(prompts(1), tier=LOW, max_tokens=1)
        flood = jobs.submit(prompts(300), tier=HIGH, max_tokens=30)
        worker.thaw()
        [row] = jobs.wait_ended([low])
    assert row.ready_at is not None and row.started_at is not None
    lifted_at = row.ready_at + timedelta(seconds=THRESHOLD + LOW / BOOST)
    started = [other.started_at for other in jobs.rows(flood) if other.started_at is not None]
    assert len(started) < len(flood), "the flood goes on for longer than the low job waits"
    num_before = sum(lifted_at <= start < row.started_at for start in started)
    assert row.started_at >= lifted_at
    assert num_before <= LIFTED_EVERY + 1  # nothing older is ahead; one may have been popped and not claimed
    jobs.close()
