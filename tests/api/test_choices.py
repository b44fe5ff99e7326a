"""Several outputs of one prompt over HTTP: each told by itself, with one numbering, live and from the past."""

import asyncio
from typing import Any

from db.models import JobOutput, Status
from tests.api.hand_worker import uuid_of
from tests.api.sse import Event, events
from tests.api.waiting import only_job

BODY: dict[str, Any] = {"model": "tiny", "prompt": "the mill", "max_tokens": 8}


async def read_all(client, job_id: str, after: int | None = None) -> list[Event]:
    query = "" if after is None else f"?after={after}"
    async with client.stream("GET", f"/v1/jobs/{job_id}/events{query}") as response:
        return [event async for event in events(response)]


async def test_a_job_tells_each_output_and_first_the_first(client, worker, submit) -> None:
    job = await submit(n=3, logprobs=0)
    worker.start(job["id"])
    worker.say(job["id"], " a", " b", " c", " d", " e", " f", logprobs=True)
    worker.end(job["id"])
    ended = (await client.get(f"/v1/jobs/{job['id']}")).json()
    output = ended["output"]
    assert (job["n"], ended["n"], ended["usage"]["completion_tokens"]) == (3, 3, 6)
    assert [(each["index"], each["text"], each["token_ids"]) for each in output["choices"]] == [
        (0, " a d", [10, 13]),
        (1, " b e", [11, 14]),
        (2, " c f", [12, 15]),
    ]
    assert all(each["finish_reason"] == "stop" and len(each["logprobs"]) == 2 for each in output["choices"])
    first = output["choices"][0]
    assert first == {"index": 0} | {name: output[name] for name in first if name != "index"}


async def test_a_job_with_one_output_has_no_list_of_them(client, worker, submit) -> None:
    job = await submit(prompt_logprobs=1)
    worker.start(job["id"])
    worker.say(job["id"], " a")
    told = [{"logprob": -1.5, "top": [[7, -0.5]]}]
    worker.end(job["id"], prompt_logprobs=told)
    ended = (await client.get(f"/v1/jobs/{job['id']}")).json()
    assert (ended["n"], ended["output"]["choices"]) == (1, None)
    assert ended["output"]["prompt_logprobs"] == [None, *told]


async def test_events_carry_the_choice_and_have_the_same_numbers_from_redis_and_from_postgres(
    client, worker, submit
) -> None:
    job = await submit(n=2)
    worker.start(job["id"])
    worker.say(job["id"], " a", " b", "")
    worker.say(job["id"], " d")
    worker.end(job["id"])
    live = await read_all(client, job["id"])
    assert [event.number for event in live] == list(range(7))
    tokens = [event.data for event in live if event.name == "job.token"]
    assert [(each["index"], each["choice"], each["text"]) for each in tokens] == [
        (0, 0, " a"),
        (1, 1, " b"),
        (2, 0, ""),
        (3, 1, " d"),
    ]
    worker.forget_stream(job["id"])
    for cursor in range(6):
        assert await read_all(client, job["id"], after=cursor) == live[cursor + 1 :]


async def test_a_cancelled_job_keeps_what_was_written_of_each_output(client, worker, submit, monkeypatch) -> None:
    monkeypatch.setattr("api.cancel.WORKER_SECONDS", 0.1)
    job = await submit(n=3)
    worker.start(job["id"])
    worker.say(job["id"], " a", " b")
    cancelled = (await client.post(f"/v1/jobs/{job['id']}/cancel")).json()
    choices = cancelled["output"]["choices"]
    assert cancelled["status"] == "cancelled"
    assert [(each["text"], each["finish_reason"]) for each in choices] == [(" a", None), (" b", None), ("", None)]


async def test_the_openai_client_gets_every_choice_of_a_whole_completion(client, worker, sdk) -> None:
    asking = asyncio.create_task(sdk.completions.create(**BODY, n=2, best_of=2, logprobs=1))
    job_id = await only_job(client)
    worker.start(job_id)
    worker.say(job_id, " a", " b", " c", " d", logprobs=True)
    worker.end(job_id)
    completion = await asking
    assert [(each.index, each.text, each.finish_reason) for each in completion.choices] == [
        (0, " a c", "stop"),
        (1, " b d", "stop"),
    ]
    assert [each.logprobs.text_offset for each in completion.choices] == [[0, 2], [0, 2]]
    assert completion.usage.completion_tokens == 4


async def test_the_openai_client_streams_the_chunks_of_every_choice_and_the_end_of_each(client, worker, sdk) -> None:
    stream = await sdk.completions.create(**BODY, n=2, stream=True, logprobs=0, stream_options={"include_usage": True})
    job_id = await only_job(client)
    worker.start(job_id)
    worker.say(job_id, " a", " b", " c", " d", logprobs=True)
    worker.end(job_id)
    *chunks, last = [chunk async for chunk in stream]
    seen = [(chunk.choices[0].index, chunk.choices[0].text, chunk.choices[0].finish_reason) for chunk in chunks]
    assert seen == [
        (0, " a c", None),
        (1, " b d", None),
        (0, "", "stop"),
        (1, "", "stop"),
    ]
    assert [chunk.choices[0].logprobs.text_offset for chunk in chunks[:2]] == [[0, 2], [0, 2]]
    assert (last.choices, last.usage.completion_tokens) == ([], 4)


async def test_the_log_probabilities_of_the_prompt_come_with_a_whole_completion(client, worker, sdk) -> None:
    asking = asyncio.create_task(sdk.completions.create(**BODY, extra_body={"prompt_logprobs": 0}))
    job_id = await only_job(client)
    worker.start(job_id)
    worker.say(job_id, " a")
    told = [{"logprob": -1.5, "top": []}]
    worker.end(job_id, prompt_logprobs=told)
    assert (await asking).prompt_logprobs == [None, *told]


async def test_a_replay_asks_for_as_many_outputs(client, worker, submit) -> None:
    job = await submit(n=2, num_beams=3, length_penalty=0.5, early_stopping=True)
    worker.start(job["id"])
    worker.end(job["id"], Status.FAILED, error_code="broken")
    new = (await client.post(f"/v1/jobs/{job['id']}/replay")).json()
    claimed = worker.start(new["id"])
    assert (new["n"], claimed.sampling.n, claimed.sampling.num_beams) == (2, 2, 3)
    assert (claimed.sampling.length_penalty, claimed.sampling.early_stopping) == (0.5, True)


async def test_outputs_share_the_full_blocks_of_their_prompt_in_what_a_job_is_counted_for(client, make_worker) -> None:
    worker = make_worker(max_num_seqs=16, num_blocks=64)
    for body, num_blocks in (
        ({"prompt": [5] * 40, "max_tokens": 20}, 4),
        ({"prompt": [5] * 40, "max_tokens": 20, "n": 4}, 2 + 4 * 2),
        ({"prompt": [5] * 32, "max_tokens": 16, "num_beams": 3}, 2 + 3),
    ):
        job = (await client.post("/v1/jobs", json={"model": "tiny"} | body)).json()
        assert worker.start(job["id"]).num_blocks == num_blocks


async def test_outputs_that_never_fit_the_cache_together_are_refused_with_what_each_may_have(
    client, make_worker
) -> None:
    worker = make_worker(num_blocks=8)
    body = {"model": "tiny", "prompt": [5] * 20, "n": 4}
    default = (await client.post("/v1/jobs", json=body)).json()
    assert default["max_tokens"] == 12, "a block of the seven that the prompt leaves for each"
    worker.start(default["id"])
    refused = (await client.post("/v1/jobs", json=body | {"max_tokens": 13})).json()["error"]
    assert (refused["code"], refused["param"]) == ("context_length_exceeded", "max_tokens")
    assert "holds 32 for each of 4 outputs" in refused["message"] and "at most 12" in refused["message"]


async def test_the_tokens_of_all_outputs_count_against_the_queue(client, submit) -> None:
    await submit(n=4, max_tokens=8, prompt=[5, 6])
    (queue,) = [each for each in (await client.get("/v1/queues")).json()["data"] if each["waiting_tokens"]]
    assert queue["waiting_tokens"] == 2 + 4 * 8


async def test_the_rows_of_a_job_have_the_tokens_of_all_outputs_in_the_order_of_its_stream(
    worker, submit, session
) -> None:
    job = await submit(n=2)
    worker.run(job["id"], " a", " b", " c", " d")
    output = session.get_one(JobOutput, uuid_of(job["id"]))
    assert (output.text, output.choices, output.finish_reasons) == (" a b c d", [0, 1, 0, 1], ["stop", "stop"])
