"""Keys, errors, queues, models, health, metrics and the reference page."""

import httpx
import pytest
from sqlalchemy import Engine, select, update
from sqlalchemy.orm import Session

from db.models import WebhookAttempt, WebhookDelivery, Worker
from tests.api.serving import api_with
from tests.servers import Servers

PRIVATE_PATHS = ["/v1/jobs", "/v1/jobs/job_1", "/v1/jobs/job_1/events", "/v1/queues", "/v1/models"]


async def test_a_missing_or_wrong_key_is_a_401_in_the_one_shape(url: str, keys) -> None:
    async with httpx.AsyncClient(base_url=url) as anyone:
        missing = [await anyone.get(path) for path in PRIVATE_PATHS]
        wrong = [await anyone.get(path, headers={"Authorization": "Bearer hr_wrong"}) for path in PRIVATE_PATHS]
    assert {reply.json()["error"]["code"] for reply in missing} == {"missing_api_key"}
    assert {reply.json()["error"]["code"] for reply in wrong} == {"invalid_api_key"}
    for reply in (*missing, *wrong):
        assert (reply.status_code, reply.json()["error"]["type"]) == (401, "authentication_error")
        assert reply.headers["www-authenticate"] == "Bearer"
        assert reply.headers["x-request-id"].startswith("req_")


async def test_the_key_is_also_taken_as_a_basic_password(url: str, keys) -> None:
    async with httpx.AsyncClient() as plain:
        known = await plain.get(url.replace("//", f"//:{keys[0]}@") + "/v1/jobs")
        unknown = await plain.get(url.replace("//", "//:hr_wrong@") + "/v1/jobs")
        broken = await plain.get(f"{url}/v1/jobs", headers={"Authorization": "Basic ???"})
    assert (known.status_code, unknown.status_code, broken.status_code) == (200, 401, 401)


async def test_every_reply_has_a_request_id_and_a_sane_one_is_kept(client) -> None:
    kept = await client.get("/healthz", headers={"x-request-id": "mine-1"})
    replaced = await client.get("/healthz", headers={"x-request-id": "two words"})
    nowhere = await client.get("/v2/jobs")
    wrong_method = await client.put("/v1/jobs")
    assert kept.headers["x-request-id"] == "mine-1"
    assert replaced.headers["x-request-id"].startswith("req_")
    assert (nowhere.status_code, nowhere.json()["error"]["code"]) == (404, "not_found")
    assert (wrong_method.status_code, wrong_method.json()["error"]["code"]) == (405, "method_not_allowed")
    assert wrong_method.headers["allow"]
    assert all(reply.headers["x-request-id"] for reply in (nowhere, wrong_method))


async def test_an_unforeseen_error_is_a_500_that_names_its_place_in_the_log(client, monkeypatch) -> None:
    async def fail(*_: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr("db.job_queries.queue_depths", fail)
    reply = await client.get("/v1/queues")
    error = reply.json()["error"]
    assert (reply.status_code, error["type"], error["code"]) == (500, "server_error", "internal_error")
    assert reply.headers["x-request-id"] in error["message"]
    assert "secret" not in error["message"]


async def test_queues_count_what_waits_and_runs_per_tier(client, worker, submit) -> None:
    jobs = [await submit(tier="high") for _ in range(3)]
    worker.start(jobs[0]["id"])
    queues = (await client.get("/v1/queues")).json()["data"]
    assert [(queue["tier"], queue["queued"], queue["running"]) for queue in queues] == [
        ("high", 2, 1),
        ("normal", 0, 0),
        ("low", 0, 0),
    ]
    assert queues[0]["oldest_wait_seconds"] >= 0
    assert queues[1]["oldest_wait_seconds"] is None


async def test_models_tell_their_state_as_openai_lists_them(client, make_worker) -> None:
    make_worker(model="b", status="loading")
    make_worker(model="a", max_model_len=99)
    make_worker(model="c", status="stopped", chat_template="{{ messages }}")
    models = (await client.get("/v1/models")).json()
    assert models["object"] == "list"
    assert [(model["id"], model["status"]) for model in models["data"]] == [
        ("a", "ready"),
        ("b", "loading"),
        ("c", "offline"),
    ]
    assert [model["has_chat_template"] for model in models["data"]] == [False, False, True]
    assert (await client.get("/v1/models/a")).json()["max_model_len"] == 99
    assert (await client.get("/v1/models/z")).json()["error"]["code"] == "model_not_found"


async def test_deliveries_show_every_attempt_at_a_jobs_webhook(client, worker, submit, engine: Engine) -> None:
    job = await submit(webhook_url="https://hooks.example/x")
    assert (await client.get(job["links"]["deliveries"])).json()["data"] == []
    worker.run(job["id"], " x")
    with Session(engine) as session, session.begin():
        delivery = session.query(WebhookDelivery).one()
        failure = {"number": 1, "duration_ms": 12, "status_code": 301, "error": "redirects are not followed"}
        session.add(WebhookAttempt(id=delivery.id, delivery_id=delivery.id, started_at=delivery.created_at, **failure))
    (shown,) = (await client.get(job["links"]["deliveries"])).json()["data"]
    assert (shown["url"], shown["event_type"], shown["status"]) == (
        "https://hooks.example/x",
        "job.succeeded",
        "pending",
    )
    assert shown["attempts"][0]["error"] == "redirects are not followed"
    assert shown["event_id"].startswith("evt_")


async def test_metrics_tell_what_each_live_engine_last_told(client, worker, engine) -> None:
    with engine.begin() as connection:
        connection.execute(update(Worker).values(stats={"running": 3, "hit_tokens": 480, "move_seconds": 0.25}))
    text = (await client.get("/metrics")).text
    with engine.connect() as connection:
        name = connection.scalar(select(Worker.name))
    labels = f'{{model="tiny",worker="{name}"}}'
    assert f"headrace_engine_running{labels} 3.0" in text
    assert f"headrace_engine_hit_tokens_total{labels} 480.0" in text
    assert f"headrace_engine_move_seconds_total{labels} 0.25" in text


async def test_metrics_count_the_queue_and_the_requests_by_route(client, worker, submit) -> None:
    job = await submit(tier="high")
    await client.get(f"/v1/jobs/{job['id']}")
    text = (await client.get("/metrics")).text
    assert 'headrace_jobs_queued{model="tiny",tier="high"} 1.0' in text
    assert 'headrace_jobs_submitted_total{model="tiny",tier="high"} 1.0' in text
    assert 'headrace_http_requests_total{method="GET",route="/v1/jobs/{job_id}",status="200"} 1.0' in text
    assert 'headrace_workers{model="tiny"} 1.0' in text


async def test_health_is_always_well_and_readiness_names_what_is_missing(client) -> None:
    for path in ("/healthz", "/health"):
        assert (await client.get(path)).json() == {"status": "ok"}
    ready = await client.get("/readyz")
    assert (ready.status_code, ready.json()["checks"]) == (200, {"postgres": "ok", "redis": "ok", "queue": "ok"})


async def test_readiness_tells_strangers_nothing_of_the_stores_but_the_log_does(
    settings, keys, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere = {
        "database_url": "postgresql+psycopg://secret-user@127.0.0.1:1/secret-name",
        "redis_url": "redis://127.0.0.1:1/0",
    }
    async with api_with(settings, **nowhere) as client:
        reply = await client.get("/readyz")
    assert reply.json()["checks"] == {"postgres": "not reachable", "redis": "not reachable", "queue": "not reachable"}
    logged = {record.check: record.error for record in caplog.records if record.message == "not ready"}
    assert logged.keys() == reply.json()["checks"].keys() and "127.0.0.1" in logged["postgres"]


async def test_while_redis_is_away_jobs_are_accepted_and_readers_wait(settings, keys, worker, servers: Servers) -> None:
    async with api_with(settings) as client:
        servers.valkey.kill()
        try:
            body = {"model": "tiny", "prompt": "the mill", "max_tokens": 4}
            accepted = await client.post("/v1/jobs", json=body)
            readiness = await client.get("/readyz")
            cancelled = await client.post(f"/v1/jobs/{accepted.json()['id']}/cancel")
        finally:
            servers.valkey.start()
    assert (accepted.status_code, accepted.json()["status"]) == (202, "queued")
    assert (readiness.status_code, readiness.json()["checks"]["postgres"]) == (503, "ok")
    assert readiness.json()["checks"]["redis"] == "not reachable"
    assert cancelled.json()["status"] == "cancelled"


async def test_while_postgres_is_away_the_answer_is_a_503_to_retry(settings, keys, worker, servers: Servers) -> None:
    async with api_with(settings) as client:
        assert (await client.get("/v1/jobs")).status_code == 200
        servers.postgres.kill()
        try:
            refused = await client.post("/v1/jobs", json={"model": "tiny", "prompt": "x"})
            alive = await client.get("/healthz")
            reference = await client.get("/openapi.json")
        finally:
            servers.postgres.start()
        back = await client.get("/v1/jobs")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "service_unavailable")
    assert int(refused.headers["retry-after"]) > 0
    assert (alive.status_code, reference.status_code, back.status_code) == (200, 200, 200)
