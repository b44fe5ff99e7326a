"""`client.webhooks` of the unmodified openai package, sync and async, against a real API and a real sender."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
from openai import AsyncOpenAI, BadRequestError, InvalidWebhookSignatureError, NotFoundError, OpenAI
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from db import jobs
from db.keys import create_key
from db.settings import Settings, get_settings
from tests.api.serving import KEY, serve
from tests.db.rows import add_job, add_worker, end_of
from tests.receiver import Say, receiver
from tests.workers.delivery_world import make_deliverer


@pytest.fixture(autouse=True)
def private_allowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HEADRACE_WEBHOOK_ALLOW_PRIVATE", "1")
    get_settings.cache_clear()
    yield
    get_settings.cache_clear()


@pytest.fixture
async def url(settings: Settings, engine: Engine) -> AsyncIterator[str]:
    with Session(engine) as session, session.begin():
        create_key(session, tenant="default", name="test", scopes=["*"], key=KEY)
    async with serve(settings) as address:
        yield f"{address}/v1"


@pytest.fixture
async def client(url: str) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=url, api_key=KEY) as client:
        yield client


@pytest.fixture
def sending(engine: Engine) -> Iterator[None]:
    """What the tasks worker does once a second, all the time."""
    stop, deliverer = threading.Event(), make_deliverer(engine)

    def run() -> None:
        while not stop.wait(0.02):
            deliverer.start_due()

    thread = threading.Thread(target=run)
    thread.start()
    yield
    stop.set()
    thread.join()
    deliverer.close()


def end_response(engine: Engine) -> str:
    """A response of the tenant that has succeeded."""
    with Session(engine) as session, session.begin():
        worker_id = add_worker(session)
        job = add_job(session, tenant="default", kind="response")
        jobs.claim(session, worker_id, [job.id])
        jobs.finish(session, [end_of(job.id, worker_id)])
        return f"resp_{job.id.hex}"


async def test_endpoint_is_made_read_changed_listed_and_deleted(client: AsyncOpenAI) -> None:
    made = await client.webhooks.create(name="one", url="https://example.com/", event_types=["response.completed"])
    assert made.object == "webhook_endpoint" and made.signing_secret.startswith("whsec_")
    same = await client.webhooks.retrieve(made.id)
    assert (same.id, same.name, same.url, same.event_types) == (made.id, "one", made.url, ["response.completed"])
    changed = await client.webhooks.update(made.id, name="two", event_types=["batch.completed", "batch.failed"])
    assert (changed.name, changed.url) == ("two", made.url)
    assert changed.event_types == ["batch.completed", "batch.failed"]
    others = [
        (await client.webhooks.create(name=str(n), url=made.url, event_types=["batch.failed"])).id for n in range(4)
    ]
    listed = [endpoint.id async for endpoint in client.webhooks.list(limit=2)]
    assert listed == [*reversed(others), made.id]
    gone = await client.webhooks.delete(made.id)
    assert (gone.id, gone.deleted, gone.object) == (made.id, True, "webhook_endpoint.deleted")
    with pytest.raises(NotFoundError):
        await client.webhooks.retrieve(made.id)


async def test_types_are_listed_with_openais_first(client: AsyncOpenAI) -> None:
    types = await client.webhooks.event_types.list()
    assert types.data[0] == "response.completed" and "job.dead" in types.data


async def test_event_of_a_response_is_unwrapped_as_one_with_either_secret_of_a_rotation(
    client: AsyncOpenAI, engine: Engine, sending: None
) -> None:
    with receiver() as endpoint:
        made = await client.webhooks.create(name="n", url=endpoint.url, event_types=["response.completed"])
        rotated = await client.webhooks.rotate_secret(made.id, keep_old_secret_active_for_24_hours=True)
        response_id = end_response(engine)
        delivery = await asyncio.to_thread(endpoint.next)
        for secret in (made.signing_secret, rotated.signing_secret):
            event = client.webhooks.unwrap(delivery.body, delivery.headers, secret=secret)
            assert (event.type, event.data.id) == ("response.completed", response_id)
        last = await client.webhooks.rotate_secret(made.id)
        end_response(engine)
        delivery = await asyncio.to_thread(endpoint.next)
        client.webhooks.verify_signature(delivery.body, delivery.headers, secret=last.signing_secret)
        for secret in (made.signing_secret, rotated.signing_secret):
            with pytest.raises(InvalidWebhookSignatureError):
                client.webhooks.verify_signature(delivery.body, delivery.headers, secret=secret)


async def test_test_tells_what_the_endpoint_answered(client: AsyncOpenAI, sending: None) -> None:
    answers = iter([Say(204), Say(503)])
    with receiver(lambda delivery: next(answers)) as endpoint:
        made = await client.webhooks.create(name="n", url=endpoint.url, event_types=["batch.failed"])
        result = await client.webhooks.test(made.id, event_type="batch.completed")
        assert (result.status_code, result.success, result.event_type) == (204, True, "batch.completed")
        assert (result.object, result.webhook_endpoint_id) == ("webhook_endpoint.test", made.id)
        delivery = await asyncio.to_thread(endpoint.next)
        event = client.webhooks.unwrap(delivery.body, delivery.headers, secret=made.signing_secret)
        assert event.type == "batch.completed" and event.data.id.startswith("batch_")
        assert (await client.webhooks.test(made.id, event_type="response.failed")).status_code == 503
        assert (await client.webhooks.retrieve(made.id)).updated_at == made.updated_at
    with pytest.raises(BadRequestError, match="did not answer"):
        await client.webhooks.test(made.id, event_type="response.failed")


async def test_synchronous_client_does_the_same(url: str, sending: None) -> None:
    def manage(address: str) -> None:
        with OpenAI(base_url=url, api_key=KEY) as client:
            made = client.webhooks.create(name="one", url=address, event_types=["response.completed"])
            assert client.webhooks.test(made.id, event_type="response.completed").status_code == 204
            assert client.webhooks.update(made.id, name="two").name == "two"
            assert client.webhooks.retrieve(made.id).name == "two"
            assert client.webhooks.rotate_secret(made.id).signing_secret != made.signing_secret
            assert [endpoint.id for endpoint in client.webhooks.list()] == [made.id]
            assert "batch.expired" in client.webhooks.event_types.list().data
            assert client.webhooks.delete(made.id).deleted
            assert list(client.webhooks.list()) == []

    with receiver() as endpoint:
        await asyncio.to_thread(manage, endpoint.url)
