"""A worker whose seats are all taken: a better job takes one, and the job that gave it up goes on."""

from pathlib import Path

import pytest

from db.sampling import Sampling
from tests.servers import Servers
from tests.workers.worker_process import GREEDY, MIDDLING, Jobs, WorkerProcess, make_settings, prompts, wait_until

SEEDED = Sampling(temperature=0.9, ignore_eos=True)


LOW = {"tier": 2, "sampling": SEEDED, "max_tokens": MIDDLING, "seed": 5}


@pytest.fixture(scope="module")
def undisturbed(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the low jobs write when nobody takes their seats."""
    directory = tmp_path_factory.mktemp("alone")
    settings = make_settings(servers, directory / "m", max_num_seqs=2)
    with WorkerProcess(settings, directory / "worker.log"):
        jobs = Jobs(settings)
        job_ids = jobs.submit(prompts(2), **LOW)
        jobs.wait_ended(job_ids)
        texts = [jobs.output(job_id).text for job_id in job_ids]
        jobs.close()
    return texts


@pytest.mark.parametrize("changes", [{}, {"host_cache_gb": 0.1, "overlap": True}])
def test_a_high_job_starts_beside_full_seats_and_costs_the_low_ones_no_token(
    servers: Servers, tmp_path: Path, undisturbed: list[str], changes: dict[str, object]
) -> None:
    settings = make_settings(servers, tmp_path / "m", max_num_seqs=2, **changes)
    with WorkerProcess(settings, tmp_path / "worker.log"):
        jobs = Jobs(settings)
        low = jobs.submit(prompts(2), **LOW)
        wait_until(lambda: all(jobs.delivered(job_id) for job_id in low), "both seats to be taken")
        [high] = jobs.submit([[9, 9, 9]], tier=0, sampling=GREEDY, max_tokens=4)
        [row] = jobs.wait_ended([high])
        assert {jobs.row(job_id).status for job_id in low} == {"running"}
        rows = jobs.wait_ended(low)
        assert [(each.status, each.attempt, each.crashes) for each in rows] == [("succeeded", 1, 0)] * 2
        assert [jobs.output(job_id).text for job_id in low] == undisturbed
        assert row.ended_at is not None and all(each.ended_at > row.ended_at for each in rows)
        jobs.close()
