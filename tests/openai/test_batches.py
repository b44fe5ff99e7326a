"""Batches with the unmodified `openai` client: from a file of requests to its output, whatever happens between."""

import json
from datetime import timedelta

import openai
import pytest
from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from db.ids import new_id, parse_id
from db.models import BatchLine, File, Job, Status, WebhookEvent
from tests.db.rows import add_endpoint
from tests.openai.batch_world import request


def counts(batch) -> tuple[int, int, int]:
    return (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed)


async def test_a_batch_runs_every_line_and_writes_what_each_would_have_been_answered(sdk, world) -> None:
    lines = [request(f"r{i}", prompt=[5 + i, 6]) for i in range(6)]
    batch_id = await world.create(lines, metadata={"who": "me"})
    batch = await sdk.batches.retrieve(batch_id)
    assert (batch.status, batch.object, batch.endpoint) == ("validating", "batch", "/v1/completions")
    assert (batch.metadata, batch.completion_window, counts(batch)) == ({"who": "me"}, "24h", (0, 0, 0))
    assert batch.expires_at - batch.created_at == 24 * 3600

    batch = await world.run_to_end(batch_id)
    assert (batch.status, counts(batch), batch.model, batch.error_file_id) == ("completed", (6, 6, 0), "tiny", None)
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    assert (batch.usage.input_tokens, batch.usage.output_tokens, batch.usage.total_tokens) == (12, 6, 18)
    output = await sdk.files.retrieve(batch.output_file_id)
    assert (output.purpose, output.status, output.filename) == (
        "batch_output",
        "processed",
        f"{batch_id}_output.jsonl",
    )
    assert output.bytes == len((await sdk.files.content(output.id)).content)
    written = await world.content(output.id)
    assert [line["custom_id"] for line in written] == [f"r{i}" for i in range(6)]
    for line in written:
        assert line["id"].startswith("batch_req_") and line["error"] is None
        assert line["response"]["status_code"] == 200 and line["response"]["request_id"].startswith("req_")
        completion = openai.types.Completion.model_validate(line["response"]["body"])
        assert (completion.choices[0].text, completion.usage.completion_tokens) == (" turns", 1)


async def test_a_batch_of_chats_is_answered_with_chat_completions(sdk, world, make_worker) -> None:
    make_worker(id=new_id(), chat_template="{% for message in messages %}{{ message.content }}{% endfor %}")
    url, body = "/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": "the mill"}]}
    line = {"custom_id": "a", "method": "POST", "url": url, "body": body | {"max_tokens": 4}}
    batch = await world.run_to_end(
        await world.create([line, line | {"custom_id": "b", "body": body | {"n": 0}}], endpoint=url)
    )
    assert counts(batch) == (2, 1, 1)
    [answered] = await world.content(batch.output_file_id)
    chat = openai.types.chat.ChatCompletion.model_validate(answered["response"]["body"])
    assert (chat.object, chat.choices[0].message.content, chat.id[:9]) == ("chat.completion", " turns", "chatcmpl-")


async def test_a_batch_of_inputs_is_answered_with_embeddings(sdk, world) -> None:
    url, body = "/v1/embeddings", {"model": "tiny", "input": [5, 6, 7]}
    line = {"custom_id": "a", "method": "POST", "url": url, "body": body}
    batch_id = await world.begin(
        [line, line | {"custom_id": "b", "body": body | {"input": ["one", "two"]}}], endpoint=url
    )
    [job_id] = world.jobs(Status.QUEUED)
    world.worker.start(job_id)
    world.worker.end(job_id, embedding=[0.6, 0.8])
    batch = await world.run_to_end(batch_id)
    assert counts(batch) == (2, 1, 1)
    [answered] = await world.content(batch.output_file_id)
    answer = openai.types.CreateEmbeddingResponse.model_validate(answered["response"]["body"])
    assert answer.data[0].embedding == pytest.approx([0.6, 0.8]) and answer.usage.total_tokens == 3
    [refused] = await world.content(batch.error_file_id)
    assert refused["response"]["body"]["error"]["param"] == "input"


async def test_lines_run_as_low_tier_jobs_a_window_at_a_time_those_that_begin_alike_together(sdk, world) -> None:
    long = "the mill stands where the river bends " * 4
    lines = [request(f"r{i}", prompt=(long if i % 2 else "") + f"number {i}", max_tokens=1) for i in range(8)]
    batch_id = await world.begin(lines)
    assert len(world.jobs(Status.QUEUED)) == 4, "the window"
    await world.rounds()
    assert len(world.jobs(Status.QUEUED)) == 4, "and no more while they wait"
    while world.run_jobs():
        await world.rounds()
    with Session(world.engine) as session:
        ran = session.scalars(select(Job).order_by(Job.id)).all()
        order = session.scalars(select(BatchLine.line).order_by(BatchLine.place)).all()
    assert {(job.tier, job.stream) for job in ran} == {(2, False)}
    assert [line % 2 for line in order] in ([0] * 4 + [1] * 4, [1] * 4 + [0] * 4)
    assert (await world.run_to_end(batch_id)).status == "completed"


async def test_what_has_ended_can_be_read_while_the_batch_runs_and_agrees_with_the_counts(sdk, world) -> None:
    batch_id = await world.begin([request(f"r{i}", **({"max_tokens": 9999} if i == 3 else {})) for i in range(10)])
    batch = await sdk.batches.retrieve(batch_id)
    assert (batch.status, batch.output_file_id) == ("in_progress", None)
    while batch.status == "in_progress":
        written = await world.content(batch.output_file_id), await world.content(batch.error_file_id)
        assert counts(batch) == (10, len(written[0]), len(written[1]))
        for file_id in filter(None, (batch.output_file_id, batch.error_file_id)):
            file = await sdk.files.retrieve(file_id)
            assert (file.status, file.bytes) == ("uploaded", len((await sdk.files.content(file_id)).content))
        world.run_jobs()
        await world.rounds()
        batch = await sdk.batches.retrieve(batch_id)
    assert (batch.status, counts(batch)) == ("completed", (10, 9, 1))
    assert len(await world.content(batch.output_file_id)) == 9


@pytest.mark.parametrize(
    ("line", "code", "param", "words"),
    [
        ('{"custom_id": ', "invalid_json_line", None, "not valid JSON"),
        ("[1]", "invalid_value", None, "must be an object"),
        (request("a") | {"custom_id": None}, "invalid_value", "custom_id", "'custom_id'"),
        ({"custom_id": "x", "method": "POST", "url": "/v1/completions"}, "missing_field", "body", "required"),
        (request("x") | {"method": "GET"}, "invalid_value", "method", "POST"),
        (request("x") | {"url": "/v1/embeddings"}, "mismatched_url", "url", "made for '/v1/completions'"),
        (request("first"), "duplicate_custom_id", "custom_id", "that of line 1"),
        (request("x") | {"colour": 1}, "unknown_field", "colour", "not a known field"),
        (request("x", stream=True), "invalid_value", "body.stream", "cannot be true"),
        (request("half of a pair \ud800"), "invalid_value", "custom_id", "unicode"),
        ("[" * 100_000, "invalid_json_line", None, "deep"),
    ],
)
async def test_a_line_that_is_no_request_fails_the_batch_by_its_number_and_reason(
    sdk, world, line, code, param, words
) -> None:
    batch_id = await world.create([request("first"), "", line])
    await world.rounds()
    batch = await sdk.batches.retrieve(batch_id)
    assert (batch.status, counts(batch), batch.output_file_id) == ("failed", (0, 0, 0), None)
    assert batch.failed_at >= batch.created_at
    [error] = batch.errors.data
    assert (error.line, error.code, error.param) == (3, code, param)
    assert words in error.message
    assert world.jobs(Status.QUEUED) == []


async def test_an_empty_file_and_one_with_too_many_lines_fail_as_a_whole(sdk, world, monkeypatch) -> None:
    monkeypatch.setattr("api.batches.input.MAX_LINES", 3)
    few, many = await world.create(["  ", ""]), await world.create([request(str(i)) for i in range(4)])
    await world.rounds()
    for batch_id, code in ((few, "empty_file"), (many, "too_many_lines")):
        batch = await sdk.batches.retrieve(batch_id)
        [error] = batch.errors.data
        assert (batch.status, error.code, error.line) == ("failed", code, None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/nonsense"}, "endpoint"),
        ({"completion_window": "tomorrow"}, "completion_window"),
        ({"completion_window": "999d"}, "completion_window"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
        ({"metadata": {"a": 1}}, "metadata.a"),
    ],
)
async def test_a_wrong_batch_names_its_field(sdk, world, fields, param) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await world.create([request("a")], **fields)
    assert refused.value.param == param


async def test_a_batch_of_a_file_for_something_else_or_of_none_is_refused(sdk, world) -> None:
    file = await sdk.files.create(file=b"a", purpose="user_data")
    for file_id, error in ((file.id, openai.BadRequestError), ("file-" + "0" * 32, openai.NotFoundError)):
        with pytest.raises(error) as refused:
            await sdk.batches.create(input_file_id=file_id, endpoint="/v1/completions", completion_window="24h")
        assert refused.value.param == "input_file_id"


async def test_lines_that_are_refused_or_fail_are_in_the_error_file_as_a_client_would_have_got_them(sdk, world) -> None:
    lines = [
        request("unknown field", colour="red"),
        request("too long", max_tokens=9999),
        request("no such model", model="nobody"),
        request("late", finish_by="2020-01-01T00:00:00Z"),
        request("fails", prompt="x"),
        request("is deleted", prompt="y"),
        request("works", prompt="z"),
    ]
    batch_id = await world.begin(lines)
    with Session(world.engine) as session:
        job_of = {
            line.custom_id: f"job_{line.job_id.hex}"
            for line in session.scalars(select(BatchLine).where(BatchLine.job_id.is_not(None)))
        }
    assert set(job_of) == {"fails", "is deleted", "works"}
    world.worker.start(job_of["fails"])
    world.worker.end(job_of["fails"], Status.FAILED, error_code="broken", error_message="it broke")
    for name in ("is deleted", "works"):
        world.worker.run(job_of[name], " x")
    with Session(world.engine) as session, session.begin():
        session.execute(delete(Job).where(Job.id == parse_id("job_", job_of["is deleted"])))
    batch = await world.run_to_end(batch_id)
    assert (batch.status, counts(batch)) == ("completed", (7, 1, 6))
    told = {line["custom_id"]: line["response"] for line in await world.content(batch.error_file_id)}
    said = {name: (reply["status_code"], reply["body"]["error"]["code"]) for name, reply in told.items()}
    assert said == {
        "unknown field": (400, "unknown_field"),
        "too long": (400, "context_length_exceeded"),
        "no such model": (404, "model_not_found"),
        "late": (400, "invalid_value"),
        "fails": (500, "broken"),
        "is deleted": (500, "job_deleted"),
    }
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.completions.create(**lines[1]["body"])
    assert told["too long"]["body"]["error"]["message"] == refused.value.body["message"]


async def test_whatever_a_model_writes_a_line_of_the_output_stays_one_line(sdk, world) -> None:
    strange = "a\n\u2028b\u2029\x85c\x1c\x0b\x00 mühle 水車 \U0001f4a7"
    batch_id = await world.begin([request("strange \u2028 name"), request("b")])
    world.run_jobs(strange)
    batch = await world.run_to_end(batch_id)
    content = (await sdk.files.content(batch.output_file_id)).content.decode()
    assert len(content.splitlines()) == 2
    first = json.loads(content.splitlines()[0])
    assert first["custom_id"] == "strange \u2028 name"
    assert first["response"]["body"]["choices"][0]["text"] == strange.replace("\x00", "\ufffd")


async def test_a_batch_whose_lines_all_failed_is_completed_without_an_output_file(sdk, world) -> None:
    batch = await world.run_to_end(await world.create([request(str(i), colour="red") for i in range(40)]))
    assert (batch.status, counts(batch), batch.output_file_id) == ("completed", (40, 0, 40), None)
    assert len(await world.content(batch.error_file_id)) == 40
    assert [file.purpose for file in (await sdk.files.list()).data] == ["batch_output", "batch"]


async def test_what_a_batch_wrote_expires_so_long_after_its_end_however_long_it_ran(sdk, world) -> None:
    expiry = {"anchor": "created_at", "seconds": 3600}
    lines = [request("a"), request("b"), request("refused", colour="red")]
    batch_id = await world.begin(lines, output_expires_after=expiry)
    world.worker.run(world.jobs(Status.QUEUED)[0], " turns")
    await world.rounds()
    with Session(world.engine) as session, session.begin():  # as if that had been an hour ago
        ours = File.purpose == "batch_output"
        session.execute(update(File).where(ours).values(expires_at=func.clock_timestamp() + timedelta(minutes=1)))
    batch = await world.run_to_end(batch_id)
    files = [await sdk.files.retrieve(file_id) for file_id in (batch.output_file_id, batch.error_file_id)]
    assert all(file.expires_at >= batch.completed_at + 3600 for file in files)


async def test_batches_are_listed_newest_first_in_pages_and_only_to_their_tenant(sdk, stranger, world) -> None:
    ids = [await world.create([request("a")]) for _ in range(5)]
    assert [batch.id async for batch in sdk.batches.list(limit=2)] == ids[::-1]
    assert (await stranger.get("/v1/batches")).json()["data"] == []
    for method, path in (("GET", ids[0]), ("POST", f"{ids[0]}/cancel"), ("GET", "nonsense")):
        reply = await stranger.request(method, f"/v1/batches/{path}")
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "batch_not_found")
    assert (await sdk.batches.retrieve(ids[0])).status == "validating"


async def test_a_batch_tells_no_endpoint_of_each_of_its_lines(world, sdk) -> None:
    with Session(world.engine) as session, session.begin():
        add_endpoint(session, tenant="default", url="http://127.0.0.1:9/")
    await world.run_to_end(await world.create([request("a"), request("b", webhook_url="https://example.com/hook")]))
    with Session(world.engine) as session:
        types = sorted(session.scalars(select(WebhookEvent.type)))
    assert types == ["batch.completed", "job.succeeded"], "of lines, only of the one that asks for it"
