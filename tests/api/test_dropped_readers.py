"""A client that drops its stream at the first event: the job was committed before, and runs to its end."""

from tests.api.sse import events


async def test_a_job_is_committed_before_its_first_event_and_goes_on_without_its_reader(client, worker, submit) -> None:
    job = await submit()
    async with client.stream("GET", f"/v1/jobs/{job['id']}/events") as response:
        first = await anext(events(response))
        claimed = worker.start(job["id"])  # from Postgres: it is there
        assert (first.name, claimed.attempt) == ("job.queued", 1)
    worker.say(job["id"], " goes", " on")
    worker.end(job["id"])
    ended = (await client.get(f"/v1/jobs/{job['id']}")).json()
    assert (ended["status"], ended["output"]["text"]) == ("succeeded", " goes on")
    seen = await client.get(f"/v1/jobs/{job['id']}/events", headers={"Last-Event-ID": str(first.number)})
    assert [event.name async for event in events(seen)] == ["job.started", "job.token", "job.token", "job.succeeded"]
