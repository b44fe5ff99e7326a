"""Events over HTTP: listed, looked at, sent again; and the delivery logs."""

from typing import Any

from sqlalchemy import Engine, select, update
from sqlalchemy.orm import Session

from db.models import WebhookAttempt, WebhookDelivery
from tests.db.rows import in_seconds

HOUR = {"since": "2020-01-01T00:00:00Z", "until": "2100-01-01T00:00:00Z"}


async def add_endpoint(client: Any, **fields: Any) -> str:
    body = {"name": "n", "url": "https://example.com/", "event_types": ["job.succeeded"]} | fields
    reply = await client.post("/v1/webhook_endpoints", json=body)
    endpoint_id: str = reply.json()["id"]
    return endpoint_id


async def end_job(worker: Any, submit: Any, **fields: Any) -> str:
    job = await submit(**fields)
    worker.run(job["id"], "a")
    job_id: str = job["id"]
    return job_id


def end_deliveries(engine: Engine, status: str) -> None:
    """As a sender leaves them after one attempt."""
    with Session(engine) as session, session.begin():
        for row in session.scalars(select(WebhookDelivery)):
            made = {"number": 1, "started_at": in_seconds(0), "duration_ms": 7, "status_code": 500, "error": "no"}
            session.add(WebhookAttempt(id=row.id, delivery_id=row.id, **made))
        session.execute(update(WebhookDelivery).values(status=status, due_at=None, num_attempts=1))


async def test_event_is_listed_and_shown_with_what_is_sent(client, stranger, worker, submit) -> None:
    job_ids = [await end_job(worker, submit) for _ in range(3)]
    page = (await client.get("/v1/webhook_events", params={"limit": 2})).json()
    assert [event["body"]["data"]["id"] for event in page["data"]] == job_ids[:0:-1] and page["has_more"]
    rest = (await client.get("/v1/webhook_events", params={"after": page["last_id"]})).json()
    assert [event["body"]["data"]["id"] for event in rest["data"]] == job_ids[:1] and not rest["has_more"]
    event = page["data"][0]
    assert (event["type"], event["body"]["id"], event["is_test"]) == ("job.succeeded", event["id"], False)
    assert (await client.get(f"/v1/webhook_events/{event['id']}")).json() == event
    assert (await client.get("/v1/webhook_events", params={"type": "job.dead"})).json()["data"] == []
    assert (await client.get("/v1/webhook_events", params={"since": "2100-01-01T00:00:00Z"})).json()["data"] == []
    assert (await client.get("/v1/webhook_events", params={"after": "x"})).json()["error"]["param"] == "after"
    path = f"/v1/webhook_events/{event['id']}"
    strange = [
        await stranger.get(path),
        await stranger.get(f"{path}/deliveries"),
        await stranger.post(f"{path}/replay"),
    ]
    assert {reply.status_code for reply in strange} == {404}
    assert (await stranger.get("/v1/webhook_events")).json()["data"] == []


async def test_logs_of_job_event_and_endpoint_show_the_same_delivery(client, worker, submit, engine: Engine) -> None:
    endpoint_id = await add_endpoint(client)
    job_id = await end_job(worker, submit)
    end_deliveries(engine, "failed")
    [delivery] = (await client.get(f"/v1/jobs/{job_id}/deliveries")).json()["data"]
    assert (delivery["endpoint_id"], delivery["job_id"], delivery["event_type"]) == (
        endpoint_id,
        job_id,
        "job.succeeded",
    )
    assert [attempt["error"] for attempt in delivery["attempts"]] == ["no"]
    of_event = (await client.get(f"/v1/webhook_events/{delivery['event_id']}/deliveries")).json()
    path = f"/v1/webhook_endpoints/{endpoint_id}/deliveries"
    of_endpoint = (await client.get(path)).json()
    assert of_event["data"] == of_endpoint["data"] == [delivery]
    assert (await client.get(path, params={"status": "delivered"})).json()["data"] == []
    assert (await client.get(path, params={"after": delivery["id"]})).json()["data"] == []
    assert (await client.get(path, params={"after": "x"})).json()["error"]["param"] == "after"


async def test_delivery_to_a_jobs_own_url_is_of_no_endpoint(client, worker, submit) -> None:
    job_id = await end_job(worker, submit, webhook_url="https://own.example.com/")
    [delivery] = (await client.get(f"/v1/jobs/{job_id}/deliveries")).json()["data"]
    assert (delivery["endpoint_id"], delivery["url"]) == (None, "https://own.example.com/")


async def test_event_is_replayed_by_its_id(client, worker, submit, engine: Engine) -> None:
    await add_endpoint(client)
    job_id = await end_job(worker, submit, webhook_url="https://own.example.com/")
    end_deliveries(engine, "delivered")
    [event] = (await client.get("/v1/webhook_events")).json()["data"]
    reply = await client.post(f"/v1/webhook_events/{event['id']}/replay")
    assert reply.status_code == 202
    assert reply.json() == {
        "object": "webhook_event.replay",
        "num_events": 1,
        "num_deliveries": 2,
        "last_id": event["id"],
        "has_more": False,
    }
    shown = (await client.get(f"/v1/jobs/{job_id}/deliveries")).json()["data"]
    assert [(each["status"], len(each["attempts"])) for each in shown] == [("pending", 1)] * 2
    assert {each["event_id"] for each in shown} == {event["id"]}


async def test_event_is_replayed_to_one_endpoint_whatever_it_subscribed_to(client, worker, submit) -> None:
    await end_job(worker, submit)
    endpoint_id = await add_endpoint(client, event_types=["response.completed"])
    [event] = (await client.get("/v1/webhook_events")).json()["data"]
    path = f"/v1/webhook_events/{event['id']}"
    assert (await client.post(f"{path}/replay", json={"endpoint": endpoint_id})).json()["num_deliveries"] == 1
    [delivery] = (await client.get(f"{path}/deliveries")).json()["data"]
    assert delivery["endpoint_id"] == endpoint_id


async def test_events_of_a_time_are_replayed_in_pages(client, worker, submit, engine: Engine) -> None:
    await add_endpoint(client)
    for _ in range(3):
        await end_job(worker, submit)
    end_deliveries(engine, "delivered")
    path = "/v1/webhook_events/replay"
    first = (await client.post(path, json=HOUR | {"limit": 2})).json()
    assert (first["num_events"], first["num_deliveries"], first["has_more"]) == (2, 2, True)
    second = (await client.post(path, json=HOUR | {"limit": 2, "after": first["last_id"]})).json()
    assert (second["num_events"], second["num_deliveries"], second["has_more"]) == (1, 1, False)
    end_deliveries_again = HOUR | {"undelivered": True}
    with Session(engine) as session, session.begin():
        session.execute(update(WebhookDelivery).values(status="delivered", due_at=None))
    assert (await client.post(path, json=end_deliveries_again)).json()["num_deliveries"] == 0


async def test_replay_of_a_time_that_is_none_is_refused(client) -> None:
    path = "/v1/webhook_events/replay"
    for body, param in (
        (HOUR | {"until": HOUR["since"]}, "until"),
        ({"since": HOUR["since"]}, "until"),
        (HOUR | {"since": "yesterday"}, "since"),
        (HOUR | {"limit": 1001}, "limit"),
        (HOUR | {"after": "x"}, "after"),
    ):
        reply = await client.post(path, json=body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_farthest_times_that_can_be_sent_are_taken(client) -> None:
    body = {"since": "0001-01-01T00:00:00+14:00", "until": "9999-12-31T23:59:59-12:00"}
    assert (await client.post("/v1/webhook_events/replay", json=body)).status_code == 202
    assert (await client.get("/v1/webhook_events", params=body)).status_code == 200
