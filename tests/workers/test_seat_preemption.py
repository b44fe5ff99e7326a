"""A worker whose seats are all taken: a better job takes one, and the job that gave it up goes on."""

from pathlib import Path

import pytest

from db.sampling import Sampling
from tests.servers import Servers
from tests.workers.worker_process import GREEDY, LONG, Jobs, WorkerProcess, make_settings, prompts, wait_until

SEEDED = Sampling(temperature=0.9, ignore_eos=True)


@pytest.mark.parametrize("changes", [{}, {"host_cache_gb": 0.1, "overlap": True}])
def test_a_high_job_starts_beside_full_seats_and_costs_the_low_one_no_token(
    servers: Servers, tmp_path: Path, changes: dict[str, object]
) -> None:
    settings = make_settings(servers, tmp_path / "alone", max_num_seqs=2)
    [first, second] = prompts(2)
    options = {"tier": 2, "sampling": SEEDED, "max_tokens": LONG, "seed": 5}
    with WorkerProcess(settings, tmp_path / "alone.log") as worker:
        jobs = Jobs(settings)
        expected = [jobs.submit([prompt], **options)[0] for prompt in (first, second)]
        jobs.wait_ended(expected)
        texts = [jobs.output(job_id).text for job_id in expected]
        jobs.close()
        worker.terminate()
    settings = make_settings(servers, tmp_path / "shared", max_num_seqs=2, **changes)
    with WorkerProcess(settings, tmp_path / "shared.log") as worker:
        jobs = Jobs(settings)
        low = [jobs.submit([prompt], **options)[0] for prompt in (first, second)]
        wait_until(lambda: all(jobs.delivered(job_id) for job_id in low), "both seats to be taken")
        [high] = jobs.submit([[9, 9, 9]], tier=0, sampling=GREEDY, max_tokens=4)
        [row] = jobs.wait_ended([high])
        assert {jobs.row(job_id).status for job_id in low} == {"running"}
        rows = jobs.wait_ended(low)
        assert [(each.status, each.attempt, each.crashes) for each in rows] == [("succeeded", 1, 0)] * 2
        assert [jobs.output(job_id).text for job_id in low] == texts
        assert row.ended_at is not None and all(each.ended_at > row.ended_at for each in rows)
        jobs.close()
        worker.terminate()
