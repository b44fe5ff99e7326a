"""What a key may do, by its scopes."""

import pytest

from api.auth import is_submit
from api.scopes import scope_of
from tests.api.limited_keys import api_of, make_key

BODY = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 7}


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "/v1/jobs", "read"),
        ("HEAD", "/v1/jobs/job_1/events", "read"),
        ("POST", "/v1/jobs", "submit"),
        ("POST", "/v1/jobs/job_1/cancel", "submit"),
        ("DELETE", "/v1/jobs/job_1", "submit"),
        ("POST", "/v1/completions", "submit"),
        ("GET", "/v1/models", None),
        ("GET", "/v1/models/tiny", None),
        ("POST", "/v1/tokenize", None),
        ("POST", "/v1/embeddings", "submit"),
        ("GET", "/v1/webhook_endpoints", "read"),
        ("POST", "/v1/webhook_endpoints/we_1/rotate_secret", "admin"),
        ("DELETE", "/v1/webhook_endpoints/we_1", "admin"),
        ("POST", "/v1/webhook_events/evt_1/replay", "admin"),
        ("GET", "/v1/webhook_secret", "read"),
        ("POST", "/v1/webhook_secret/rotate", "admin"),
    ],
)
def test_each_request_needs_one_scope_or_any_key(method: str, path: str, scope: str | None) -> None:
    assert scope_of(method, path) == scope


async def test_a_key_that_reads_cannot_submit_and_is_told_what_it_takes(settings, engine, worker) -> None:
    async with api_of(settings, make_key(engine, "read")) as client:
        assert (await client.get("/v1/jobs")).status_code == 200
        refused = await client.post("/v1/jobs", json=BODY)
        unread = await client.post("/v1/jobs", content=b"{")
        assert (await client.get("/v1/jobs")).json()["data"] == []
    error = refused.json()["error"]
    assert (refused.status_code, error["type"], error["code"]) == (403, "permission_error", "missing_scope")
    assert "POST /v1/jobs takes a key with the scope 'submit'; this one has 'read'" in error["message"]
    assert refused.headers["x-request-id"]
    assert unread.status_code == 403, "before the body is looked at"


async def test_a_key_that_submits_cannot_read_but_cancels_and_sees_the_models(settings, engine, worker) -> None:
    async with api_of(settings, make_key(engine, "submit")) as client:
        job = (await client.post("/v1/jobs", json=BODY)).json()
        for path in ("/v1/jobs", f"/v1/jobs/{job['id']}", f"/v1/jobs/{job['id']}/events"):
            assert (await client.get(path)).status_code == 403
        assert (await client.post(f"/v1/jobs/{job['id']}/cancel")).json()["status"] == "cancelled"
        assert [(await client.get(path)).status_code for path in ("/v1/models", "/v1/queues")] == [200, 200]


async def test_a_key_that_manages_does_nothing_else(settings, engine) -> None:
    async with api_of(settings, make_key(engine, "admin")) as client:
        assert (await client.get("/v1/jobs")).status_code == 403
        assert (await client.post("/v1/jobs", json=BODY)).status_code == 403


async def test_the_reference_tells_the_scope_and_the_rates_of_every_route(client) -> None:
    schema = (await client.get("/openapi.json")).json()
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            scope, replies = scope_of(method.upper(), path), operation["responses"]
            if "401" not in replies:
                continue
            assert ("403" in replies) == (scope is not None), path
            assert operation["security"] == [{"API key": [] if scope is None else [scope]}], path
            if "429" in replies:
                assert all("x-ratelimit-remaining-tokens" in reply["headers"] for reply in replies.values()), path


def test_submits_are_the_routes_that_answer_429() -> None:
    from api import jobs, replays
    from api.completions import routes as completions

    routes = [route for module in (completions, jobs, replays) for route in module.router.routes]
    assert {route.path for route in routes if is_submit(route)} == {
        "/v1/completions",
        "/v1/jobs",
        "/v1/jobs/replay",
        "/v1/jobs/{job_id}/replay",
    }
