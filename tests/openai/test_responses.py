"""/v1/responses with the official client: what it creates, reads back, resumes, chains and cancels."""

import asyncio
from typing import Any

import openai
import pytest

from db.models import Status
from tests.api.hand_worker import HandWorker
from tests.chat_templates import PLAIN

BODY: dict[str, Any] = {"model": "tiny", "input": "the mill", "max_output_tokens": 8}
WHOLE = [
    *("response.created", "response.queued", "response.in_progress"),
    *("response.output_item.added", "response.content_part.added"),
    *["response.output_text.delta"] * 3,
    *("response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"),
]


@pytest.fixture
def worker(make_worker) -> HandWorker:
    """Serves a model with a chat template."""
    made: HandWorker = make_worker(chat_template=PLAIN, max_model_len=512, num_blocks=64)
    return made


def job_of(response_id: str) -> str:
    """The job behind a response."""
    return response_id.replace("resp_", "job_")


async def only_job(client) -> str:
    """The id of the one job there is, as soon as there is one."""
    while True:
        jobs = (await client.get("/v1/jobs")).json()["data"]
        if jobs:
            return str(jobs[0]["id"])


async def in_background(sdk, worker, *texts: str, **options: Any):
    """A response that has ended."""
    response = await sdk.responses.create(**BODY | options, background=True)
    worker.run(job_of(response.id), *texts)
    return await sdk.responses.retrieve(response.id)


async def test_a_response_that_is_waited_for_comes_whole(client, worker, sdk) -> None:
    asking = asyncio.create_task(sdk.responses.create(**BODY, instructions="Be brief.", metadata={"k": "v"}))
    worker.run(await only_job(client), " turns", "", " on")
    response = await asking
    assert (response.status, response.output_text) == ("completed", " turns on")
    assert response.usage.output_tokens == 3 and response.usage.total_tokens == response.usage.input_tokens + 3
    assert (response.instructions, response.metadata, response.error) == ("Be brief.", {"k": "v"}, None)
    assert response.completed_at is not None and response.output[0].status == "completed"
    assert response._request_id.startswith("req_")


async def test_a_response_in_the_background_is_answered_while_it_is_queued(worker, sdk) -> None:
    response = await sdk.responses.create(**BODY, background=True)
    assert (response.status, response.output, response.background) == ("queued", [], True)
    worker.start(job_of(response.id))
    assert (await sdk.responses.retrieve(response.id)).status == "in_progress"


async def test_the_clients_own_stream_helper_finds_every_event_in_its_place(client, worker, sdk) -> None:
    async with sdk.responses.stream(**BODY) as stream:
        job_id = await only_job(client)
        worker.run(job_id, " turns", "", " on")
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert [event.type for event in events] == WHOLE
    assert [event.sequence_number for event in events] == list(range(len(WHOLE)))
    assert final.output_text == " turns on" and job_of(final.id) == job_id


async def test_a_stream_is_resumed_from_every_event_live_and_from_the_past(worker, sdk) -> None:
    response = await sdk.responses.create(**BODY, background=True)
    job_id = job_of(response.id)
    worker.start(job_id)
    worker.say(job_id, " turns")

    async def read_on(after: int) -> list[Any]:
        stream = await sdk.responses.retrieve(response.id, stream=True, starting_after=after)
        return [event async for event in stream]

    live = [asyncio.create_task(read_on(after)) for after in range(len(WHOLE))]
    worker.say(job_id, "", " on")
    worker.end(job_id)
    seen_live, seen_after = await asyncio.gather(*live), [await read_on(after) for after in range(len(WHOLE))]
    worker.forget_stream(job_id)
    seen_late = [await read_on(after) for after in range(len(WHOLE))]  # by what Postgres has
    for readers in (seen_live, seen_after, seen_late):
        for after, events in enumerate(readers):
            assert [event.sequence_number for event in events] == list(range(after + 1, len(WHOLE)))
            assert [event.type for event in events] == WHOLE[after + 1 :]


async def test_a_response_follows_another_with_all_that_was_said(client, worker, sdk) -> None:
    first = await in_background(sdk, worker, " turns", instructions="Be brief.")
    second = await sdk.responses.create(
        model="tiny", input="and then?", previous_response_id=first.id, instructions="Be long.", background=True
    )
    third = await sdk.responses.input_tokens.count(model="tiny", input="and then?", previous_response_id=first.id)
    alone = await sdk.responses.input_tokens.count(model="tiny", input="and then?")
    assert second.previous_response_id == first.id and third.input_tokens > alone.input_tokens
    items = await sdk.responses.input_items.list(second.id)
    assert [item.content[0].text for item in items.data] == ["and then?"]


async def test_a_response_that_runs_is_no_ground_for_another(worker, sdk) -> None:
    first = await sdk.responses.create(**BODY, background=True)
    with pytest.raises(openai.BadRequestError, match="is still queued"):
        await sdk.responses.create(**BODY, previous_response_id=first.id)
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.create(**BODY, previous_response_id="resp_" + 32 * "0")


async def test_a_cancel_keeps_what_was_written_and_a_second_one_changes_nothing(worker, sdk, monkeypatch) -> None:
    monkeypatch.setattr("api.cancel.WORKER_SECONDS", 0.01)  # this one does not hear of it
    response = await sdk.responses.create(**BODY, background=True)
    worker.start(job_of(response.id))
    worker.say(job_of(response.id), " turns")
    cancelled = await sdk.responses.cancel(response.id)
    assert (cancelled.status, cancelled.output_text) == ("cancelled", " turns")
    assert await sdk.responses.cancel(response.id) == cancelled
    done = await in_background(sdk, worker, " on")
    assert await sdk.responses.cancel(done.id) == done


async def test_a_response_in_the_foreground_is_not_cancelled_by_a_call(client, worker, sdk) -> None:
    asking = asyncio.create_task(sdk.responses.create(**BODY))
    job_id = await only_job(client)
    with pytest.raises(openai.BadRequestError, match="background=true"):
        await sdk.responses.cancel(job_id.replace("job_", "resp_"))
    worker.run(job_id, " turns")
    await asking


async def test_a_replay_of_a_response_in_the_foreground_is_cancelled_by_a_call(client, worker, sdk) -> None:
    asking = asyncio.create_task(sdk.responses.create(**BODY))
    job_id = await only_job(client)
    worker.run(job_id, " turns")
    await asking
    replay_id = (await client.post(f"/v1/jobs/{job_id}/replay")).json()["id"]
    assert (await sdk.responses.cancel(replay_id.replace("job_", "resp_"))).status == "cancelled"


async def test_a_client_that_leaves_cancels_the_foreground_alone(client, worker, sdk) -> None:
    leaving = asyncio.create_task(sdk.responses.create(**BODY))
    job_id = await only_job(client)
    kept = await sdk.responses.create(**BODY, background=True)
    leaving.cancel()
    while (await client.get(f"/v1/jobs/{job_id}")).json()["status"] != Status.CANCELLED:
        pass
    assert (await sdk.responses.retrieve(kept.id)).status == "queued"


async def test_a_deleted_response_is_gone(worker, sdk) -> None:
    done = await in_background(sdk, worker, " turns")
    await sdk.responses.delete(done.id)
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.retrieve(done.id)


async def test_a_response_that_was_not_to_be_kept_cannot_be_read_again(client, worker, sdk) -> None:
    asking = asyncio.create_task(sdk.responses.create(**BODY, store=False))
    job_id = await only_job(client)
    worker.run(job_id, " turns")
    response = await asking
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.retrieve(response.id)
    while (await client.get(f"/v1/jobs/{job_id}")).status_code != 404:
        pass


async def test_the_service_tier_is_the_jobs_tier_and_the_one_used_is_answered(client, worker, sdk) -> None:
    tiers = {"auto": "default", "default": "default", "flex": "flex", "priority": "priority", "fast": "priority"}
    for asked, used in tiers.items():
        response = await sdk.responses.create(**BODY, background=True, service_tier=asked)
        job = (await client.get(f"/v1/jobs/{job_of(response.id)}")).json()
        assert response.service_tier == used
        assert job["tier"] == {"default": "normal", "flex": "low", "priority": "high"}[used]


async def test_a_completion_window_is_a_limit_in_time(client, worker, sdk) -> None:
    window = {"background_options": {"completion_window": "2h"}}
    response = await sdk.responses.create(**BODY, background=True, extra_body=window)
    assert (await client.get(f"/v1/jobs/{job_of(response.id)}")).json()["finish_by"] is not None
    with pytest.raises(openai.BadRequestError, match="background"):
        await sdk.responses.create(**BODY, extra_body=window)


async def test_what_reached_its_most_tokens_is_incomplete(worker, sdk) -> None:
    response = await sdk.responses.create(**BODY, background=True)
    worker.start(job_of(response.id))
    worker.say(job_of(response.id), " turns")
    worker.end(job_of(response.id), reason="length")
    read = await sdk.responses.retrieve(response.id)
    assert (read.status, read.incomplete_details.reason) == ("incomplete", "max_output_tokens")


async def test_a_job_that_failed_is_a_response_that_says_why(worker, sdk) -> None:
    response = await sdk.responses.create(**BODY, background=True)
    worker.start(job_of(response.id))
    worker.end(job_of(response.id), Status.FAILED, error_code="engine_error", error_message="it broke")
    read = await sdk.responses.retrieve(response.id)
    assert (read.status, read.error.code, read.error.message) == ("failed", "server_error", "engine_error: it broke")
    events = [event async for event in await sdk.responses.retrieve(response.id, stream=True)]
    assert events[-1].type == "response.failed"
