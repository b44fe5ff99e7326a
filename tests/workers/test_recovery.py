"""What a dead, frozen, cut-off or drained worker leaves behind runs on elsewhere, and nothing that is late shows."""

from collections.abc import Iterator
from time import monotonic

import pytest

from tests.servers import Servers
from tests.workers.recovery_world import LEASE_SECONDS, SWEEP_SECONDS, World, recovering
from tests.workers.worker_process import WorkerProcess, wait_until

NUM_TOKENS = 500


@pytest.fixture(scope="module")
def world(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with recovering(servers, tmp_path_factory.mktemp("recovery"), drain_seconds=0.0) as world:
        yield world


@pytest.fixture(scope="module")
def first(world: World) -> WorkerProcess:
    return world.start("first")


def test_what_a_frozen_worker_writes_when_it_wakes_is_never_seen(world: World, first: WorkerProcess) -> None:
    first_id = world.wait_ready(first)
    long, short = world.submit(1, 1900), world.submit(2, 600)
    world.jobs.wait_streamed([*short, *long], 5)
    first.freeze()
    second = world.start("second")
    second_id = world.wait_ready(second)
    world.jobs.wait_ended(short)
    assert (world.jobs.row(long[0]).status, world.jobs.row(long[0]).worker_id) == ("running", second_id)
    first.thaw()  # in the middle of three jobs: two have ended, and one runs elsewhere
    wait_until(lambda: world.ready_ids(first) not in ([], [first_id]), "it to come back under another id")
    world.assert_ended_once([*long, *short], attempt=2)
    assert {row.worker_id for row in world.jobs.rows([*long, *short])} == {second_id}
    world.assert_undisturbed(short)


def test_a_worker_back_from_an_outage_longer_than_its_lease_commits_what_it_did(world: World, servers: Servers) -> None:
    job_ids = world.submit(4, NUM_TOKENS)
    world.jobs.wait_streamed(job_ids, 5)
    servers.postgres.stop()
    back_at = monotonic() + LEASE_SECONDS + 2 * SWEEP_SECONDS  # the fault's length: every lease is over by then
    world.jobs.wait_streamed(job_ids, NUM_TOKENS)
    wait_until(lambda: monotonic() > back_at, "the outage to have lasted")
    servers.postgres.start()
    world.assert_ended_once(job_ids, attempt=1)
    world.assert_undisturbed(job_ids)


def test_a_killed_workers_jobs_run_on_at_another_once_its_lease_is_over(world: World) -> None:
    job_ids = world.submit(4, 2 * NUM_TOKENS)
    world.jobs.wait_streamed(job_ids, 5)
    killed, other = world.started
    killed_id, other_id = world.wait_ready(killed), world.wait_ready(other)
    killed.kill()
    moved = [row.id for row in world.jobs.rows(job_ids) if (row.status, row.worker_id) == ("running", killed_id)]
    assert moved, "both workers take their share"
    world.assert_ended_once(moved, attempt=2)
    assert {row.worker_id for row in world.jobs.rows(job_ids)} == {other_id}
    lease_end = world.lease_end(killed_id)
    assert all(row.ended_at > lease_end for row in world.jobs.rows(moved)), "nobody takes them before"
    world.assert_undisturbed(job_ids)
    world.started.remove(killed)
    world.wait_ready(world.start("third"))


def test_a_drained_workers_jobs_run_elsewhere_without_lease_or_sweep(world: World) -> None:
    world.sweeper.stop()
    job_ids = world.submit(4, 2 * NUM_TOKENS)
    world.jobs.wait_streamed(job_ids, 5)
    drained, other = world.started
    other_id = world.ready_ids(other)[-1]
    moved = [row.id for row in world.jobs.rows(job_ids) if row.worker_id != other_id]
    assert moved, "both workers take their share"
    assert drained.terminate() == 0, drained.log
    assert {row.worker_id for row in world.jobs.wait_ended(job_ids)} == {other_id}
    world.assert_ended_once(moved, attempt=2)
    world.assert_undisturbed(job_ids)
