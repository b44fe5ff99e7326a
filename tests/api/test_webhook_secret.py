"""The secret of jobs' own webhook URLs: looked at, rotated, and what signs meanwhile."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session
from standardwebhooks import Webhook, WebhookVerificationError

from db import jobs
from db.keys import default_secret, ensure_first_key
from db.models import WebhookEndpoint
from db.settings import Settings
from tests.db.rows import add_job, add_worker, end_of
from tests.receiver import Delivery, receiver
from tests.workers.delivery_world import run_due

PATH = "/v1/webhook_secret"
KEEP = {"keep_old_secret_active_for_24_hours": True}


def secret_of(engine: Engine, tenant: str = "default") -> str:
    with Session(engine) as session:
        return default_secret(session, tenant)


def deliver(engine: Engine) -> Delivery:
    """The webhook of a job of the tenant's that has just succeeded."""
    with receiver() as endpoint:
        with Session(engine) as session, session.begin():
            worker_id = add_worker(session)
            job = add_job(session, tenant="default", webhook_url=endpoint.url)
            jobs.claim(session, worker_id, [job.id])
            jobs.finish(session, [end_of(job.id, worker_id)])
        assert run_due(engine) == 1
        return endpoint.next()


def verifies(secret: str, delivery: Delivery) -> bool:
    try:
        Webhook(secret).verify(delivery.body, delivery.headers)
    except WebhookVerificationError:
        return False
    return True


async def test_it_is_told_apart_by_its_end_and_never_shown(client, engine: Engine) -> None:
    secret = secret_of(engine)
    reply = await client.get(PATH)
    view = reply.json()
    assert (view["object"], view["signing_secret_hint"]) == ("webhook_secret", f"whsec_...{secret[-4:]}")
    assert view["old_secrets_expire_at"] == [] and secret not in reply.text


async def test_a_rotated_one_signs_alone_at_once(client, engine: Engine) -> None:
    old = secret_of(engine)
    new = (await client.post(f"{PATH}/rotate")).json()["signing_secret"]
    assert new == secret_of(engine) != old
    delivery = deliver(engine)
    assert (verifies(new, delivery), verifies(old, delivery)) == (True, False)


async def test_an_old_one_that_is_kept_signs_beside_it_for_a_day(client, engine: Engine) -> None:
    old = secret_of(engine)
    rotated = (await client.post(f"{PATH}/rotate", json=KEEP)).json()
    delivery = deliver(engine)
    assert verifies(rotated["signing_secret"], delivery) and verifies(old, delivery)
    view = (await client.get(PATH)).json()
    assert view["old_secrets_expire_at"] == [view["updated_at"] + timedelta(hours=24).total_seconds()]
    assert view == {name: said for name, said in rotated.items() if name != "signing_secret"}


@pytest.mark.parametrize("of_an_endpoint", [False, True])
async def test_an_old_one_that_no_longer_signs_is_not_told_of(client, engine: Engine, of_an_endpoint: bool) -> None:
    path, rotate = PATH, f"{PATH}/rotate"
    if of_an_endpoint:
        made = await client.post("/v1/webhook_endpoints", json={"name": "n", "url": "https://example.com/"})
        path = f"/v1/webhook_endpoints/{made.json()['id']}"
        rotate = f"{path}/rotate_secret"
    for _ in range(2):
        rotated = (await client.post(rotate, json=KEEP)).json()
    with Session(engine) as session, session.begin():
        row = session.scalars(select(WebhookEndpoint).where(WebhookEndpoint.secret == rotated["signing_secret"])).one()
        newer, older = row.old_secrets
        passed = datetime.fromisoformat(older["until"]) - timedelta(days=1)
        row.old_secrets = [newer, older | {"until": passed.isoformat()}]
    assert len(rotated["old_secrets_expire_at"]) == 2
    assert (await client.get(path)).json()["old_secrets_expire_at"] == rotated["old_secrets_expire_at"][:1]


async def test_more_old_ones_than_sign_are_refused_with_the_way_out(client, engine: Engine) -> None:
    for _ in range(4):
        assert (await client.post(f"{PATH}/rotate", json=KEEP)).status_code == 200
    before = secret_of(engine)
    refused = await client.post(f"{PATH}/rotate", json=KEEP)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "keep_old_secret_active_for_24_hours")
    assert error["message"].startswith("4 old secrets are still active") and secret_of(engine) == before
    assert (await client.post(f"{PATH}/rotate")).json()["old_secrets_expire_at"] == []


async def test_each_tenant_rotates_its_own_and_endpoints_keep_theirs(client, stranger, engine: Engine) -> None:
    made = (await client.post("/v1/webhook_endpoints", json={"name": "n", "url": "https://example.com/"})).json()
    others = secret_of(engine, "other")
    await client.post(f"{PATH}/rotate")
    assert secret_of(engine, "other") == others
    assert (await stranger.get(PATH)).json()["signing_secret_hint"].endswith(others[-4:])
    with Session(engine) as session:
        rows = select(WebhookEndpoint.secret).where(WebhookEndpoint.url.is_not(None))
        assert list(session.scalars(rows)) == [made["signing_secret"]]
    assert [each["id"] for each in (await client.get("/v1/webhook_endpoints")).json()["data"]] == [made["id"]]


@pytest.mark.parametrize("body", [{"keep": True}, {"keep_old_secret_active_for_24_hours": "perhaps"}])
async def test_what_is_wrong_with_a_rotation_is_named_and_nothing_is_rotated(client, engine: Engine, body) -> None:
    before = secret_of(engine)
    reply = await client.post(f"{PATH}/rotate", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, next(iter(body)))
    assert secret_of(engine) == before


async def test_the_first_tenants_file_has_it_from_the_next_start(client, engine: Engine, settings: Settings) -> None:
    with Session(engine) as session, session.begin():
        first = ensure_first_key(session, settings)
    new = (await client.post(f"{PATH}/rotate")).json()["signing_secret"]
    with Session(engine) as session, session.begin():
        assert ensure_first_key(session, settings).webhook_secret == new != first.webhook_secret
    assert (settings.data_dir / "webhook-secret").read_text().strip() == new
