"""Endpoints in trouble: they cost the others nothing, and lose nothing themselves."""

from datetime import timedelta

from sqlalchemy import Engine

from tests.chaos.endpoints import Trouble, endpoints
from tests.chaos.webhook_trouble import TROUBLES, enable_and_replay, end_jobs, faults_of, num_pending, subscribed
from tests.db.rows import in_seconds
from tests.workers.delivery_world import make_deliverer
from tests.workers.worker_process import wait_until

NUM_EVENTS = 12
MINUTE = timedelta(minutes=1)


def test_events_pass_endpoints_in_trouble_and_each_takes_each_once_in_the_end(engine: Engine) -> None:
    since = in_seconds(0) - MINUTE
    deliverer = make_deliverer(engine)
    try:
        with endpoints(TROUBLES, slow_seconds=60.0) as made, subscribed(engine, made):
            event_ids = end_jobs(engine, NUM_EVENTS)
            healthy = [endpoint for endpoint in made if endpoint.trouble == Trouble.NONE]

            def pass_by() -> bool:
                deliverer.start_due()
                return all(set(endpoint.taken) == set(event_ids) for endpoint in healthy)

            wait_until(pass_by, "all events at the healthy endpoints, while others hang")
            slow = [endpoint for endpoint in made if endpoint.trouble == Trouble.SLOW]
            assert all(not endpoint.taken for endpoint in slow)
            for endpoint in made:
                endpoint.heal()

            def settle() -> bool:
                deliverer.start_due()
                return num_pending(engine, hurries=True) == 0

            wait_until(settle, "the end of all deliveries")
            assert enable_and_replay(engine, since) == 2 * NUM_EVENTS  # to the two that answered 410
            wait_until(settle, "the end of the replays")
            assert faults_of(made, event_ids) == []
    finally:
        deliverer.close()
