"""Batches made by Headrace's own client: the helper around the same files and batches."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from api.client import BatchFailed, Headrace, WaitTimeout
from tests.api.lossy_proxy import lossy_proxy
from tests.openai.batch_world import URL, jsonl, request


@pytest.fixture
def headrace(url: str, keys: tuple[str, str]) -> Iterator[Headrace]:
    with Headrace(url, keys[0]) as headrace:
        yield headrace


async def test_results_come_by_custom_id_while_the_batch_runs_each_once(world, headrace) -> None:
    requests = {f"r{i}": {"model": "tiny", "prompt": [5 + i], "max_tokens": 9999 if i == 3 else 4} for i in range(6)}
    batch = await asyncio.to_thread(headrace.batch, requests, endpoint=URL, metadata={"who": "me"})
    assert (batch.state["status"], batch.state["metadata"]) == ("validating", {"who": "me"})
    results = batch.results()
    first = asyncio.create_task(asyncio.to_thread(next, results))
    await world.rounds(2)
    world.run_jobs()
    await world.rounds()
    told = [await first]
    assert batch.state["status"] == "in_progress"
    rest = asyncio.create_task(asyncio.to_thread(list, results))
    assert (await world.run_to_end(batch.id)).status == "completed"
    told += await rest
    assert sorted(custom_id for custom_id, _ in told) == sorted(requests)
    by_id = dict(told)
    refused = by_id.pop("r3")
    assert (refused.is_success, refused.status_code, refused.error["param"]) == (False, 400, "max_tokens")
    assert {result.body["choices"][0]["text"] for result in by_id.values()} == {" turns"}
    assert all(result.is_success and result.status_code == 200 for result in by_id.values())
    again = await asyncio.to_thread(headrace.get_batch, batch.id)
    assert dict(await asyncio.to_thread(list, again.results())) == dict(told)


async def test_a_batch_is_made_of_lines_and_of_a_file_too(world, headrace, tmp_path: Path) -> None:
    lines = [request(f"r{i}") for i in range(2)]
    short = [{"custom_id": line["custom_id"], "body": line["body"]} for line in lines]
    (tmp_path / "requests.jsonl").write_bytes(jsonl(lines))
    for requests in (lines, iter(short), tmp_path / "requests.jsonl", str(tmp_path / "requests.jsonl")):
        batch = await asyncio.to_thread(headrace.batch, requests, endpoint=URL, completion_window="90m")
        waiting = asyncio.create_task(asyncio.to_thread(batch.wait))
        await world.run_to_end(batch.id)
        state = await waiting
        assert (state["status"], state["request_counts"]["completed"]) == ("completed", 2)
        assert (await world.content(state["input_file_id"])) == lines


async def test_a_batch_of_a_wrong_input_says_which_line_and_why(world, headrace) -> None:
    lines = [request("a"), request("a")]
    batch = await asyncio.to_thread(headrace.batch, lines, endpoint=URL)
    await world.run_to_end(batch.id)
    with pytest.raises(BatchFailed, match="line 2: 'custom_id' is that of line 1"):
        await asyncio.to_thread(list, batch.results())
    assert (await asyncio.to_thread(batch.wait))["status"] == "failed"


async def test_a_cancelled_batch_has_the_results_of_what_ran_and_says_what_did_not(world, headrace) -> None:
    batch = await asyncio.to_thread(headrace.batch, [request(f"r{i}") for i in range(6)], endpoint=URL)
    with pytest.raises(WaitTimeout, match=f"{batch.id} is still validating"):
        await asyncio.to_thread(batch.wait, timeout=0)
    await world.rounds(2)
    assert world.run_jobs() == 4
    await world.rounds()
    assert (await asyncio.to_thread(batch.cancel))["status"] == "cancelling"
    await world.run_to_end(batch.id)
    results = dict(await asyncio.to_thread(list, batch.results()))
    assert [result.is_success for result in results.values()].count(True) == 4
    stopped = [result for result in results.values() if not result.is_success]
    assert [(each.status_code, each.error["code"]) for each in stopped] == [(None, "batch_cancelled")] * 2
    assert json.dumps(stopped[0].error)


@pytest.mark.parametrize("status", [502, 504])
async def test_a_batch_that_was_made_behind_the_error_of_a_proxy_is_not_made_again(sdk, url, keys, status: int) -> None:
    port = httpx.URL(url).port
    assert port is not None
    with lossy_proxy(port) as proxy, Headrace(proxy.url, keys[0]) as headrace:
        proxy.lose(b"POST /v1/batches ", times=1, status=status)
        batch = await asyncio.to_thread(headrace.batch, [request("a")], endpoint=URL)
    assert [each.id async for each in sdk.batches.list()] == [batch.id]


async def test_a_download_that_breaks_is_begun_again_and_tells_nothing_twice(
    world, headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = await asyncio.to_thread(headrace.batch, [request(f"r{i}") for i in range(3)], endpoint=URL)
    await world.run_to_end(batch.id)
    monkeypatch.setattr("api.client.batch.read_lines", breaking_after(1, monkeypatch))
    results = await asyncio.to_thread(list, batch.results())
    assert sorted(custom_id for custom_id, _ in results) == ["r0", "r1", "r2"]


def breaking_after(num_lines: int, monkeypatch: pytest.MonkeyPatch):
    """Lines as they are read, until the connection breaks; whole ones the next time."""
    from api.client.event_lines import read_lines

    def read(chunks):
        for _, line in zip(range(num_lines), read_lines(chunks), strict=False):
            yield line
        monkeypatch.setattr("api.client.batch.read_lines", read_lines)
        raise httpx.ReadError("broken")

    return read
