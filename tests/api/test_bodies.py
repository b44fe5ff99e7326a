"""What a request may cost before it is known to be welcome: its key first, then its size, then its time."""

import asyncio
import json
from urllib.parse import urlsplit

import httpx
import pytest

from tests.api.serving import KEY


async def send(url: str, key: str, *, length: int, body: bytes = b"") -> tuple[int, dict[str, str], dict]:
    """POST a body that is announced, and of which only `body` is ever sent; the reply's status, headers and JSON."""
    reader, writer = await asyncio.open_connection(urlsplit(url).hostname, urlsplit(url).port)
    lines = ["POST /v1/jobs HTTP/1.1", "Host: x", f"Authorization: Bearer {key}", f"Content-Length: {length}", "", ""]
    writer.write("\r\n".join(lines).encode() + body)
    try:
        status, *fields = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(field.lower().split(": ", 1) for field in fields if field)
        return int(status.split()[1]), headers, json.loads(await reader.readexactly(int(headers["content-length"])))
    finally:
        writer.close()


async def test_a_wrong_key_is_refused_before_the_body_is_read(url: str, keys) -> None:
    status, headers, reply = await send(url, "hr_wrong", length=1_000)
    assert (status, reply["error"]["code"]) == (401, "invalid_api_key")
    assert headers["x-request-id"].startswith("req_")
    assert (await send(url, "", length=10**12))[2]["error"]["code"] == "missing_api_key"


async def test_an_announced_length_over_the_limit_is_refused_before_the_body_is_read(url: str, keys) -> None:
    status, _, reply = await send(url, KEY, length=17 * 1024 * 1024)
    assert (status, reply["error"]["code"]) == (413, "body_too_large")


async def test_a_body_that_trickles_is_cut_off(url: str, keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.body_limit.BODY_SECONDS", 0.2)
    status, headers, reply = await send(url, KEY, length=1_000, body=b'{"model": ')
    assert (status, reply["error"]["code"], headers["connection"]) == (408, "body_timeout", "close")
    assert "within 0.2 s" in reply["error"]["message"]


async def test_a_whole_body_leaves_its_request_all_the_time_it_needs(
    client, worker, submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.body_limit.BODY_SECONDS", 0.05)
    job = await submit()
    async with client.stream("GET", f"/v1/jobs/{job['id']}/events") as response:
        waited = await client.get(f"/v1/jobs/{job['id']}", headers={"Prefer": "wait=1"})
        worker.run(job["id"], " x")
        text = (await response.aread()).decode()
    assert (waited.json()["status"], text.count("event: job.succeeded")) == ("queued", 1)


async def test_a_body_over_the_limit_is_a_413_in_the_one_shape(client: httpx.AsyncClient) -> None:
    reply = await client.post("/v1/jobs", content=b'{"model":"' + b"x" * 17 * 1024 * 1024 + b'"}')
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "body_too_large")
    assert reply.headers["x-request-id"]


async def test_a_path_that_is_nowhere_tells_a_stranger_nothing(url: str, keys) -> None:
    async with httpx.AsyncClient(base_url=url) as anyone:
        assert (await anyone.get("/v1/nothing")).status_code == 401
        assert (await anyone.get("/nothing")).status_code == 404
