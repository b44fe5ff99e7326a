"""Who holds how many of the deliverer's threads, with a real Postgres and real sockets."""

import threading
from collections.abc import Iterator

import pytest
import redis
from sqlalchemy import Engine, update
from sqlalchemy.orm import Session

from db.models import WebhookDelivery
from tests.receiver import Delivery, Say, receiver
from tests.resolver import resolve_all_to
from tests.workers.delivery_world import make_deliverer
from tests.workers.world import World
from workers.deliverer import LANE_LIMIT, Deliverer


@pytest.fixture
def world(engine: Engine, redis_client: redis.Redis) -> World:
    return World(engine, redis_client)


@pytest.fixture
def deliverer(engine: Engine) -> Iterator[Deliverer]:
    deliverer = make_deliverer(engine)
    yield deliverer
    deliverer.close()


def test_endpoint_that_hangs_delays_no_other_and_holds_no_more_than_its_lane(world: World) -> None:
    released, hanging = threading.Event(), threading.Semaphore(0)

    def hang(delivery: Delivery) -> Say:
        hanging.release()
        released.wait(60)
        return Say()

    with receiver(hang) as dead, receiver() as healthy:
        world.finished_jobs(*[f"{dead.url}/{n}" for n in range(10)])
        deliverer = make_deliverer(world.engine, num_threads=8, lane_limit=2)
        try:
            assert deliverer.start_due() == 2
            assert all(hanging.acquire(timeout=20) for _ in range(2))
            world.finished_jobs(*[f"{healthy.url}/{n}" for n in range(10)])
            deliverer.start_due()
            assert {healthy.next().path for _ in range(10)} == {f"/{n}" for n in range(10)}
            assert dead.got.qsize() == 2
        finally:
            released.set()
            deliverer.close()


def test_tenant_with_many_hosts_that_hang_leaves_the_others_their_threads(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    def hang(delivery: Delivery) -> Say:
        released.wait(60)
        return Say()

    resolve_all_to(monkeypatch, "127.0.0.1")
    with receiver(hang) as dead, receiver() as healthy:
        world.finished_jobs(*[f"http://{n}.test:{dead.port}/" for n in range(10)])
        [job_id] = world.finished_jobs(healthy.url)
        with Session(world.engine) as session, session.begin():
            session.execute(update(WebhookDelivery).where(WebhookDelivery.job_id == job_id).values(tenant="another"))
        deliverer = make_deliverer(world.engine, num_threads=6, lane_limit=2, tenant_limit=4)
        try:
            assert deliverer.start_due() == 5
            healthy.next()
            assert len([dead.next() for _ in range(4)]) == 4
            assert dead.got.empty()
        finally:
            released.set()
            deliverer.close()


def test_backlog_longer_than_the_threads_goes_out_without_another_call(world: World, deliverer: Deliverer) -> None:
    with receiver() as endpoint:
        world.finished_jobs(*[f"{endpoint.url}/{n}" for n in range(20)])
        assert deliverer.start_due() == LANE_LIMIT
        assert {endpoint.next().path for _ in range(20)} == {f"/{n}" for n in range(20)}


def test_two_senders_never_have_the_same_delivery(world: World) -> None:
    with receiver() as endpoint:
        world.finished_jobs(*[f"{endpoint.url}/{n}" for n in range(12)])
        senders = [make_deliverer(world.engine) for _ in range(3)]
        threads = [threading.Thread(target=sender.start_due) for sender in senders]
        for thread in threads:
            thread.start()
        paths = {endpoint.next().path for _ in range(12)}
        for thread in threads:
            thread.join()
        for sender in senders:
            sender.close()
        assert len(paths) == 12
        assert endpoint.got.empty()
