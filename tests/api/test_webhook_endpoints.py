"""Webhook endpoints over HTTP: what is refused, what is whose, and what we add to OpenAI's objects."""

from typing import Any

import pytest
from sqlalchemy import Engine, select, update
from sqlalchemy.orm import Session

from db.event_types import EVENT_TYPES, OPENAI_TYPES
from db.models import WebhookDelivery, WebhookEndpoint
from db.settings import Settings
from tests.api.serving import api_with
from tests.db.rows import in_seconds

BODY = {"name": "billing", "url": "https://example.com/hooks", "event_types": ["job.succeeded"]}
PATH = "/v1/webhook_endpoints"


async def make(client: Any, **fields: Any) -> dict[str, Any]:
    reply = await client.post(PATH, json=BODY | fields)
    assert reply.status_code == 200, reply.text
    endpoint: dict[str, Any] = reply.json()
    return endpoint


async def test_endpoint_that_names_no_types_gets_those_that_openais_clients_know(client) -> None:
    reply = await client.post(PATH, json={"name": "n", "url": "https://example.com/"})
    assert reply.json()["event_types"] == list(OPENAI_TYPES)
    types = (await client.get("/v1/webhook_event_types")).json()
    assert types == {"object": "list", "data": list(EVENT_TYPES)}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"url": "http://127.0.0.1/"}, "url", "not public"),
        ({"url": "ftp://example.com/"}, "url", "begins with http"),
        ({"url": "https://example.com/" + "x" * 2048}, "url", "at most 2048"),
        ({"name": ""}, "name", "at least 1"),
        ({"name": "x" * 257}, "name", "at most 256"),
        ({"name": "a\x00"}, "name", "U+0000"),
        ({"event_types": []}, "event_types", "at least 1"),
        ({"event_types": ["job.succeeded"] * 14}, "event_types", "at most 13"),
        ({"event_types": ["fine_tuning.job.succeeded"]}, "event_types[0]", "'response.completed'"),
        ({"secret": "x"}, "secret", "not a known field"),
    ],
)
async def test_endpoint_that_cannot_work_is_refused_with_the_field(
    client, fields: dict[str, Any], param: str, words: str
) -> None:
    reply = await client.post(PATH, json=BODY | fields)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, param) and words in error["message"], error
    endpoint = await make(client)
    reply = await client.post(f"{PATH}/{endpoint['id']}", json=fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_endpoint_of_another_tenant_and_one_that_never_was_are_not_found(client, stranger) -> None:
    endpoint = await make(client)
    event = {"event_type": "job.dead"}
    for who, public in ((stranger, endpoint["id"]), (client, "we_" + "0" * 32), (client, "nonsense")):
        path = f"{PATH}/{public}"
        replies = [
            await who.get(path),
            await who.post(path, json={"name": "mine"}),
            await who.delete(path),
            await who.post(f"{path}/rotate_secret"),
            await who.post(f"{path}/test", json=event),
            await who.get(f"{path}/deliveries"),
            await who.post("/v1/webhook_events/replay", json=times() | {"endpoint": public}),
        ]
        assert {reply.status_code for reply in replies} == {404}
        assert {reply.json()["error"]["code"] for reply in replies} == {"webhook_endpoint_not_found"}
    assert (await client.get(f"{PATH}/{endpoint['id']}")).json()["name"] == "billing"
    assert (await stranger.get(PATH)).json()["data"] == []


def times() -> dict[str, str]:
    return {"since": "2026-01-01T00:00:00Z", "until": "2026-01-02T00:00:00Z"}


async def test_secret_of_the_jobs_own_urls_is_no_endpoint_of_the_list(client, engine: Engine) -> None:
    with Session(engine) as session:
        [row] = session.scalars(select(WebhookEndpoint).where(WebhookEndpoint.tenant == "default"))
    assert (await client.get(PATH)).json()["data"] == []
    assert (await client.delete(f"{PATH}/we_{row.id.hex}")).status_code == 404


async def test_list_is_newest_first_in_pages(client) -> None:
    ids = [(await make(client, name=str(number)))["id"] for number in range(3)]
    first = (await client.get(PATH, params={"limit": 2})).json()
    assert [row["id"] for row in first["data"]] == [ids[2], ids[1]]
    assert (first["has_more"], first["first_id"], first["last_id"]) == (True, ids[2], ids[1])
    second = (await client.get(PATH, params={"limit": 2, "after": first["last_id"]})).json()
    assert ([row["id"] for row in second["data"]], second["has_more"]) == ([ids[0]], False)
    assert (await client.get(PATH, params={"after": "x"})).json()["error"]["param"] == "after"


async def test_secret_is_told_once_and_hinted_at_afterwards(client) -> None:
    made = await make(client)
    secret = made["signing_secret"]
    assert secret.startswith("whsec_")
    shown = (await client.get(f"{PATH}/{made['id']}")).json()
    assert "signing_secret" not in shown
    assert shown["signing_secret_hint"] == f"whsec_...{secret[-4:]}"
    rotated = (
        await client.post(f"{PATH}/{made['id']}/rotate_secret", json={"keep_old_secret_active_for_24_hours": True})
    ).json()
    assert rotated["signing_secret"] != secret
    [until] = rotated["old_secrets_expire_at"]
    assert until == pytest.approx(rotated["updated_at"] + 86400, abs=2)


async def test_disabled_endpoint_says_why_and_is_enabled_by_an_update(client, engine: Engine) -> None:
    made = await make(client)
    reason = {"disabled_at": in_seconds(-5), "failing_since": in_seconds(-9), "disabled_reason": "every attempt failed"}
    with Session(engine) as session, session.begin():
        session.execute(update(WebhookEndpoint).where(WebhookEndpoint.name == "billing").values(**reason))
    shown = (await client.get(f"{PATH}/{made['id']}")).json()
    assert shown["disabled_reason"] == "every attempt failed"
    assert shown["failing_since"] < shown["disabled_at"]
    refusal = await client.post("/v1/webhook_events/replay", json=times() | {"endpoint": made["id"]})
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (400, "webhook_endpoint_disabled")
    updated = (await client.post(f"{PATH}/{made['id']}", json={})).json()
    assert (updated["disabled_at"], updated["disabled_reason"], updated["failing_since"]) == (None, None, None)


async def test_owner_can_disable_an_endpoint(client) -> None:
    made = await make(client)
    for disabled, is_disabled in ((True, True), (None, True), (False, False)):
        updated = (await client.post(f"{PATH}/{made['id']}", json={"disabled": disabled})).json()
        assert (updated["disabled_at"] is not None) == is_disabled


async def test_test_that_nobody_sends_is_given_up_and_not_sent_later(
    settings: Settings, keys: tuple[str, str], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.webhooks.probe.SPARE_SECONDS", 0.1)
    async with api_with(settings, webhook_timeout_seconds=0.1) as client:
        made = await make(client)
        reply = await client.post(f"{PATH}/{made['id']}/test", json={"event_type": "job.dead"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (504, "webhook_not_sent")
    assert reply.headers["x-should-retry"] == "false"
    with Session(engine) as session:
        [delivery] = session.scalars(select(WebhookDelivery))
    assert (delivery.status, delivery.due_at) == ("failed", None)
